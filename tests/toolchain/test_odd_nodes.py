"""Whatever a node looks like, a toolchain says yes or no, and why not; a kernel of it is right, or refused."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from collage._errors import Unsupported
from collage.target import Target
from collage.toolchains import LoadOptions, Toolchain
from collage.toolchains.host.toolchain import HostToolchain
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.openvino.toolchain import OpenVinoToolchain
from collage.toolchains.tvm.toolchain import TvmToolchain

TOOLCHAINS = [OnnxRuntimeToolchain(), OpenVinoToolchain(), HostToolchain()]
SLOW_BUILDERS = [TvmToolchain()]
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
DTYPES = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED]
SHAPES = st.none() | st.lists(st.sampled_from([0, 1, 3, "N", None, 2**40]), max_size=4).map(ir.Shape)


@st.composite
def values(draw: st.DrawFn, name: str) -> ir.Value:
    """A value of any type or none, any shape or none, sometimes a constant."""
    tensor = st.sampled_from(DTYPES).map(ir.TensorType)
    kinds = st.none() | tensor | tensor.map(ir.SequenceType) | tensor.map(ir.OptionalType)
    value = ir.Value(name=name, type=draw(kinds), shape=draw(SHAPES))
    if draw(st.booleans()):
        array = np.zeros(draw(st.sampled_from([(), (0,), (2,), (2, 3)])), draw(st.sampled_from(["f", "d", "q", "?"])))
        value.const_value = ir.Tensor(array, name=name)
    return value


ATTRIBUTES = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda n: ("axis", n)),
    st.lists(st.integers(-3, 3), max_size=5).map(lambda sizes: ("kernel_shape", sizes)),
    st.lists(st.integers(-3, 3), max_size=5).map(lambda axes: ("axes", axes)),
    st.lists(st.integers(-3, 3), max_size=5).map(lambda order: ("perm", order)),
    st.sampled_from(["", "cubic", "SAME_UPPER", "ü"]).map(lambda mode: ("mode", mode)),
    st.floats(width=32).map(lambda alpha: ("alpha", alpha)),
    st.integers(-5, 30).map(lambda to: ("to", to)),
)


@st.composite
def nodes(draw: st.DrawFn) -> ir.Node:
    """A node of any operator, with inputs left out, wrong attributes, and perhaps no graph around it."""
    inputs = [draw(st.none() | values(f"x{i}")) for i in range(draw(st.integers(0, 5)))]
    outputs = [draw(values(f"y{i}")) for i in range(draw(st.integers(1, 3)))]
    attributes = dict(draw(st.lists(ATTRIBUTES, max_size=3)))
    node = ir.Node(
        draw(st.sampled_from(["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "collage"])),
        draw(st.sampled_from([*OPERATORS, "NoSuchOperator"])),
        inputs,
        [ir.convenience.convert_attribute(name, value) for name, value in attributes.items() if value != []],
        outputs=outputs,
        version=draw(st.sampled_from([None, 1, 13, 99])),
    )
    if draw(st.booleans()):
        given_values = [value for value in inputs if value is not None]
        imports = {"": draw(st.sampled_from([1, 13, 21, 99]))}
        ir.Graph(given_values, outputs, nodes=[node], opset_imports=imports, name=draw(st.sampled_from(["k", None])))
    return node


@settings(max_examples=50, deadline=None)
@given(node=nodes())
@pytest.mark.parametrize("toolchain", TOOLCHAINS + SLOW_BUILDERS, ids=lambda t: t.name)
def test_support_is_told_of_any_node(toolchain: Toolchain, node: ir.Node) -> None:
    for stem in toolchain.targets:
        found = toolchain.supports(node, Target.parse(stem))
        assert found.ok is (found.reason is None)
        assert found.ok or (found.reason and "\n" not in found.reason)


@pytest.mark.parametrize("toolchain", TOOLCHAINS + SLOW_BUILDERS, ids=lambda t: t.name)
def test_support_is_told_where_an_attribute_is_of_any_type(toolchain: Toolchain) -> None:
    target = Target.parse(toolchain.targets[0])
    for schema in onnx.defs.get_all_schemas():
        for attribute, value in itertools.product(schema.attributes, (7, "ü", 0.5, [1, 2], ["a"])):
            inputs = [ir.Value(name=f"x{i}", type=ir.TensorType(ir.DataType.FLOAT)) for i in range(3)]
            given_attribute = ir.convenience.convert_attribute(attribute, value)
            found = toolchain.supports(ir.Node(schema.domain, schema.name, inputs, [given_attribute]), target)
            assert found.ok is (found.reason is None)


UNARY = (
    "Abs",
    "Ceil",
    "Exp",
    "Floor",
    "Identity",
    "Neg",
    "Not",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sqrt",
    "Transpose",
)
BINARY = ("Add", "And", "Div", "Equal", "Greater", "Max", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum")
REDUCED = ("ArgMax", "CumSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Softmax")
TO_BOOL = ("Equal", "Greater", "And", "Or", "Not")
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
NUMPY_DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64"]
SHAPE_PAIRS = [
    ((), ()),
    ((3,), ()),
    ((0,), (1,)),
    ((2, 0), (2, 1)),
    ((2, 3), (3,)),
    ((1, 3), (2, 1)),
    ((4, 1, 3), (1, 3)),
]


@st.composite
def kernels(draw: st.DrawFn) -> tuple[ir.Model, list[np.ndarray]]:
    """A valid kernel of one operator, of any type that the operator takes, with inputs at which types differ."""
    op_type = draw(st.sampled_from([*UNARY, *BINARY, *REDUCED]))
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    shapes = draw(st.sampled_from(SHAPE_PAIRS[1 if op_type in REDUCED else 0 :]))[: 2 if op_type in BINARY else 1]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    low = 1 if op_type in ("Div", "Mod", "Pow", "Sqrt") else 0 if dtype.kind == "u" else -3
    arrays = [random.integers(low, 4, shape).astype(dtype) for shape in shapes]
    if op_type in REDUCED and dtype.kind == "b" and not arrays[0].size:
        reject()  # ONNX Runtime takes the type, and says at run time that such a set has no maximum
    names = [f"x{i}" for i in range(len(arrays))]
    made = {"ArgMax": onnx.TensorProto.INT64}.get(op_type)
    made = onnx.TensorProto.BOOL if op_type in TO_BOOL else made
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    node = onnx.helper.make_node(op_type, names + (["axis"] if op_type == "CumSum" else []), ["y"])
    if op_type == "Mod" and dtype.kind == "f":
        node.attribute.append(onnx.helper.make_attribute("fmod", 1))
    inputs = [onnx.helper.make_tensor_value_info(n, element, a.shape) for n, a in zip(names, arrays, strict=True)]
    sizes = [None] * len(np.broadcast_shapes(*shapes))
    outputs = [onnx.helper.make_tensor_value_info("y", made or element, sizes)]
    axis = [onnx.numpy_helper.from_array(np.array(0, np.int64), "axis")] if op_type == "CumSum" else []
    graph = onnx.helper.make_graph([node], "k", inputs, outputs, axis)
    proto = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)])
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        reject()
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto)), arrays


@settings(max_examples=100, deadline=None)
@given(made=kernels())
@pytest.mark.parametrize("toolchain", TOOLCHAINS, ids=lambda t: t.name)
def test_a_kernel_of_any_type_is_right_or_refused(
    toolchain: Toolchain, made: tuple[ir.Model, list[np.ndarray]]
) -> None:
    model, inputs = made
    expected = reference(model, inputs)
    target = Target.parse(toolchain.targets[0])
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled = toolchain.compile(model, target, Path(folder))
        except Unsupported as refusal:
            assert str(refusal) and "\n" not in str(refusal)
            return
        (y,) = toolchain.load(compiled, target, Path(folder), LoadOptions())(inputs)
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    rtol = 1e-2 if expected.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(y, expected, rtol=rtol, atol=1e-6)


def reference(model: ir.Model, inputs: list[np.ndarray]) -> np.ndarray:
    """What ONNX's own implementation says."""
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in model.graph.inputs]
    try:
        with np.errstate(all="ignore"):
            (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, dict(zip(names, inputs, strict=True)))
    except Exception:
        reject()
    return np.asarray(y)
