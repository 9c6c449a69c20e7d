"""Networks whose free lengths TVM knows only as multiples, and lengths that exporters compute in 32 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import Unsupported
from collage.target import Target
from collage.testing._explicit_plan import executable_of
from collage.toolchains import Compiled, Kernel, LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
PICTURES = ["n", 4, "h", "w"]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    weights: Mapping[str, np.ndarray],
    outputs: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    outputs = outputs or {nodes[-1].output[0]: TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def conv(x: str, y: str, stride: int = 1, **more: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, "w"], [y], strides=[stride] * 2, **(more or {"pads": [1] * 4}))


WINDOW = {"w": np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)}
TWICE = {"twice": np.array([1, 1, 2, 2], np.float32)}


def pyramid(halvings: int, join: str = "Add") -> onnx.ModelProto:
    """A network that halves a picture, doubles it again, and joins what it finds on both ways."""
    nodes, down = [], ["x"]
    for i in range(halvings):
        nodes.append(conv(down[-1], f"d{i}", stride=2))
        down.append(f"d{i}")
    found = down.pop()
    for i, beside in enumerate(reversed(down)):
        nodes.append(
            helper.make_node(
                "Resize",
                [found, "", "twice"],
                [f"u{i}"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        )
        axis = {"axis": 1} if join == "Concat" else {}
        nodes.append(helper.make_node(join, [f"u{i}", beside], [f"j{i}"], **axis))
        found = f"j{i}"
        if join == "Concat":
            nodes.append(helper.make_node("Slice", [found, "zero", "four", "one"], [f"s{i}"]))
            found = f"s{i}"
    numbers = {"zero": np.array([0]), "four": np.array([4]), "one": np.array([1])} if join == "Concat" else {}
    return model_of(nodes, {"x": PICTURES}, {**WINDOW, **TWICE, **numbers})


def compiled(model: onnx.ModelProto, folder: Path) -> tuple[Compiled, Kernel]:
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, folder)
    return made, toolchain.load(made, TARGET, folder, LoadOptions(2, exclusive=True))


def check(model: onnx.ModelProto, kernel: Kernel, *shapes: Sequence[int]) -> None:
    """Compare a kernel of one input with ONNX Runtime."""
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    name = model.graph.input[0].name
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        for made, expected in zip(kernel([x]), reference.run(None, {name: x}), strict=True):
            actual = np.asarray(made)
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max(initial=1), rtol=0)


@pytest.mark.parametrize(("halvings", "join"), [(1, "Concat"), (3, "Add")])
def test_sides_are_multiples_of_the_least_power_that_makes_them_equal(halvings: int, join: str, tmp_path: Path) -> None:
    model, step = pyramid(halvings, join), 2**halvings
    made, kernel = compiled(model, tmp_path)
    assert made.metadata["multiples"] == [[0, 2, step], [0, 3, step]]
    check(model, kernel, (1, 4, step, step), (3, 4, 5 * step, 2 * step), (2, 4, 2 * step, 7 * step))
    for sides in ((step + 1, step), (step, 3 * step - 1)):
        with pytest.raises(Unsupported, match=f"multiples of {step}"):
            kernel([np.zeros((1, 4, *sides), np.float32)])


def test_the_host_runs_other_lengths() -> None:
    """A side of 1 is no multiple of 4, and right: what is doubled from it to 2 is added to it."""
    model = pyramid(2)
    executable = executable_of(model, "llvm")
    x = np.ones((1, 4, 1, 8), np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with pytest.warns(RuntimeWarning, match="multiples of 4 .* the host ran it instead"):
        (actual,) = executable.run({"x": x}).values()
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_networks_that_take_all_lengths_keep_them(tmp_path: Path) -> None:
    nodes = [conv("x", "a", stride=2), conv("a", "b"), helper.make_node("Add", ["a", "b"], ["y"])]
    model = model_of(nodes, {"x": PICTURES}, WINDOW)
    made, kernel = compiled(model, tmp_path)
    assert "multiples" not in made.metadata
    check(model, kernel, (1, 4, 7, 10), (2, 4, 1, 3))


def test_sums_over_products_of_lengths_keep_no_convolution_from_loops_of_its_own(tmp_path: Path) -> None:
    """The loops of such a sum take lengths as parameters, where others have a second tensor."""
    model = pyramid(1)
    made = model.graph.output[0].name
    nodes = [
        *model.graph.node,
        helper.make_node("Reshape", [made, "shape"], ["r"]),
        helper.make_node("ReduceSum", ["r", "axes"], ["y"], keepdims=0),
    ]
    weights = {**WINDOW, **TWICE, "shape": np.array([0, 2, 2, -1]), "axes": np.array([1])}
    model = model_of(nodes, {"x": PICTURES}, weights)
    facts, kernel = compiled(model, tmp_path)
    check(model, kernel, (1, 4, 4, 6), (2, 4, 2, 10))
    assert any("_rows_" in name or "_winograd_" in name for name, _ in facts.metadata["calls"])


def test_a_length_that_is_also_a_number_of_samples_is_no_multiple(tmp_path: Path) -> None:
    model = pyramid(1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "h"
    made, kernel = compiled(model, tmp_path)
    assert "multiples" not in made.metadata
    check(model, kernel, (4, 4, 4, 6), (2, 4, 2, 8))
    with pytest.raises((RuntimeError, ValueError)):  # Four rows beside three.
        kernel([np.zeros((3, 4, 3, 6), np.float32)])


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_to_the_same_size_is_known_for_multiples(mode: str, tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", stride=2, auto_pad=mode),
        helper.make_node("MaxPool", ["a"], ["m"], kernel_shape=[2, 2], auto_pad=mode),
        helper.make_node("Add", ["a", "m"], ["y"]),
    ]
    model = model_of(nodes, {"x": PICTURES}, WINDOW)
    made, kernel = compiled(model, tmp_path)
    assert made.metadata["multiples"] == [[0, 2, 2], [0, 3, 2]]
    check(model, kernel, (1, 4, 4, 6), (2, 4, 2, 10))


def test_numbers_up_to_a_length_are_as_many_as_it_is(tmp_path: Path) -> None:
    """A detector's places: the centre of each column is added to what was found there."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "three"], ["width"]),
        helper.make_node("Cast", ["width"], ["end"], to=TensorProto.FLOAT),
        helper.make_node("Range", ["first", "end", "step"], ["columns"]),
        helper.make_node("Add", ["columns", "half"], ["centres"]),
        helper.make_node("Add", ["x", "centres"], ["y"]),
    ]
    numbers = {
        "three": np.array(3),
        **{k: np.array(v, np.float32) for k, v in {"first": 0, "step": 1, "half": 0.5}.items()},
    }
    model = model_of(nodes, {"x": PICTURES}, numbers)
    _, kernel = compiled(model, tmp_path)
    check(model, kernel, (1, 4, 3, 5), (2, 4, 1, 1))


def test_lengths_that_are_computed_in_32_bits_are_followed(tmp_path: Path) -> None:
    """As Paddle's and TensorFlow's exporters do it; who reads the numbers in 32 bits still gets them so."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["short"], to=TensorProto.INT32),
        helper.make_node("Slice", ["short", "zero", "one"], ["samples"]),
        helper.make_node("Gather", ["short", "three"], ["width"]),
        helper.make_node("Mul", ["width", "two"], ["twice"]),
        helper.make_node("Unsqueeze", ["twice", "zero"], ["last"]),
        helper.make_node("Concat", ["samples", "rest", "last"], ["joined"], axis=0),
        helper.make_node("Cast", ["joined"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "wide"], ["y"]),
        helper.make_node("Identity", ["twice"], ["count"]),
    ]
    numbers = {
        **{"zero": np.array([0]), "one": np.array([1]), "three": np.array(3)},
        **{"two": np.array(2, np.int32), "rest": np.array([-1], np.int32)},
    }
    model = model_of(nodes, {"x": PICTURES}, numbers, {"y": TensorProto.FLOAT, "count": TensorProto.INT32})
    _, kernel = compiled(model, tmp_path)
    check(model, kernel, (1, 4, 3, 5), (3, 4, 2, 1))
