from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(import_module("benchmarks.zoo").__path__[0]).parent)
    return import_module("benchmarks.coverage")


def case(coverage: ModuleType, op_type: str, expected: Any, opset: int = 18) -> Any:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2] x) => (float[2] y) {{y = {op_type} (x)}}'
    data = [([np.array([1.0, 4.0], np.float32)], [np.array(expected, np.float32)])]
    return coverage.Case(f"{op_type}{opset}", onnx.parser.parse_model(text), data, 1e-5, 1e-6)


def test_cases_of_the_same_operators_are_joined_where_taken(coverage: ModuleType) -> None:
    neg, abs_, sqrt = (case(coverage, name, [0, 0]) for name in ("Neg", "Abs", "Sqrt"))
    older, refused = case(coverage, "Neg", [0, 0], opset=13), case(coverage, "Floor", [0, 0])
    groups = list(coverage.grouped([neg, older, refused, abs_, sqrt], 2, {"Neg18", "Neg13", "Abs18", "Sqrt18"}))
    assert [[each.name for each in group] for group in groups] == [
        ["Floor18"],
        ["Neg18", "Abs18"],
        ["Neg13"],
        ["Sqrt18"],
    ]


def test_lengths_of_the_first_input_get_names_and_results_none(coverage: ModuleType) -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2,1,2] x, float[2] z) => (float[2,1,2] y) {y = Add (x, z)}'
    fixed = coverage.Case("Add", onnx.parser.parse_model(text), [], 1e-5, 1e-6)
    symbolic = coverage.with_symbols(fixed)
    named = symbolic.model.graph
    assert [dim.dim_param or dim.dim_value for dim in lengths_of(named.input)] == ["d2", 1, "d2", 2]
    assert [dim.WhichOneof("value") for dim in lengths_of(named.output)] == [None] * 3
    assert [dim.dim_value for dim in lengths_of(fixed.model.graph.input)] == [2, 1, 2, 2]
    assert symbolic.name != fixed.name


def lengths_of(values: Iterable[onnx.ValueInfoProto]) -> list[Any]:
    return [dim for value in values for dim in value.type.tensor_type.shape.dim]


def test_one_wrong_or_failing_case_costs_its_group_nothing(coverage: ModuleType) -> None:
    group = [
        case(coverage, "Neg", [-1, -4]),
        case(coverage, "Sqrt", [1, 3]),
        case(coverage, "Abs", [1, 4]),
        case(coverage, "Floor", [1, 4]),
    ]
    asked: list[int] = []

    def no_floor(model: onnx.ModelProto) -> Any:
        asked.append(len(model.graph.node))
        if any(node.op_type == "Floor" for node in model.graph.node):
            raise ValueError("no Floor")
        return coverage.reference_itself(model)

    found = coverage.attempts([no_floor], group)
    assert [how for how, _ in found] == ["right", "wrong", "right", "failed"]
    assert asked == [4, 2, 1, 1, 2, 1, 1]


def test_what_the_second_way_gets_right_is_right(coverage: ModuleType) -> None:
    def never(model: onnx.ModelProto) -> Any:
        raise ValueError("never")

    group = [case(coverage, "Neg", [-1, -4]), case(coverage, "Abs", [1, 4])]
    assert coverage.attempts([never, coverage.reference_itself], group) == [("right", "")] * 2
