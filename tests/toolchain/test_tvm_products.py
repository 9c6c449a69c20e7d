"""Products of a free number of rows, and softmax of rows that fill no vectors, in loops written by hand."""

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
from collage.toolchains import Kernel, LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

tvm = pytest.importorskip("tvm")

from collage.toolchains.tvm import nests, products  # noqa: E402
from collage.toolchains.tvm.processor import Processor  # noqa: E402

TARGET = Target.parse("llvm")


def model_of(nodes: Sequence[onnx.NodeProto], shape: Sequence[Any], opset: int = 17, **weights: Any) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(random.standard_normal(each).astype(np.float32), name) for name, each in weights.items()
    ]
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def loaded(model: onnx.ModelProto, folder: Path) -> Kernel:
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, folder)
    return toolchain.load(made, TARGET, folder, LoadOptions(2, exclusive=True))


def check(model: onnx.ModelProto, kernel: Kernel, *arrays: np.ndarray) -> None:
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    for x in arrays:
        for _ in range(2):  # The second time memory holds what the first one left.
            (expected,) = reference.run(None, {"x": x})
            actual = np.asarray(next(iter(kernel([x]))))
            assert actual.shape == expected.shape
            size = np.abs(expected[np.isfinite(expected)]).max(initial=1e-30)
            np.testing.assert_allclose(actual, expected, atol=1e-5 * size, rtol=1e-5)


def random_arrays(shape: Sequence[Any], *lengths: Sequence[int]) -> list[np.ndarray]:
    made = []
    for each in lengths:
        free = iter(each)
        sizes = [n if isinstance(n, int) else next(free) for n in shape]
        made.append(np.random.default_rng(sum(sizes)).standard_normal(sizes).astype(np.float32))
    return made


def names_of(model: onnx.ModelProto) -> list[str]:
    """Return the names of the loops that a model becomes."""
    from collage.toolchains.tvm.importer import import_onnx
    from collage.toolchains.tvm.kernels import context, tvm_target
    from collage.toolchains.tvm.pipeline import front

    goal = tvm_target(TARGET)
    with goal, context(TARGET):
        module = front(goal, channels_last=True)(import_onnx(model))
    return [name.name_hint for name, function in module.functions_items() if isinstance(function, tvm.tirx.PrimFunc)]


_CONVOLUTIONS = [
    helper.make_node("Conv", ["x", "w1", "b1"], ["a"]),
    helper.make_node("Erf", ["a"], ["e"]),
    helper.make_node("Mul", ["a", "e"], ["g"]),
    helper.make_node("Conv", ["g", "w2"], ["c"]),
    helper.make_node("Add", ["c", "x"], ["y"]),
]


@pytest.mark.parametrize("processor", [Processor(16, 32, 2), Processor(8, 16, 2)])
def test_pointwise_convolutions_of_any_number_of_pixels(
    processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of every number of vectors, more pixels than a task has, fewer than a tile, with what follows."""
    monkeypatch.setattr(nests, "processor_of", lambda target: processor)
    monkeypatch.setattr(products, "_BLOCK_BYTES", 1 << 12)
    shape = ["n", 48, "h", "w"]
    model = model_of(_CONVOLUTIONS, shape, w1=(80, 48, 1, 1), b1=(80,), w2=(48, 80, 1, 1))
    assert sum(name.endswith("_rows") for name in names_of(model)) == 2
    check(model, loaded(model, tmp_path), *random_arrays(shape, (1, 1, 1), (3, 2, 5), (1, 13, 11), (2, 7, 1)))


@pytest.mark.parametrize("shape", [["m", 24], [2, "m", 24], ["b", 3, "m", 24]])
def test_layers_of_any_number_of_rows(shape: Sequence[Any], tmp_path: Path) -> None:
    """The second matrix has columns that fill no vectors."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    model = model_of(nodes, shape, w1=(24, 64), b=(64,), w2=(64, 21))
    assert sum(name.endswith("_rows") for name in names_of(model)) == 2
    free = sum(isinstance(n, str) for n in shape)
    check(model, loaded(model, tmp_path), *random_arrays(shape, *[[n] * free for n in (1, 5, 14, 33)]))


@pytest.mark.parametrize("rows", [13, 38, 197])
def test_layers_of_an_odd_number_of_rows(rows: int, tmp_path: Path) -> None:
    """A schedule could split these rows only into ones and twos."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    model = model_of(nodes, [rows, 24], w=(24, 64), b=(64,))
    assert any(name.endswith("_rows") for name in names_of(model))
    check(model, loaded(model, tmp_path), *random_arrays([rows, 24], ()))


@pytest.mark.parametrize("side", [13, 26])
def test_convolutions_of_odd_pictures(side: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["m"]),
        helper.make_node("Conv", ["m", "w2"], ["y"]),
    ]
    shape = [1, 8, side, side]
    model = model_of(nodes, shape, w1=(32, 8, 3, 3), b=(32,), w2=(48, 32, 1, 1))
    assert sum(name.endswith("_rows") for name in names_of(model)) == 2
    check(model, loaded(model, tmp_path), *random_arrays(shape, ()))


@pytest.mark.parametrize(
    ("window", "more"),
    [
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 5), {"strides": [1, 3], "pads": [0, 2, 1, 0]}),
        ((3, 2), {"dilations": [2, 3]}),
        ((1, 1), {"strides": [2, 2]}),
        ((1, 1), {"pads": [0, 1, 0, 1]}),
    ],
)
def test_windows_of_any_form(window: tuple[int, int], more: dict[str, Any], tmp_path: Path) -> None:
    """To 20 maps, which fill a vector and a quarter."""
    shape = ["n", 5, "h", "w"]
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["a"], **more), helper.make_node("Relu", ["a"], ["y"])]
    model = model_of(nodes, shape, w=(20, 5, *window), b=(20,))
    assert any(name.endswith("_rows") for name in names_of(model))
    check(model, loaded(model, tmp_path), *random_arrays(shape, (1, 5, 6), (2, 17, 9), (1, 8, 31)))


@pytest.mark.parametrize(
    ("shape", "weight", "nodes"),
    [
        ([4, 48], (48, 64), [helper.make_node("MatMul", ["x", "w"], ["y"])]),
        ([7, 48], (48, 64), [helper.make_node("MatMul", ["x", "w"], ["y"])]),
        (["m", 48], (48, 3), [helper.make_node("MatMul", ["x", "w"], ["y"])]),
        (["n", 48, "h", 8], (48, 1, 3, 3), [helper.make_node("Conv", ["x", "w"], ["y"], group=48)]),
    ],
)
def test_other_products_keep_their_loops(
    shape: Sequence[Any], weight: tuple[int, ...], nodes: Sequence[onnx.NodeProto]
) -> None:
    assert not any(name.endswith("_rows") for name in names_of(model_of(nodes, shape, w=weight)))


def test_equal_tiles_of_rows_are_slower_if_there_are_few_registers() -> None:
    from collage.toolchains.tvm.processor import WIDE, Processor
    from collage.toolchains.tvm.products import _is_faster

    narrower = Processor(lanes=8, registers=16, threads=2)
    assert not _is_faster([45], [], 48, 64, WIDE)
    assert _is_faster([45], [], 48, 64, narrower)
    assert not any(_is_faster([rows], [], 48, columns, narrower) for rows, columns in ((7, 64), (45, 7)))


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_rows_of_any_length_are_added_up_in_parts(operator: str, tmp_path: Path) -> None:
    shape = [2, "m", "n"]
    model = model_of([helper.make_node(operator, ["x"], ["y"], axis=-1)], shape)
    arrays = random_arrays(shape, (1, 1), (3, 15), (2, 16), (1, 17), (2, 130))
    # What is masked, a row of nothing else, and numbers of which all exponentials but one are 0.
    arrays[3][0, 0, ::2], arrays[3][1, 0, 3] = -np.inf, 1000
    arrays[1][0, 1] = -np.inf
    check(model, loaded(model, tmp_path), *arrays)


def test_long_rows_keep_their_digits(tmp_path: Path) -> None:
    """One element after the other, the sum of 18,710 numbers has a wrong fourth digit."""
    model = model_of([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [1, 18710])
    x = 1e-3 * np.random.default_rng(0).standard_normal((1, 18710)).astype(np.float32)
    (actual,) = map(np.asarray, loaded(model, tmp_path)([x]))
    exact = np.exp(x.astype(np.float64) - x.max())
    np.testing.assert_allclose(actual, exact / exact.sum(), rtol=2e-6)


def test_before_operator_set_13_several_axes_are_one_row(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Softmax", ["x"], ["y"])], ["n", 3, 25], opset=11)
    check(model, loaded(model, tmp_path), *random_arrays(["n", 3, 25], (2,)))


def bound_in_places(*lengths: int | None) -> list[Any]:
    """Return what variables are bound to where the indices of a row are computed; a length of None is free."""
    import tvm_ffi
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.tirx.script.builder import ir as build

    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name("places")
        free = build.arg("n", tirx.Var("n", "int64"))
        output = build.arg("output", build.buffer((len(lengths),), "int64"))
        with build.serial(free * 4) as row:
            for i, place in enumerate(products.place_of(row, [free if n is None else n for n in lengths])):
                build.buffer_store(output, place, [i])
    found: list[Any] = []
    tvm_ffi.structural_walk(builder.get().body, (tirx.Bind, lambda bind: found.append(bind.value)))
    return found


def test_tvm_does_not_see_through_places_that_free_lengths_divide() -> None:
    from tvm import tirx

    def is_quotient(value: Any) -> bool:
        return isinstance(value, tirx.FloorDiv | tirx.FloorMod)

    assert not any(map(is_quotient, bound_in_places(2, None, None)))
    assert any(map(is_quotient, bound_in_places(2, 3, 4)))
