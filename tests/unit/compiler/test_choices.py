"""Choices for single operators: names in the model, and patterns of names."""

from __future__ import annotations

import pytest
from onnx import helper
from tests.unit.runtime.test_control_flow import counting_loop, model_of, value

from collage._errors import UsageError
from collage.compiler.choices import Choices
from collage.frontend import read_model
from collage.graph import DataflowGraph, SubGraph
from collage.runtime import BODIES_TARGET
from collage.target import Target
from collage.transform import prepare

LEFT = Target.parse("llvm -compiler=left")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("layers[0]/relu", {"layers[0]/relu"}),
        ("layers[0]/*", {"layers[0]/relu"}),
        ("layers?/*", {"layers0/erf"}),
        ("layers*", {"layers[0]/relu", "layers0/erf"}),
        ("Erf", {"layers0/erf"}),
    ],
)
def test_brackets_in_names_stand_for_themselves(pattern: str, names: set[str]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "layers[0]/relu"),
        helper.make_node("Erf", ["a"], ["y"], "layers0/erf"),
    ]
    graph = DataflowGraph(prepare(read_model(model_of(nodes, [value("x")], [value("y")]))))
    choices = Choices.of(graph, [LEFT], [f"{pattern}:left"], [f"left:{pattern}"])
    for (choice,) in (choices.forced, choices.forbidden):
        assert {node.name for i, node in enumerate(graph.nodes) if choice.bits >> i & 1} == names
    with pytest.raises(UsageError, match="no operator"):
        Choices.of(graph, [LEFT], ["layers[1]*:left"], [])


def test_what_a_target_may_not_run_it_may_not_run_in_a_body_either() -> None:
    graph = DataflowGraph(prepare(read_model(counting_loop())))
    loop = next(i for i, node in enumerate(graph.nodes) if node.name == "loop")
    for inner in ("squash", "gr*"):
        choices = Choices.of(graph, [LEFT], [], [f"left:{inner}"])
        assert choices.forbidden[0].bits == 1 << loop
        assert not choices.allows(SubGraph(graph, [loop]), LEFT)
        assert choices.allows(SubGraph(graph, [loop]), BODIES_TARGET)
        with pytest.raises(UsageError, match="no operator"):
            Choices.of(graph, [LEFT], [f"{inner}:left"], [])
