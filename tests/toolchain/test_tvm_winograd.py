"""Convolutions by Winograd's algorithm in TVM's loops: exact matrices, right answers, and where they are chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage.target import Target
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

tvm = pytest.importorskip("tvm")

from collage.toolchains.tvm import kernels, nests, winograd  # noqa: E402
from collage.toolchains.tvm.processor import Processor, processor_of  # noqa: E402
from collage.toolchains.tvm.winograd_loops import Convolution  # noqa: E402
from collage.toolchains.tvm.winograd_transforms import POINTS, transforms  # noqa: E402

TARGET = Target.parse("llvm")
WIDE, NARROW = Processor(16, 32, 2), Processor(8, 16, 2)
SAME = [1, 1, 1, 1]


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Sequence[Any]], weights: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name) for name, shape in weights.items()
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    read = {name for node in nodes for name in node.input}
    last = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for node in nodes
        for name in node.output
        if name not in read
    ]
    graph = helper.make_graph(nodes, "kernel", ports, last, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def conv(x: str, w: str, y: str, *bias: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w, *bias], [y], name=y, **attributes)


def check(model: onnx.ModelProto, workspace: Path, tolerance: float = 1e-5) -> None:
    """Compare a kernel with ONNX's reference."""
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, workspace)
    rng = np.random.default_rng(1)
    feeds = {
        port.name: rng.standard_normal([d.dim_value for d in port.type.tensor_type.shape.dim], dtype=np.float32)
        for port in model.graph.input
    }
    kernel = toolchain.load(made, TARGET, workspace, LoadOptions(2, exclusive=True))
    for _ in range(2):  # The second time memory holds what the first one left.
        found = dict(zip(made.outputs, kernel([feeds[name] for name in made.inputs]), strict=True))
        wanted = ReferenceEvaluator(model).run(None, feeds)
        for port, expected in zip(model.graph.output, wanted, strict=True):
            actual = np.asarray(found[port.name])
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


def lowered(model: onnx.ModelProto, target: Target = TARGET) -> list[tuple[str, list[tuple[int, ...]]]]:
    """The name of each loop nest of a model, and the shapes of what it reads and writes."""
    from collage.toolchains.tvm.importer import import_onnx
    from collage.toolchains.tvm.kernels import context, tvm_target
    from collage.toolchains.tvm.pipeline import front

    goal = tvm_target(target)
    with goal, context(target):
        module = front(goal, channels_last=True)(import_onnx(model))
    return [
        (
            name.name_hint,
            [tuple(getattr(n, "value", 0) for n in getattr(each, "shape", ())) for each in function.params],
        )
        for name, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    ]


def by_winograd(model: onnx.ModelProto, target: Target = TARGET) -> list[list[tuple[int, ...]]]:
    return [shapes for name, shapes in lowered(model, target) if "winograd" in name]


def use_it_always(monkeypatch: pytest.MonkeyPatch, outputs: int, shared: bool, processor: Processor = WIDE) -> None:
    monkeypatch.setattr(winograd, "_OUTPUTS", (outputs,))
    monkeypatch.setattr(winograd, "_GAIN", 1e9)
    monkeypatch.setattr(winograd, "_FEW_TILES", 1 << 20 if shared else 0)
    monkeypatch.setattr(nests, "processor_of", lambda target: processor)


@pytest.mark.parametrize("outputs", POINTS)
def test_transformed_windows_and_inputs_are_multiplied_to_outputs_exactly(outputs: int) -> None:
    matrices = transforms(outputs)
    taps = [Fraction(n) for n in (3, -7, 5)]
    data = [Fraction(n * n - 4 * n + 1) for n in range(matrices.width)]

    def applied(rows: Sequence[Sequence[Fraction]], values: Sequence[Fraction]) -> list[Fraction]:
        return [sum((c * x for c, x in zip(row, values, strict=True)), Fraction(0)) for row in rows]

    products = [a * b for a, b in zip(applied(matrices.taps, taps), applied(matrices.data, data), strict=True)]
    expected = [sum(t * data[i + j] for j, t in enumerate(taps)) for i in range(outputs)]
    assert applied(matrices.result, products) == expected
    points = POINTS[outputs]
    assert all(points[i] == -points[j] > 0 for i, j in matrices.pairs) and len(matrices.pairs) == outputs // 2


@pytest.mark.parametrize(
    ("outputs", "shared", "processor"), [(2, False, WIDE), (4, True, WIDE), (4, False, NARROW), (6, False, WIDE)]
)
def test_they_compute_what_onnx_says(
    outputs: int, shared: bool, processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd sizes and numbers of channels, padding on some sides, several samples, panels of 1 to 3 vectors, tiles left over."""
    use_it_always(monkeypatch, outputs, shared, processor)
    rng = np.random.default_rng(outputs)
    nodes, inputs, weights = [], {}, {}
    for i, maps in enumerate((16, 48, 64) if outputs == 6 else (24, 40, 68)):
        channels = (16 * int(rng.integers(1, 4)), int(rng.integers(1, 16)), 16 + int(rng.integers(1, 16)))[i]
        inputs[f"x{i}"] = [int(rng.integers(1, 4)), channels, *map(int, rng.integers(3, 19, 2))]
        weights[f"w{i}"], weights[f"b{i}"] = [maps, channels, 3, 3], [maps]
        pads = list(map(int, rng.integers(0, 3, 4)))
        nodes.append(conv(f"x{i}", f"w{i}", f"y{i}", *[f"b{i}"][: i % 2], pads=pads))
    for name in [name for name in weights if not any(name in node.input for node in nodes)]:
        del weights[name]
    model = model_of(nodes, inputs, weights)
    assert len(by_winograd(model)) == len(nodes)
    check(model, tmp_path, tolerance=1e-4 if outputs == 6 else 1e-5)


def test_what_follows_is_part_of_the_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bias, an activation that reads its input twice, and sums with what is outside, once with another's output."""
    use_it_always(monkeypatch, 4, shared=False)
    nodes = [
        conv("x", "w1", "a", "b1", pads=SAME),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["silu"]),
        conv("silu", "w2", "c", pads=SAME),
        helper.make_node("Mul", ["c", "scale"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    weights = {"w1": [32, 32, 3, 3], "b1": [32], "w2": [32, 32, 3, 3], "scale": [1, 32, 1, 1]}
    model = model_of(nodes, {"x": [2, 32, 9, 6]}, weights)
    names = [name for name, _ in lowered(model)]
    # What changes the layout of the input and of the output is left.
    assert sum("winograd" in name for name in names) == 2 and len(names) == 4
    check(model, tmp_path)


_ACTIVATIONS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "SiLU": [("Sigmoid", "a"), ("Mul", "a", "t0")],
    "GELU": [("Erf", "a"), ("Mul", "a", "t0")],
    "Mish": [("Mish", "a")],
    "Tanh": [("Tanh", "a")],
    "square of Sigmoid": [("Sigmoid", "a"), ("Mul", "t0", "t0")],
}


@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_exponentials_after_a_convolution_are_compiled_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_ATTEMPTS", kernels._ATTEMPTS[:1])
    use_it_always(monkeypatch, 4, shared=False)
    steps = [helper.make_node(op, inputs, [f"t{i}"]) for i, (op, *inputs) in enumerate(_ACTIVATIONS[name])]
    model = model_of(
        [conv("x", "w", "a", "b", pads=SAME), *steps], {"x": [1, 32, 8, 8]}, {"w": [32, 32, 3, 3], "b": [32]}
    )
    model.opset_import[0].version = 22
    check(model, tmp_path, tolerance=1e-4)


def test_loops_that_tvm_cannot_compile_are_written_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that is read twice becomes a variable, which TVM refuses in Winograd's loops."""
    use_it_always(monkeypatch, 4, shared=False)
    nodes = [
        conv("x", "w", "a", "b", pads=SAME),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Mul", ["t", "s"], ["y"]),
    ]
    check(model_of(nodes, {"x": [1, 32, 8, 8]}, {"w": [32, 32, 3, 3], "b": [32]}), tmp_path, tolerance=1e-4)


def test_results_of_calls_that_are_read_again_and_again_are_computed_once(tmp_path: Path) -> None:
    squares = [helper.make_node("Mul", [f"s{i}"] * 2, [f"s{i + 1}"]) for i in range(7)]
    nodes = [conv("x", "w", "a", pads=SAME), helper.make_node("Sigmoid", ["a"], ["s0"]), *squares]
    model = model_of([*nodes, helper.make_node("Tanh", ["s7"], ["y"])], {"x": [1, 64, 32, 32]}, {"w": [64, 64, 3, 3]})
    assert by_winograd(model)
    check(model, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    ("channels", "maps", "size", "outputs", "shared"),
    [
        (64, 64, 64, 4, False),
        (128, 128, 32, 4, False),
        (128, 128, 16, 4, True),
        (128, 128, 8, 2, True),
        (256, 256, 8, 2, True),
        (256, 256, 24, 4, True),
        (512, 512, 12, 2, True),
        (512, 512, 7, None, None),
        (3, 64, 64, None, None),
        (24, 32, 64, 4, False),
        (24, 24, 64, 4, False),
        (24, 40, 64, 4, False),
    ],
)
def test_sizes_decide_how(channels: int, maps: int, size: int, outputs: int | None, shared: bool | None) -> None:
    convolution = Convolution(1, size, size, size, size, channels, maps, 1, 1)
    found = winograd.blocking_of(convolution, WIDE)
    if outputs is None:
        assert found is None
    else:
        assert found is not None and (found.outputs, found.shared) == (outputs, shared)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [20, 37, 64, 200])
def test_blocks_keep_all_threads_busy_and_sums_in_registers(threads: int, size: int) -> None:
    processor = Processor(16, 32, threads)
    found = winograd.blocking_of(Convolution(1, size, size, size, size, 96, 96, 1, 1), processor)
    assert found is not None
    assert found.rows * found.vectors + found.vectors + 1 <= processor.registers
    tiles = math.ceil(size / found.outputs) ** 2
    blocks = -(-tiles // found.tiles)
    tasks = blocks * (96 // found.panel if found.shared else 1)
    assert tasks >= threads or found.shared
    products = -(-tasks // threads) * threads * -(-found.tiles // found.rows) * found.rows
    assert products <= 1.5 * tiles * (tasks // blocks)


def test_only_plain_windows_of_3_with_known_weights_are_rewritten() -> None:
    shape = {"x": [1, 64, 32, 32]}
    weights = {"w": [64, 64, 3, 3]}
    points, panels, inner, panel = by_winograd(model_of([conv("x", "w", "y", pads=SAME)], shape, weights))[0][1]
    assert (points, panels * panel, inner) == (36, 64, 64)
    others = [
        ({"pads": SAME, "strides": [2, 2]}, [64, 64, 3, 3]),
        ({"pads": SAME, "dilations": [2, 2]}, [64, 64, 3, 3]),
        ({"pads": SAME, "group": 2}, [64, 32, 3, 3]),
        ({}, [64, 64, 1, 1]),
        ({"pads": [2, 2, 2, 2]}, [64, 64, 5, 5]),
        ({"pads": [0, 1, 0, 1]}, [64, 64, 1, 3]),
        ({"pads": SAME}, [10, 64, 3, 3]),
    ]
    for attributes, weight in others:
        assert not by_winograd(model_of([conv("x", "w", "y", **attributes)], shape, {"w": weight})), attributes
    given = {**shape, "w": [64, 64, 3, 3]}
    assert not by_winograd(model_of([conv("x", "w", "y", pads=SAME)], given, {}))


@pytest.mark.parametrize(
    ("shape", "stride", "threads"),
    [
        (["n", 40, 20, 12], 1, 1),
        ([2, 40, "h", 12], 1, 2),
        (["n", 40, "h", "w"], 1, 2),
        (["n", 40, "h", "w"], 2, 2),
    ],
)
def test_lengths_may_be_free(
    shape: list[Any], stride: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel is right for any number of images and size, also where its lengths follow from those of the model."""
    monkeypatch.setattr(nests, "processor_of", lambda target: replace(WIDE, threads=threads))
    nodes = [
        conv("x", "w1", "a", pads=SAME, strides=[stride, stride]),
        conv("a", "w2", "b", "b2", pads=[0, 1, 2, 0]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    weights = {"w1": [44, 40, 3, 3], "w2": [56, 44, 3, 3], "b2": [56]}
    model = model_of(nodes, {"x": shape}, weights)
    assert len(by_winograd(model)) == 3 - stride
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, tmp_path)
    kernel = toolchain.load(made, TARGET, tmp_path, LoadOptions(2, exclusive=True))
    rng = np.random.default_rng(7)
    for _ in range(5):
        sizes = [size if isinstance(size, int) else int(rng.integers(1, 24)) for size in shape]
        sizes[0] = min(sizes[0], 3)
        x = rng.standard_normal(sizes, dtype=np.float32)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        (actual,) = map(np.asarray, kernel([x]))
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max(initial=0.0), rtol=0)


def test_free_lengths_are_decided_by_one_image_of_a_usual_size() -> None:
    n, h = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("h", "int64")
    for channels, lengths, shared in ((64, (n, h, h), False), (512, (n, 7, 7), None), (512, (n, h, h), True)):
        samples, height, width = lengths
        found = winograd.blocking_of(Convolution(samples, height, width, height, width, channels, channels, 1, 1), WIDE)
        assert (found and (found.threads, found.shared, found.tiles % found.rows)) == (
            shared if shared is None else (2, shared, 0)
        )


def test_a_lower_optimisation_level_keeps_plain_loops() -> None:
    model = model_of([conv("x", "w", "y", pads=SAME)], {"x": [1, 64, 32, 32]}, {"w": [64, 64, 3, 3]})
    assert by_winograd(model)
    assert not by_winograd(model, Target.parse("llvm -opt-level=2"))


def test_tuning_leaves_them_as_they_are(tmp_path: Path) -> None:
    model = model_of([conv("x", "w", "y", pads=SAME)], {"x": [1, 64, 32, 32]}, {"w": [64, 64, 3, 3]})
    assert not TvmToolchain().tuning_workloads(ir.serde.deserialize_model(model), TARGET, tmp_path)


def test_processors_with_shorter_vectors_get_smaller_blocks() -> None:
    narrow = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    assert processor_of(narrow) == NARROW
    found = winograd.blocking_of(Convolution(1, 64, 64, 64, 64, 64, 64, 1, 1), NARROW)
    assert found is not None and found.lanes == 8 and found.rows * 2 + 2 + 1 <= 16
    plain = tvm.target.Target({"kind": "llvm", "mcpu": "nehalem", "num-cores": 2})
    assert processor_of(plain) is None
