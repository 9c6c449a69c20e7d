"""Sizes that are trusted since they follow from lengths, in kernels too, and ranges that are empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import Unsupported
from collage.frontend import read_model
from collage.graph import FROM_LENGTHS, DataflowGraph, IndexSet, SubGraph, extract, structural_hash
from collage.testing._explicit_plan import executable_of
from collage.toolchains._index_checks import with_index_checks
from collage.toolchains._index_uses import refusal
from collage.toolchains.openvino.toolchain import OpenVinoToolchain
from collage.transform import prepare

_X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])


def _model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **weights: list[int]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in weights.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "sizes", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _expanded(shape_of: str) -> onnx.ModelProto:
    """A row that is expanded to the lengths of ``x``, or to lengths that are an input."""
    nodes = [helper.make_node("Expand", ["x", "lengths"], ["y"])]
    given = [_X, helper.make_tensor_value_info("lengths", TensorProto.INT64, [3])]
    if shape_of == "x":
        nodes = [
            helper.make_node("Shape", ["x"], ["of_x"]),
            helper.make_node("Concat", ["two", "of_x"], ["lengths"], axis=0),
            *nodes,
        ]
        given = [_X]
    return _model(nodes, given, **({"two": [2]} if shape_of == "x" else {}))


def _last_kernel(model: ir.Model) -> ir.Model:
    graph = DataflowGraph(model)
    return extract(graph, SubGraph(graph, IndexSet(1 << len(graph) - 1)), "kernel")


def test_a_kernel_is_given_sizes_that_follow_from_lengths(tmp_path: Path) -> None:
    kernel = _last_kernel(prepare(read_model(_expanded("x"))))
    ir.save(kernel, tmp_path / "kernel.onnx")
    with_index_checks(ir.load(tmp_path / "kernel.onnx"))
    unnoted = kernel.clone()
    for value in unnoted.graph.inputs:
        value.metadata_props.clear()
    with pytest.raises(Unsupported, match="Expand"):
        with_index_checks(unnoted)
    assert structural_hash(kernel) != structural_hash(unnoted)


def test_the_notes_of_a_file_are_not_trusted() -> None:
    file = _expanded("an input")
    for value in file.graph.input:
        value.metadata_props.add(key=FROM_LENGTHS, value="+")
    assert "Expand" in str(refusal(prepare(read_model(file)).graph[-1]))
    with pytest.raises(Unsupported, match="Expand"):
        with_index_checks(_last_kernel(prepare(read_model(file))))


@pytest.mark.parametrize("target", ["llvm", "openvino"])
def test_a_range_that_ends_before_it_starts_is_empty(target: str) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], end=1),
        helper.make_node("Sub", ["n", "five"], ["end1"]),
        helper.make_node("Squeeze", ["end1"], ["end"]),
        helper.make_node("Range", ["none", "end", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    model = _model(nodes, [_X], five=[5])
    model.graph.initializer.extend(numpy_helper.from_array(np.array(k), name) for k, name in ((0, "none"), (1, "one")))
    try:
        executable = executable_of(model, target)
    except Unsupported:
        assert target == "llvm"
        return
    for n in (7, 5, 2):
        (made,) = executable.run({"x": np.zeros((n, 4), np.float32)}).values()
        assert made.tolist() == list(range(n - 5))


def test_openvino_is_given_no_number_of_largest_elements_that_is_computed() -> None:
    # For a number of 0 it raises an error, and the second one corrupts the memory of the process.
    number = helper.make_tensor_value_info("k", TensorProto.INT64, [1])
    file = _model([helper.make_node("TopK", ["x", "k"], ["y", "places"], axis=0)], [_X, number])
    assert "TopK" in str(refusal(prepare(read_model(file)).graph[-1], OpenVinoToolchain.checks_sizes_of))
