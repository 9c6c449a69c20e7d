"""Weights that are packed by tiles: which are, and that loops read the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.target import Target
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

tvm = pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Sequence[int]], weights: dict[str, Sequence[int]]
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name) for name, shape in weights.items()
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    last = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "kernel", ports, [last], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def loops_of(model: onnx.ModelProto) -> list[list[tuple[int, ...]]]:
    """The shapes of what each loop nest of a model reads and writes, before anything is scheduled."""
    from collage.toolchains.tvm.importer import import_onnx
    from collage.toolchains.tvm.kernels import context, tvm_target
    from collage.toolchains.tvm.pipeline import front

    goal = tvm_target(TARGET)
    with goal, context(TARGET):
        module = front(goal, channels_last=True)(import_onnx(model))
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return [[tuple(int(n) for n in each.shape) for each in function.params] for function in functions]


def conv(x: str, w: str, y: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name=y, **attributes)


@pytest.mark.parametrize(
    ("columns", "packed"),
    [(512, (8, 2, 2, 16, 64)), (96, (2, 2, 2, 16, 48)), (64, None), (100, (7, 2, 2, 16, 16)), (8, None)],
)
def test_a_weight_of_several_tiles_is_packed_by_them(
    columns: int, packed: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import collage.toolchains.tvm.weight_layout as weight_layout

    monkeypatch.setattr(weight_layout, "_LEAST_BYTES", 1024)
    model = model_of([conv("x", "w", "y")], {"x": [1, 16, 5, 5]}, {"w": [columns, 16, 2, 2]})
    shapes = [shape for loops in loops_of(model) for shape in loops]
    # 100 maps become 112, which fill vectors.
    assert (packed or (2, 2, 16, columns)) in shapes
    assert packed is None or (2, 2, 16, columns) not in shapes


def test_small_weights_and_those_that_are_no_constants_stay() -> None:
    small = model_of([conv("x", "w", "y")], {"x": [1, 4, 5, 5]}, {"w": [128, 4, 2, 2]})
    assert (2, 2, 4, 128) in [shape for loops in loops_of(small) for shape in loops]
    given = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [8, 256], "w": [256, 512]}, {})
    assert (256, 512) in [shape for loops in loops_of(given) for shape in loops]


def test_loops_that_are_called_with_something_else_too_stay() -> None:
    """Two products of equal shapes are one loop nest; of one of them the second factor is no constant."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "x"], ["y"])]
    shapes = [shape for loops in loops_of(model_of(nodes, {"x": [128, 128]}, {"w": [128, 128]})) for shape in loops]
    assert shapes.count((128, 128)) == len(shapes)


def test_the_same_numbers_are_read(tmp_path: Path) -> None:
    """Two convolutions of few pixels share loops and not weights, a third is in groups, and a product follows."""
    nodes = [
        conv("x", "w1", "a", pads=[1, 1, 1, 1]),
        conv("a", "w2", "b", pads=[1, 1, 1, 1]),
        conv("b", "w3", "d", group=2, pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "w4"], ["y"]),
    ]
    weights = {"w1": [96, 96, 3, 3], "w2": [96, 96, 3, 3], "w3": [128, 48, 3, 3], "w4": [128 * 6, 192]}
    model = model_of(nodes, {"x": [1, 96, 2, 3]}, weights)
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, tmp_path)
    x = np.random.default_rng(1).standard_normal((1, 96, 2, 3), dtype=np.float32)
    (found,) = toolchain.load(made, TARGET, tmp_path, LoadOptions(2, exclusive=True))([x])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)
    packed = [shape for loops in loops_of(model) for shape in loops if len(shape) == 5 or shape == (3, 768, 64)]
    assert sorted(packed) == [(2, 3, 3, 48, 64), (2, 3, 3, 96, 48), (3, 768, 64)]


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows", [1, 7, 11, 14, 24, 30, 64])
def test_tiles_of_the_first_choice_divide_what_weights_are_packed_by(rows: int, registers: int) -> None:
    """A tile of 32 columns in a weight that is packed by 48 took five times as long."""
    from collage.toolchains.tvm.processor import Processor
    from collage.toolchains.tvm.tile_schedules import TILE_COLUMNS, _tile, divisor

    processor = Processor(lanes=registers // 2, registers=registers, threads=2)
    for columns in range(4, 1300, 4):
        packed = divisor(columns, TILE_COLUMNS)
        width, height, _ = _tile(columns, rows, 0, range(1, 65), processor)
        assert packed is not None and packed % width == 0
        assert width * (height or 1) / processor.lanes < registers, "all sums and a vector fit into the registers"
    best = _tile(256, rows, 0, range(1, 65), processor)[:2]
    assert (best == (32, 7)) == (registers == 32 and rows % 7 == 0)
    assert (best == (16, 6)) == (registers == 16 and rows % 6 == 0)


def turned(dtype: str, *, is_output: bool = False) -> Any:
    """The main function of a module that permutes and reshapes a constant, after the pass that turns constants."""
    from tvm import relax

    from collage.toolchains.tvm.weight_layout import turn_weights

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 2), dtype))
    weight = relax.const(np.arange(6).reshape(2, 3).astype("float32"), dtype)
    with builder.function("main", [x]):
        with builder.dataflow():
            across = builder.emit(relax.op.permute_dims(weight))
            flat = builder.emit(relax.op.reshape(across, (6,)))
            back = builder.emit(relax.op.reshape(flat, (3, 2)))
            made = builder.emit_output(relax.op.permute_dims(weight) if is_output else relax.op.add(x, back))
        builder.emit_func_output(made)
    return turn_weights()(builder.get())["main"]


def calls_of(function: Any) -> list[Any]:
    found: list[Any] = []

    def note(call: Any) -> None:
        if isinstance(call, tvm.relax.Call):
            found.append(call)

    tvm.relax.analysis.post_order_visit(function, note)
    return found


def test_constants_are_turned_without_compiling_a_function() -> None:
    (call,) = calls_of(turned("float32"))
    assert call.op.name == "relax.add"
    np.testing.assert_array_equal(call.args[1].value.numpy(), np.arange(6, dtype=np.float32).reshape(2, 3).T)


def test_what_numpy_does_not_know_and_what_leaves_the_function_stays() -> None:
    assert "relax.permute_dims" in {call.op.name for call in calls_of(turned("bfloat16"))}
    assert "relax.permute_dims" in {call.op.name for call in calls_of(turned("float32", is_output=True))}


WEIGHT = "<float[2, 3] w = {0, 1, 2, 3, 4, 5}, int64[2] to = {3, 2}>"


@pytest.mark.parametrize(
    "body",
    [
        "{ t = Transpose (w) y = Add (x, t) }",
        "{ a = Transpose (w) b = Transpose (a) t = Reshape (b, to) y = Add (x, t) }",
        "{ z = Neg (x) y = Transpose (w) }",
    ],
)
def test_turned_constants_are_the_same_numbers(body: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> kernel (float[3, 2] x) => (float[3, 2] y) {WEIGHT} {body}'
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    toolchain = TvmToolchain()
    compiled = compile_for(toolchain, ir.from_proto(onnx.shape_inference.infer_shapes(model)), TARGET, tmp_path)
    (y,) = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())([x])
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(y, expected)
