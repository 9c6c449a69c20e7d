from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx.parser

from benchmarks._batched_cases import grouped
from benchmarks._vendors import reference_case
from benchmarks.conformance import attempts, with_symbols
from collage.testing.onnx_suite import Case


def case(op_type: str, expected: Any, opset: int = 18) -> Any:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2] x) => (float[2] y) {{y = {op_type} (x)}}'
    data = [([np.array([1.0, 4.0], np.float32)], [np.array(expected, np.float32)])]
    return Case(f"{op_type}{opset}", onnx.parser.parse_model(text), data, 1e-5, 1e-6)


def test_cases_of_the_same_operators_are_joined_where_taken() -> None:
    neg, abs_, sqrt = (case(name, [0, 0]) for name in ("Neg", "Abs", "Sqrt"))
    older, refused = case("Neg", [0, 0], opset=13), case("Floor", [0, 0])
    groups = list(grouped([neg, older, refused, abs_, sqrt], 2, {"Neg18", "Neg13", "Abs18", "Sqrt18"}))
    assert [[each.name for each in group] for group in groups] == [
        ["Floor18"],
        ["Neg18", "Abs18"],
        ["Neg13"],
        ["Sqrt18"],
    ]


def test_lengths_of_the_first_input_get_names_and_results_none() -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2,1,2] x, float[2] z) => (float[2,1,2] y) {y = Add (x, z)}'
    fixed = Case("Add", onnx.parser.parse_model(text), [], 1e-5, 1e-6)
    symbolic = with_symbols(fixed)
    named = symbolic.model.graph
    assert [dim.dim_param or dim.dim_value for dim in lengths_of(named.input)] == ["d2", 1, "d2", 2]
    assert [dim.WhichOneof("value") for dim in lengths_of(named.output)] == [None] * 3
    assert [dim.dim_value for dim in lengths_of(fixed.model.graph.input)] == [2, 1, 2, 2]
    assert symbolic.name != fixed.name


def lengths_of(values: Iterable[onnx.ValueInfoProto]) -> list[Any]:
    return [dim for value in values for dim in value.type.tensor_type.shape.dim]


def test_one_wrong_or_failing_case_costs_its_group_nothing() -> None:
    group = [
        case("Neg", [-1, -4]),
        case("Sqrt", [1, 3]),
        case("Abs", [1, 4]),
        case("Floor", [1, 4]),
    ]
    asked: list[int] = []

    def no_floor(model: onnx.ModelProto) -> Any:
        asked.append(len(model.graph.node))
        if any(node.op_type == "Floor" for node in model.graph.node):
            raise ValueError("no Floor")
        return reference_case(model)

    found = attempts([no_floor], group)
    assert [how for how, _ in found] == ["right", "wrong", "right", "failed"]
    assert asked == [4, 2, 1, 1, 2, 1, 1]


def test_what_the_second_way_gets_right_is_right() -> None:
    def never(model: onnx.ModelProto) -> Any:
        raise ValueError("never")

    group = [case("Neg", [-1, -4]), case("Abs", [1, 4])]
    assert attempts([never, reference_case], group) == [("right", "")] * 2
