from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from collage.testing.onnx_suite import Case, cases, difference, failure, same, with_onnxruntime

A, B = np.array([1.0, 2.0], np.float32), np.array([1.0, 2.5], np.float32)


def case(op_type: str, *data: tuple[Sequence[Any], Sequence[Any]]) -> Case:
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {{y = {op_type} (x)}}'
    return Case(op_type, onnx.parser.parse_model(text), data, 1e-5, 1e-6)


def test_changing_the_model_of_a_case_changes_no_other_callers_case() -> None:
    first = next(cases(("node",)))
    expected = first.model.SerializeToString(deterministic=True)
    first.model.graph.node[0].input[0] = "changed"
    again = next(cases(("node",)))
    assert again.name == first.name
    assert again.model.SerializeToString(deterministic=True) == expected


def test_stored_cases_are_read_with_their_data() -> None:
    found = list(cases(("simple",)))
    assert found and all(each.data and len(each.data[0][1]) == len(each.model.graph.output) for each in found)


@pytest.mark.parametrize(
    ("actual", "expected", "equal"),
    [
        (A, A.copy(), True),
        (A, A + np.float32(1e-7), True),
        (A, B, False),
        (A, A.astype(np.float64), False),
        (A, A.reshape(2, 1), False),
        (np.array([np.nan]), np.array([np.nan]), True),
        (np.array(["a", "b"], object), np.array(["a", "b"]), True),
        (np.array(["a", "b"], object), np.array(["a", "c"]), False),
        ([A, B], [A, B], True),
        ([A, B], [A], False),
        ([A, B], [A, A], False),
        (None, None, True),
        (None, A, False),
        (A, None, False),
    ],
)
def test_the_comparison_is_by_type_shape_and_tolerance(actual: Any, expected: Any, equal: bool) -> None:
    assert same(actual, expected, 1e-5, 1e-6) is equal


def test_a_case_passes_only_if_all_of_its_data_do() -> None:
    right, wrong = ([A], [-A]), ([B], [B])
    assert failure(case("Neg", right), with_onnxruntime) is None
    assert failure(case("Neg", right, wrong), with_onnxruntime) == f"wrong outputs: {-B} for {B}"


def test_an_exception_is_a_failure_with_its_reason() -> None:
    def refuse(model: onnx.ModelProto) -> Any:
        raise ValueError("no\n  such thing")

    assert failure(case("Neg", ([A], [-A])), refuse) == "ValueError: no such thing"


def test_a_difference_names_types_and_shapes_before_values() -> None:
    assert difference([A.reshape(2, 1)], [A]) == "float32[2, 1] for float32[2]"
    assert difference([A, A], [A, B]) == f"{A} for {B}"
    assert difference([A], [A, B]) == "1 outputs for 2"
