"""A model whose units round to 8 bits by a switch, against copies in which other units are kept in float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from tests.calibrated import calibrated

from collage._errors import Unsupported
from collage.compiler.switched_rounding import _STYLE, RoundedRuns, with_switches
from collage.graph import copy_model, keep_in_float
from collage.numerics.value_store import ValueStore
from collage.testing._toolchain_kernels import kernel
from collage.toolchains.sdk.int8_model import in_int8

TEXT = """(float[1, 3, 8, 8] x) => (float[1, 5] y, float[1, 4, 8, 8] b)
<float[4, 3, 3, 3] w0, float[4, 4, 3, 3] w1, float[4] b1, float[4, 5] w2, float[5] b2> {
    a = Conv <pads = [1, 1, 1, 1]> (x, w0)
    r = Relu (a)
    b = Conv <pads = [1, 1, 1, 1]> (r, w1, b1)
    s = Add (b, r)
    p = GlobalAveragePool (s)
    f = Flatten (p)
    m = MatMul (f, w2)
    y = Add (m, b2)
}"""


def numbers(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = numbers(1, 3, 8, 8, seed=9)


@pytest.fixture
def model(tmp_path: Path) -> ir.Model:
    shapes = {"w0": (4, 3, 3, 3), "w1": (4, 4, 3, 3), "b1": (4,), "w2": (4, 5), "b2": (5,)}
    weights = {name: numbers(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return calibrated(kernel("k", TEXT, weights), [{"x": X}], tmp_path)


def units(model: ir.Model) -> dict[str, int]:
    """A convolution or product, and what follows it."""
    found, unit = {}, -1
    for node in model.graph:
        unit += node.op_type in ("Conv", "MatMul")
        found[str(node.name)] = unit
    return found


def run(model: ir.Model, **feeds: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("chosen", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_a_switch_rounds_what_a_copy_rounds(model: ir.Model, chosen: tuple[int, ...]) -> None:
    unit_of = units(model)
    made, name = with_switches(model, unit_of, 3)
    expected = model
    if chosen:
        kept = copy_model(model)
        for node in kept.graph:
            if unit_of[str(node.name)] not in chosen:
                keep_in_float(node)
        expected = in_int8(kept, _STYLE)
    switches = np.array([unit in chosen for unit in range(3)])
    for told, wanted in zip(run(made, x=X, **{name: switches}), run(expected, x=X), strict=True):
        np.testing.assert_allclose(told, wanted, rtol=1e-5, atol=1e-6)


def test_one_process_answers_for_all_choices(model: ir.Model, tmp_path: Path) -> None:
    asked = ValueStore(tmp_path / "asked")
    asked.put_input("x", X)
    asked.flush()
    exact, rounded = run(model, x=X)[0], run(in_int8(model, _STYLE), x=X)[0]
    with RoundedRuns(model, units(model), 3, tmp_path) as runs:
        for chosen, wanted in (((), exact), (range(3), rounded), ((), exact)):
            goal = tmp_path / f"answer{len(chosen)}"
            runs.with_units(chosen).call("answer", 60.0, values=[str(asked.folder)], into=[str(goal)])
            np.testing.assert_allclose(ValueStore(goal).get("y"), wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(exact, rounded, rtol=1e-5)


def test_a_model_without_products_is_refused(tmp_path: Path) -> None:
    relu = calibrated(
        kernel("k", "(float[4] x) => (float[4] y) { y = Relu (x) }", {}), [{"x": numbers(4, seed=0)}], tmp_path
    )
    with pytest.raises(Unsupported, match="profits"):
        with_switches(relu, {}, 1)
