"""Shapes that are computed in chains become constants, or short; the reference computes the same at every length."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from collage.frontend import read_model
from collage.transform import FoldLengths, InferType, PassContext, Sequential, prepare

NUMBERS = (
    "zero = Constant <value_int = 0> () one = Constant <value_int = 1> () two = Constant <value_int = 2> () "
    "l0 = Constant <value_ints = [0]> () l1 = Constant <value_ints = [1]> () minus = Constant <value_ints = [-1]> () "
    "s = Shape (x) b = Gather (s, zero) n = Gather (s, one) ub = Unsqueeze (b, l0) un = Unsqueeze (n, l0) "
)


def folded(body: str, x: str = "float[B,N,6] x", y: str = "float[P,Q,R] y") -> tuple[onnx.ModelProto, ir.Model]:
    text = f'<ir_version: 10, opset_import: ["" : 18]> g ({x}) => ({y}) {{{NUMBERS}{body}}}'
    proto = onnx.parser.parse_model(text)
    with PassContext(opt_level=3):
        return proto, prepare(read_model(proto))


def assert_same(before: onnx.ModelProto, after: ir.Model, inputs: dict[str, Any]) -> None:
    proto = ir.to_proto(after)
    onnx.checker.check_model(proto, full_check=True)
    for want, got in zip(*(ReferenceEvaluator(m).run(None, inputs) for m in (before, proto)), strict=True):
        assert want.shape == got.shape
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got)


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        ("t = Concat <axis = 0> (ub, un, minus, two1) y = Reshape (x, t)", "Shape Gather Unsqueeze Concat"),
        ("y = Slice (x, l0, un, l1)", "Shape Gather Slice"),
        ("h = Div (six, two) uh = Unsqueeze (h, l0) y = Slice (x, l0, uh, two1)", "Div Unsqueeze"),
        (
            "i = Constant <value_ints = [1, -1, -1]> () t = Concat <axis = 0> (minus, un, minus) e = Equal (t, minus) "
            "o = Constant <value_ints = [1, 1, 1]> () w = Where (e, o, t) y = Expand (x, w)",
            "Shape Equal Where Expand",
        ),
        (
            "t = Concat <axis = 0> (ub, two1, un, six1) u = Unsqueeze (x, l1) y = Expand (u, t)",
            "Shape Gather Concat",
        ),
        ("c = Equal (n, minus1) y = If (c) <then_branch = t () => (float[P,Q,R] p) {p = Neg (x)}, "
         "else_branch = e () => (float[P,Q,R] q) {q = Abs (x)}>", "If Equal Neg"),
    ],
)  # fmt: skip
def test_rules(body: str, gone: str) -> None:
    more = (
        "two1 = Constant <value_ints = [2]> () three = Constant <value_ints = [3]> () six1 = Constant <value_ints = [6]> () "
        "six = Constant <value_int = 6> () minus1 = Constant <value_int = -1> () "
    )
    rank = 4 if "two1, un, six1" in body or "minus, two1)" in body else 3
    before, after = folded(more + body, y=f"float[{','.join('PQRS'[:rank])}] y")
    left = Counter(node.op_type for node in after.graph)
    assert not [kind for kind in gone.split() if left[kind]], left
    for shape in ((2, 3, 6), (1, 1, 6), (3, 2, 6)):
        assert_same(before, after, {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)})


def test_a_range_between_lengths_counts_from_0() -> None:
    """A decoder counts from the past's length up to all; tokens of another name are what lies between."""
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> g (float[B,P] past, float[B,S] x) => (int64[S] y, int64[T] all) {'
        "one = Constant <value_int = 1> () zero = Constant <value_int = 0> () sp = Shape (past) sx = Shape (x) "
        "p = Gather (sp, one) s = Gather (sx, one) t = Add (p, s) r = Range (p, t, one) y = Neg (r) "
        "a = Range (zero, t, one) all = Neg (a)}"
    )
    before = onnx.parser.parse_model(text)
    after = prepare(read_model(before))
    ranges = [node for node in after.graph if node.op_type == "Range"]
    assert len(ranges) == 2
    assert all(node.inputs[0] is not None and node.inputs[0].const_value is not None for node in ranges)
    lengths = {str(dim) for value in after.graph.outputs for dim in value.shape or ()}
    assert lengths == {"S", "P + S"} or lengths == {"S", "T"}
    for past, new in ((3, 2), (0, 4), (2, 0), (0, 0)):
        assert_same(before, after, {"past": np.zeros((1, past), np.float32), "x": np.zeros((1, new), np.float32)})


def test_a_quotient_is_a_number_from_before() -> None:
    """Heads are joined with samples, and divided again; of no samples a quotient may be anything."""
    body = (
        "eight = Constant <value_int = 8> () eights = Constant <value_ints = [8]> () j = Mul (b, eight) uj = Unsqueeze (j, l0) "
        "q = Div (j, eight) uq = Unsqueeze (q, l0) t = Concat <axis = 0> (uq, eights, minus) z = Expand (c, uj) "
        "y = Reshape (z, t)"
    )
    before, after = folded(body, x="float[B,N,6] x, float[1] c")
    assert "Div" not in {node.op_type for node in after.graph}
    for samples in (1, 3):
        assert_same(before, after, {"x": np.ones((samples, 2, 6), np.float32), "c": np.ones(1, np.float32)})


def test_a_tile_as_often_as_a_length_says() -> None:
    """Relative positions are repeated for each sample; a Tile by numbers, or of a free length, stays."""
    for tile, is_left in (
        ("one1 = Unsqueeze (x, l0) t = Concat <axis = 0> (ub, l1, l1, l1) y = Tile (one1, t)", False),
        ("z = Reshape (c, four) t = Concat <axis = 0> (ub, l1) y = Tile (z, t)", False),
        ("z = Reshape (c, four) t = Concat <axis = 0> (l1, ub) y = Tile (z, t)", True),
    ):
        rank = 4 if "one1" in tile else 2
        body = "four = Constant <value_ints = [2, 2]> () " + tile
        before, after = folded(body, x="float[B,N,6] x, float[4] c", y=f"float[{','.join('PQRS'[:rank])}] y")
        assert ("Tile" in {node.op_type for node in after.graph}) == is_left
        for shape in ((2, 3, 6), (1, 1, 6), (3, 2, 6)):
            x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            assert_same(before, after, {"x": x, "c": np.arange(4, dtype=np.float32)})


@pytest.mark.parametrize("is_first", [True, False])
def test_branches(is_first: bool) -> None:
    """Exporters of decoders put two whole models into the branches of an If."""
    shape = "i = Constant <value_ints = [1, -1, -1]> () e = Equal (i, minus) o = Constant <value_ints = [1, 1, 1]> ()"
    body = (
        f"y = If (c) <then_branch = t () => (float[P,Q,R] p) {{{shape} w = Where (e, o, s) p = Expand (x, w)}}, "
        "else_branch = f () => (float[P,Q,R] q) {r = Concat <axis = 0> (ub, un, minus) q = Reshape (x, r)}>"
    )
    before, after = folded(body, x="float[B,N,6] x, bool c")
    assert not {node.op_type for node in after.graph.all_nodes()} & {"Shape", "Gather", "Concat", "Where"}
    for shape_ in ((2, 3, 6), (1, 1, 6)):
        x = np.arange(np.prod(shape_), dtype=np.float32).reshape(shape_)
        assert_same(before, after, {"x": x, "c": np.asarray(is_first)})


def test_what_depends_on_data_stays() -> None:
    before, after = folded(
        "t = Cast <to = 7> (c) y = Reshape (x, t)", x="float[B,N,6] x, int32[3] c", y="float[P,Q,R] y"
    )
    assert any(node.op_type == "Reshape" for node in after.graph)
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 6)
    assert_same(before, after, {"x": x, "c": np.asarray([2, 3, 2], np.int32)})


@pytest.mark.parametrize(
    "body",
    [
        "y = Slice (x, l0, un, l0)",
        "y = Slice (x, l1, un, l1)",
        # The last three of fewer are not three: the start is counted from the end then.
        "three = Constant <value_ints = [3]> () m = Sub (un, three) z = Slice (x, m, un, l1) s3 = Shape (z) "
        "k = Gather (s3, one) uk = Unsqueeze (k, l0) u = Unsqueeze (uk, l0) v = Unsqueeze (u, l0) y0 = Cast <to = 1> (v) "
        "y = Add (y0, x)",
        # The type of another tensor is taken, and not its shape.
        "w = CastLike (r, x) y = Expand (w, s)",
    ],
)
def test_what_may_have_another_length_stays(body: str) -> None:
    given = "float[B,N,6] x, int32[1,N,6] r" if "CastLike" in body else "float[B,N,6] x"
    before, after = folded(body, x=given)
    assert any(node.op_type in ("Slice", "Expand") for node in after.graph)
    for shape in ((5, 2, 6), (2, 5, 6)):
        feeds = {"x": np.ones(shape, np.float32), "r": np.ones((1, *shape[1:]), np.int32)}
        assert_same(before, after, {name: feeds[name] for name in (value.name for value in before.graph.input)})


def test_lengths_of_two_inputs_are_the_same_only_if_their_symbols_are() -> None:
    body = "sz = Shape (z) y = Reshape (x, sz)"
    _, same = folded(body, x="float[B,N,6] x, float[B,N,6] z")
    assert "Shape" not in {node.op_type for node in same.graph}
    before, other = folded(body, x="float[B,N,6] x, float[N,B,6] z")
    assert "Shape" in {node.op_type for node in other.graph}
    assert_same(before, other, {"x": np.ones((2, 3, 6), np.float32), "z": np.ones((3, 2, 6), np.float32)})


def test_products_of_sums_end() -> None:
    """A hostile file squares a sum of lengths many times."""
    squares = "".join(f"q{i + 1} = Mul (q{i}, q{i}) " for i in range(40))
    body = f"q0 = Add (b, n) {squares} uq = Unsqueeze (q40, l0) y = Reshape (x, uq)"
    _, after = folded(body, y="float[P] y")
    assert any(node.op_type == "Reshape" for node in after.graph)


class Program:
    """A random program on the lengths of two inputs.

    Args:
        draw: Hypothesis' source of choices.
    """

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.weights = {f"c{i}": np.asarray(n, np.int64) for i, n in enumerate((0, 1, 2, 3, -1))}
        self.weights |= {f"l{i}": np.asarray([n], np.int64) for i, n in enumerate((0, 1, 2, 5, -1))}
        self.scalars = [name for name in self.weights if name.startswith("c")]
        self.small = list(self.scalars)
        self.lists = [(name, 1) for name in self.weights if name.startswith("l")]
        self.tensors = [("x", 3), ("z", 2)]
        self.lists += [(self.add("Shape", name), rank) for name, rank in self.tensors]

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def compute(self) -> None:
        """Add an operator on numbers, or lists of them."""
        (one, length), (other, more) = self.pick(self.lists), self.pick(self.lists)
        kind = self.pick(
            ("Add", "Sub", "Mul", "Gather", "Unsqueeze", "Concat", "Slice", "Where", "Div", "Cast", "Max", "Neg")
        )
        if kind in ("Add", "Sub", "Mul", "Max"):
            kind = kind if kind != "Max" else self.pick(("Max", "Min"))
            self.scalars.append(self.add(kind, self.pick(self.scalars), self.pick(self.scalars)))
            self.lists.append((self.add(kind, one, self.pick(self.scalars)), length))
        elif kind == "Gather" and length:
            place = self.pick([name for name, n in (("c0", 1), ("c1", 2), ("c4", 1)) if n <= length])
            self.scalars.append(self.add("Gather", one, place))
        elif kind == "Unsqueeze":
            self.lists.append((self.add("Unsqueeze", self.pick(self.scalars), "l0"), 1))
        elif kind == "Concat":
            self.lists.append((self.add("Concat", one, other, axis=0), length + more))
        elif kind == "Slice":
            self.lists.append((self.add("Slice", one, "l0", "l1"), min(length, 1)))
        elif kind == "Where":
            condition = self.add("Equal", one, self.pick(("l1", "l4", "c4", "c0")))
            self.lists.append((self.add("Where", condition, self.pick(self.scalars), one), length))
        elif kind == "Div":
            self.scalars.append(self.add("Div", self.pick(self.scalars), self.pick(("c2", "c3"))))
        elif kind == "Cast":
            narrow = self.add("Cast", one, to=TensorProto.INT32)
            self.lists.append((self.add("Cast", narrow, to=TensorProto.INT64), length))
        else:
            self.scalars.append(self.add("Neg", self.add("ReduceProd", one, keepdims=0)))

    def change(self) -> None:
        """Add an operator on a tensor, and its shape."""
        data, rank = self.pick(self.tensors)
        kind = self.pick(("Slice", "Concat", "Unsqueeze", "Transpose", "Expand", "Reshape", "Range", "MatMul"))
        made, dims = data, rank
        if kind == "Slice":
            ends = [self.add("Unsqueeze", self.pick(self.scalars), "l0") for _ in range(2)]
            made = self.add("Slice", data, *ends, self.pick(("l0", "l4")))
        elif kind == "Concat":
            made = self.add("Concat", data, data, axis=rank - 1)
        elif kind == "Unsqueeze" and rank < 5:
            made, dims = self.add("Unsqueeze", data, self.pick(("l0", "l4"))), rank + 1
        elif kind == "Transpose":
            made = self.add("Transpose", data)
        elif kind == "Expand":
            made = self.add("Expand", data, self.add("Shape", data))
        elif kind == "Reshape":
            made = self.add("Reshape", data, self.add("Shape", data))
        elif kind == "Range":
            length = self.add("Gather", self.add("Shape", data), "c0")
            made, dims = self.add("Range", self.pick((*self.small, length)), length, "c1"), 1
        elif rank > 1:
            turned = self.add("Transpose", data, perm=[*range(rank - 2), rank - 1, rank - 2])
            made = self.add("MatMul", data, turned)
        if kind != "Range":
            self.tensors.append((made, dims))
        self.lists.append((self.add("Shape", made), dims))

    def model(self) -> onnx.ModelProto:
        """The program; all numbers that it computes are outputs, those of short lists one by one too."""
        for place in ("c0", "c1", "c2"):
            self.scalars += [self.add("Gather", name, place) for name, n in self.lists if int(place[1]) < n]
        results = [*((name, 0) for name in self.scalars), *((name, 1) for name, _ in self.lists)]
        outputs = [
            helper.make_tensor_value_info(self.add("Identity", name), TensorProto.INT64, [f"o{i}"] * rank)
            for i, (name, rank) in enumerate(results)
        ]
        inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "N", 6]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", "B + N"]),
        ]
        weights = [onnx.numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=50, deadline=None)
def test_random_programs(data: st.DataObject) -> None:
    program = Program(data.draw)
    for is_of_tensors in data.draw(st.lists(st.booleans(), min_size=4, max_size=16)):
        (program.change if is_of_tensors else program.compute)()
    before = program.model()
    after = Sequential([InferType(), FoldLengths(), InferType(), FoldLengths()])(read_model(before))
    for b, n in ((2, 3), (1, 1), (0, 2), (3, 0), (4, 1)):
        assert_same(before, after, {"x": np.zeros((b, n, 6), np.float32), "z": np.zeros((n, b + n), np.float32)})
