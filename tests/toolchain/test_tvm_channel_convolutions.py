"""Convolutions of single channels in ONNX's layout, with what follows them, against ONNX Runtime."""

from __future__ import annotations

import random
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

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-40)


def drawn(seed: int, mixes: bool = False, columns: int | None = None) -> onnx.ModelProto:
    """Return up to three such convolutions one after the other, each followed by something, and both results if that fits."""
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    samples, channels = choose.choice([1, 1, 2]), choose.choice([1, 3, 8, 20])
    height, width = choose.choice([1, 2, 5, 12, 30]), choose.choice([8, 16, 24, 32, 40, 48])
    nodes, weights, last = [], [], "x"

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name))
        return name

    for n in range(choose.randint(1, 3)):
        taps = choose.choice([1, 2, 3, 5]), choose.choice([1, 3, 5, 7]) if columns is None else columns
        beside = choose.choice([1, 1, 2])
        sides = beside * (taps[1] - 1)  # The width stays.
        left, above = choose.randint(0, sides), choose.randint(0, taps[0] - 1)
        made = helper.make_node(
            "Conv",
            [
                last,
                weight(f"w{n}", channels, 1, *taps),
                *([weight(f"b{n}", channels)] if choose.random() < 0.5 else []),
            ],
            [f"c{n}"],
            group=channels,
            pads=[above, left, taps[0] - 1 - above, sides - left],
            dilations=[1, beside],
            strides=[choose.choice([1, 1, 2]), 1],
        )
        nodes.append(made)
        last = f"c{n}"
        follower = choose.choice(
            ["", "Relu", "HardSwish", "Sigmoid", "Mul", "Add", "MaxPool", "GlobalAveragePool", "Transpose"]
        )
        if n < 2 and follower in ("GlobalAveragePool", "Transpose"):
            follower = "Relu"
        if follower in ("Mul", "Add"):
            nodes.append(helper.make_node(follower, [last, weight(f"m{n}", channels, 1, 1)], [f"y{n}"]))
        elif follower == "MaxPool":
            nodes.append(helper.make_node(follower, [last], [f"y{n}"], kernel_shape=[1, 3], pads=[0, 1, 0, 1]))
        elif follower == "Transpose":
            nodes.append(helper.make_node(follower, [last], [f"y{n}"], perm=[0, 2, 3, 1]))
        elif follower:
            nodes.append(helper.make_node(follower, [last], [f"y{n}"]))
        last = f"y{n}" if follower else last
    if mixes:
        nodes.append(helper.make_node("Conv", [last, weight("mixing", 4, channels, 1, 1)], ["mixed"]))
    outputs = dict.fromkeys(["c0", "mixed" if mixes else last])
    graph = helper.make_graph(
        nodes,
        "channels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (samples, channels, height, width))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def check(model: onnx.ModelProto, workspace: Path, *, special: bool = False) -> None:
    """Compare the results with ONNX Runtime's."""
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape, dtype=np.float32)
    if special:
        places = rng.random(shape) < 0.02
        x[places] = rng.choice(SPECIAL, places.sum())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    compiled = compile_for(TvmToolchain(), ir.from_proto(model), TARGET, workspace)
    made = TvmToolchain().load(compiled, TARGET, workspace, LoadOptions(threads=2))([x])
    # Runtimes agree on the special values of the first convolution, but not of maxima and activations after it.
    for ours, theirs in list(zip(made, expected, strict=True))[: 1 if special else None]:
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The schedules that the rule makes."""
    from collage.toolchains.tvm.channel_convolutions import Channels

    made: list[Any] = []
    apply = Channels.apply

    def noted(rule: Any, *given: Any) -> Any:
        schedule = apply(rule, *given)
        made.extend([] if schedule is None else [schedule])
        return schedule

    monkeypatch.setattr(Channels, "apply", noted)
    return made


@pytest.mark.parametrize("seed", range(12))
def test_random_convolutions_of_single_channels_are_right(seed: int, scheduled: list[Any], tmp_path: Path) -> None:
    model = drawn(seed)
    check(model, tmp_path)
    if model.graph.input[0].type.tensor_type.shape.dim[1].dim_value > 1:
        assert len(scheduled) == sum(node.op_type == "Conv" for node in model.graph.node)


@pytest.mark.parametrize("seed", range(3))
def test_nan_and_infinities_stay_where_windows_see_them(seed: int, tmp_path: Path) -> None:
    check(drawn(100 + seed), tmp_path, special=True)


def test_beside_a_convolution_that_mixes_channels_they_are_channels_last(scheduled: list[Any], tmp_path: Path) -> None:
    check(drawn(7, mixes=True), tmp_path)
    assert not scheduled


def test_long_windows_are_channels_last(scheduled: list[Any], tmp_path: Path) -> None:
    check(drawn(7, columns=9), tmp_path)
    assert not scheduled


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 400))
def test_many_random_convolutions_of_single_channels_are_right(seed: int, tmp_path: Path) -> None:
    check(drawn(seed), tmp_path, special=seed % 2 == 0)
