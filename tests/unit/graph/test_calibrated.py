"""Ranges and precisions noted in a model: what keeps them, and what they change."""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph import (
    NODE_PRECISION,
    VALUE_RANGE,
    DataflowGraph,
    IndexSet,
    KernelSpec,
    SubGraph,
    drop_precisions,
    extract,
    kernel_model,
    kernels_of,
    partition,
    set_value_range,
    stays_float,
    structural_hash,
    value_range,
)
from collage.measure.kernel_factory import KernelMaker
from collage.target import Target

from .random_graphs import Builder, random_model

SEEDS = st.integers(0, 10_000)


def with_ranges(model: ir.Model) -> ir.Model:
    """A range of its own for every value that varies."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for i, value in enumerate(values):
        set_value_range(value, -i - 0.1, i / 3)
    return model


def ranges_of(model: ir.Model) -> dict[str, tuple[float, float] | None]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return {str(value.name): value_range(value) for value in values}


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_kernels_have_the_ranges_of_the_model(seed):
    plain, model = random_model(seed, 10), with_ranges(random_model(seed, 10))
    known = ranges_of(model)
    graph, plain_graph = DataflowGraph(model), DataflowGraph(plain)
    everything = IndexSet((1 << len(graph)) - 1)
    kernel = extract(graph, SubGraph(graph, everything), "k")
    assert ranges_of(kernel) == {name: known[name] for name in ranges_of(kernel)}
    assert structural_hash(kernel) == structural_hash(extract(plain_graph, SubGraph(plain_graph, everything), "k"))
    read = ir.from_proto(ir.to_proto(kernel))
    assert ranges_of(read) == ranges_of(kernel)


def pair_of_layers() -> tuple[ir.Model, DataflowGraph]:
    """Two equal layers of two operators each, one after the other."""
    b = Builder()
    x = given = b.input("x")
    for _ in range(2):
        x = b.op("Tanh", b.op("Neg", x))
    model = b.model([given], [x])
    return model, DataflowGraph(model)


@pytest.mark.parametrize("shared", [False, True])
def test_a_partitioned_model_keeps_the_ranges_of_each_kernel(shared, tmp_path: Path):
    model, graph = pair_of_layers()
    with_ranges(model)
    if shared:
        for i in range(4):
            set_value_range(graph.node(i).outputs[0], -1.0, 1.0)
    specs = [KernelSpec(SubGraph(graph, IndexSet(3 << 2 * i)), f"layer_{i}", {"target": "llvm"}) for i in range(2)]
    expected = [ranges_of(extract(graph, spec.sub_graph, spec.name)) for spec in specs]
    ir.save(partition(model, specs), tmp_path / "partitioned.onnx")
    read = ir.load(tmp_path / "partitioned.onnx")
    calls = kernels_of(read)
    found = [list(ranges_of(kernel_model(read, call.node, call.node.name)).values()) for call in calls]
    assert found == [list(ranges.values()) for ranges in expected]
    assert len({call.function.name for call in calls}) == (1 if shared else 2)


def test_a_precision_is_part_of_the_structure_of_reduced_kernels_alone():
    _, graph = pair_of_layers()
    everything = SubGraph(graph, IndexSet(15))
    plain = extract(graph, everything, "k")
    graph.node(1).metadata_props[NODE_PRECISION] = "float32"
    marked = extract(graph, everything, "k")
    assert [stays_float(node) for node in marked.graph] == [False, True, False, False]
    assert structural_hash(marked) != structural_hash(plain)
    maker = KernelMaker(graph)
    int8, f32 = (
        maker.model(everything, Target.parse(text))
        for text in ("llvm -compiler=onnxruntime -precision=int8", "llvm -compiler=onnxruntime")
    )
    assert structural_hash(int8) == structural_hash(marked)
    assert structural_hash(f32) == structural_hash(plain)
    drop_precisions(marked)
    assert structural_hash(marked) == structural_hash(plain)
    assert stays_float(graph.node(1)), "the model keeps its note"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-1.5 2", (-1.5, 2.0)),
        ("", None),
        ("1", None),
        ("1 2 3", None),
        ("low high", None),
        ("inf -inf", (math.inf, -math.inf)),
    ],
)
def test_ranges_are_read_from_untrusted_text(text: str, expected: tuple[float, float] | None):
    value = ir.Value(name="v")
    assert value_range(value) is None
    value.metadata_props[VALUE_RANGE] = text
    assert value_range(value) == expected


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_ranges_come_back_as_they_were_noted(low: float, high: float):
    value = ir.Value(name="v")
    set_value_range(value, low, high)
    assert value_range(value) == (low, high)
