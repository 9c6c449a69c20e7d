"""Every node case of the onnx package that ONNX Runtime runs gives the same results after preparation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.backend.test.case.node import collect_testcases
from tests.unit.transform.graphs import run

from collage.frontend import read_model
from collage.transform import is_random, prepare

_MAX_IR_VERSION = 13


def _feeds(case) -> dict[str, np.ndarray] | None:
    arrays = case.data_sets[0][0] if case.data_sets else []
    if not all(isinstance(array, np.ndarray) for array in arrays):
        return None
    return dict(zip([value.name for value in case.model.graph.input], arrays, strict=False))


def _reference(case, feeds) -> list[np.ndarray] | None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, _MAX_IR_VERSION)
    try:
        return run(model, feeds)
    except Exception:
        return None


def _differs(expected, actual) -> bool:
    if not isinstance(expected, np.ndarray) or expected.dtype == object:
        return False
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return True
    if expected.dtype.kind not in "fV":
        return not np.array_equal(expected, actual)
    return not np.allclose(expected.astype(np.float64), actual.astype(np.float64), 1e-3, 1e-5, equal_nan=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_onnx_node_case_changes():
    compared, changed = 0, []
    for case in collect_testcases(None):
        model = read_model(case.model)
        prepared = prepare(model)
        feeds = _feeds(case)
        expected = _reference(case, feeds) if feeds is not None else None
        if expected is None or any(is_random(node) for node in model.graph):
            continue
        compared += 1
        actual = run(ir.to_proto(prepared), feeds)
        if any(_differs(one, other) for one, other in zip(expected, actual, strict=True)):
            changed.append(case.name)
    assert changed == []
    assert compared > 1300
