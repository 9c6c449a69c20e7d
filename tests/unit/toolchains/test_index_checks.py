"""Sizes that are trusted since they follow from lengths, in kernels too, and ranges that are empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import InputError, Unsupported
from collage.frontend import read_model
from collage.graph import FROM_LENGTHS, DataflowGraph, IndexSet, SubGraph, extract, structural_hash
from collage.testing._explicit_plan import executable_of
from collage.toolchains._index_checks import CheckedModel, with_index_checks
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
    nodes = [helper.make_node("Expand", ["row", "lengths"], ["y"])]
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, ["one", 4])
    given = [_X, row, helper.make_tensor_value_info("lengths", TensorProto.INT64, [3])]
    if shape_of == "x":
        nodes = [
            helper.make_node("Shape", ["x"], ["of_x"]),
            helper.make_node("Concat", ["two", "of_x"], ["lengths"], axis=0),
            *nodes,
        ]
        given = [_X, row]
    return _model(nodes, given, **({"two": [2]} if shape_of == "x" else {}))


def _last_kernel(model: ir.Model) -> ir.Model:
    graph = DataflowGraph(model)
    return extract(graph, SubGraph(graph, IndexSet(1 << len(graph) - 1)), "kernel")


def test_a_kernel_is_given_sizes_that_follow_from_lengths(tmp_path: Path) -> None:
    kernel = _last_kernel(prepare(read_model(_expanded("x"))))
    ir.save(kernel, tmp_path / "kernel.onnx")
    with_index_checks(CheckedModel(ir.load(tmp_path / "kernel.onnx")))
    unnoted = kernel.clone()
    for value in unnoted.graph.inputs:
        value.metadata_props.clear()
    with pytest.raises(Unsupported, match="Expand"):
        with_index_checks(CheckedModel(unnoted))
    assert structural_hash(kernel) != structural_hash(unnoted)


def test_the_notes_of_a_file_are_not_trusted() -> None:
    file = _expanded("an input")
    for value in file.graph.input:
        value.metadata_props.add(key=FROM_LENGTHS, value="+")
    assert "Expand" in str(refusal(prepare(read_model(file)).graph[-1]))
    with pytest.raises(Unsupported, match="Expand"):
        with_index_checks(CheckedModel(_last_kernel(prepare(read_model(file)))))


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


@pytest.mark.parametrize("shift", [2, -2])
def test_indices_that_are_an_input_plus_a_constant_are_checked_as_that_input(shift: int) -> None:
    nodes = [helper.make_node("Add", ["c", "i"], ["j"]), helper.make_node("Gather", ["x", "j"], ["y"])]
    file = _model(nodes, [_given("x", 5, 4), _given("i", 1)], c=[shift])
    assert not with_index_checks(CheckedModel(prepare(read_model(file)))).outputs
    executable, x = executable_of(file, "openvino"), np.arange(20, dtype=np.float32).reshape(5, 4)
    for index in (*range(-8, 9), 2**63 - 1, -(2**63)):
        feeds = {"x": x, "i": np.array([index])}
        if -5 <= index + shift < 5:
            assert executable.run(feeds)["y"].tolist() == x[[index + shift]].tolist()
        else:
            with pytest.raises(InputError, match="beyond"):
                executable.run(feeds)


def test_entries_of_points_are_told_apart_where_they_are_used() -> None:
    nodes = [helper.make_node("Transpose", ["i"], ["t"]), helper.make_node("GatherND", ["x", "t"], ["y"])]
    executable = executable_of(_model(nodes, [_given("x", 9, 2), _given("i", 2, 3)]), "openvino")
    x = np.arange(18, dtype=np.float32).reshape(9, 2)
    assert executable.run({"x": x, "i": np.array([[8, 0, 3], [0, 1, 1]])})["y"].tolist() == [16, 1, 7]
    for row, column, index in ((1, 2, 2), (1, 0, 900), (0, 1, 9)):
        points = np.array([[8, 0, 3], [0, 1, 1]])
        points[row, column] = index
        with pytest.raises(InputError, match="beyond"):
            executable.run({"x": x, "i": points})


@pytest.mark.parametrize(
    "text",
    [
        # A class, of which there are more than boxes.
        """(float[1,1,4] z, float[1,9,1] s, float[4] x) => (float[m] y) {
            n = NonMaxSuppression (z, s, one) i = Slice (n, one, two, one) y = Gather (x, i)
        }""",
        # The number of equal elements.
        "(float[4] x) => (float[m] y) {u, p, q, i = Unique (x) y = Gather (x, i)}",
        # More positions than can be counted on here.
        "(float[n] z, float[20000000] x) => (float[1] y) {i = ArgMax (z) y = Gather (x, i)}",
        # A sum over axes of both operands.
        '(float[5] x, int64[3] z) => (float y) {s = Sign (z) i = Einsum <equation = "i,j->"> (s, s) y = Gather (x, i)}',
        # A product that is longer than any length.
        "(float[5] x, bool c) => (float y) {w = Where (c, a, b) i = Mul (w, w) y = Gather (x, i)}",
        # 140 becomes -116 in 8 bits, and -216 once 100 is taken off.
        "(float[50] x, int64[2] j) => (float[2] y) {k = Cast <to=3> (j) l = Cast <to=7> (k) i = Sub (l, h) y = Gather (x, i)}",
    ],
)
def test_indices_that_may_be_beyond_their_tensor_are_checked_as_computed(text: str) -> None:
    file = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    known = {"a": 65536, "b": 65535, "h": 100, "one": [1], "two": [2]}
    file.graph.initializer.extend(numpy_helper.from_array(np.array(each), name) for name, each in known.items())
    assert with_index_checks(CheckedModel(prepare(read_model(file)))).outputs


@pytest.mark.parametrize(
    ("data", "conditions", "axis", "taken"),
    [
        ("4", "4", "<axis = 0>", True),
        ("4,2", "2", "<axis = -1>", True),
        ("4,2", "3", "<axis = 1>", False),
        ("n,2", "n", "<axis = 0>", True),
        ("n,2", "m", "<axis = 0>", False),
        ("4,2", "8", "", True),
        ("4,2", "9", "", False),
        ("n", "n", "", True),
        ("n,2", "n", "", False),
    ],
)
def test_more_conditions_than_elements_are_refused(data: str, conditions: str, axis: str, taken: bool) -> None:
    text = f"g (float[{data}] x, bool[{conditions}] c) => (float[a] y) {{y = Compress {axis} (x, c)}}"
    model = prepare(read_model(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')))
    assert (refusal(model.graph[-1]) is None) == taken


def test_points_along_no_axis_are_refused() -> None:
    file = _model([helper.make_node("GatherND", ["x", "i"], ["y"])], [_given("x", 2, 3), _given("i", 2, 0)])
    with pytest.raises(Unsupported, match="no axis"):
        with_index_checks(CheckedModel(prepare(read_model(file))))


def _given(name: str, *shape: int) -> onnx.ValueInfoProto:
    kind = TensorProto.INT64 if name == "i" else TensorProto.FLOAT
    return helper.make_tensor_value_info(name, kind, shape)
