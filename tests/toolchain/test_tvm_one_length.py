"""Networks of convolutions over one length on TVM, against ONNX Runtime."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

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

CHANNELS = 6
ACTIVATIONS = (
    "Relu LeakyRelu Sigmoid Tanh Elu Selu Softplus Softsign Abs Neg Erf Sin Identity HardSigmoid HardSwish Mish Gelu Clip".split()  # noqa: SIM905
)


class Draft:
    """A random network that is made node by node. Every value has ``CHANNELS`` channels."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.lengths = {"x": 17}

    def weight(self, *shape: int) -> str:
        return self.constant(self.numbers.standard_normal(shape, dtype=np.float32) / 4)

    def constant(self, value: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, inputs: list[str], length: int, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.lengths[name] = length
        return name

    def any(self) -> str:
        return self.rng.choice(list(self.lengths))

    def alike(self, x: str) -> str:
        return self.rng.choice([name for name, length in self.lengths.items() if length == self.lengths[x]])


def conv(draft: Draft) -> None:
    x, taps, dilation = draft.any(), draft.rng.choice((1, 3, 7)), draft.rng.choice((1, 2))
    pads = [dilation * (taps - 1) // 2] * 2
    groups = draft.rng.choice((1, 1, 2, CHANNELS))
    inputs = [x, draft.weight(CHANNELS, CHANNELS // groups, taps)] + [draft.weight(CHANNELS)] * draft.rng.choice((0, 1))
    draft.node("Conv", inputs, draft.lengths[x], pads=pads, dilations=[dilation], group=groups)


def conv_transpose(draft: Draft) -> None:
    x = draft.any()
    if (length := draft.lengths[x]) < 80:
        weight = draft.weight(CHANNELS, CHANNELS, 4)
        draft.node("ConvTranspose", [x, weight, draft.weight(CHANNELS)], 2 * length, strides=[2], pads=[1, 1])


def activation(draft: Draft) -> None:
    x, op = draft.any(), draft.rng.choice(ACTIVATIONS)
    bounds = [draft.constant(np.array(v, np.float32)) for v in (-0.5, 0.7)] if op == "Clip" else []
    draft.node(op, [x, *bounds], draft.lengths[x])


def slopes(draft: Draft) -> None:
    x = draft.any()
    shape = draft.rng.choice(((CHANNELS, 1), (1,), (1, 1), (draft.lengths[x],)))
    draft.node("PRelu", [x, draft.weight(*shape)], draft.lengths[x])


def pair(draft: Draft) -> None:
    x = draft.any()
    draft.node(draft.rng.choice(("Add", "Mul", "Sub", "Max", "Min")), [x, draft.alike(x)], draft.lengths[x])


def with_constant(draft: Draft) -> None:
    x = draft.any()
    length = draft.lengths[x]
    shape = draft.rng.choice(((), (1,), (length,), (CHANNELS, 1), (CHANNELS, length), (1, CHANNELS, 1), (1, 1, length)))
    operands = [x, draft.weight(*shape)]
    draft.rng.shuffle(operands)
    draft.node(draft.rng.choice(("Add", "Mul", "Sub")), operands, length)


def statistics(draft: Draft) -> None:
    x = draft.any()
    parameters = [draft.weight(CHANNELS) for _ in range(3)]
    variance = draft.constant(draft.numbers.uniform(0.5, 2, CHANNELS).astype(np.float32))
    draft.node("BatchNormalization", [x, *parameters, variance], draft.lengths[x])


def joined_and_split(draft: Draft) -> None:
    x = draft.any()
    axis = draft.rng.choice((1, -2))
    both = f"both{len(draft.nodes)}"
    draft.nodes.append(helper.make_node("Concat", [x, draft.alike(x)], [both], axis=axis))
    parts = [f"{both}_{i}" for i in range(2)]
    draft.nodes.append(helper.make_node("Split", [both], parts, axis=axis, num_outputs=2))
    draft.lengths.update(dict.fromkeys(parts, draft.lengths[x]))


def causal(draft: Draft) -> None:
    """Zeros in front, a convolution without any, and perhaps an end that is cut off."""
    x = draft.any()
    padded = draft.node("Pad", [x, draft.constant(np.array([0, 0, 3, 0, 0, 1], np.int64))], draft.lengths[x] + 4)
    y = draft.node("Conv", [padded, draft.weight(CHANNELS, CHANNELS, 4)], draft.lengths[x] + 1)
    axis = draft.rng.choice((2, -1))
    ends = [draft.constant(np.array([n], np.int64)) for n in (0, -1, axis)]
    draft.node("Slice", [y, *ends], draft.lengths[x])


def apart(draft: Draft) -> None:
    """An operator that takes no images."""
    x = draft.any()
    turned = draft.node("Transpose", [x], 0, perm=[0, 2, 1])
    del draft.lengths[turned]
    mixed = draft.node("MatMul", [turned, draft.weight(CHANNELS, CHANNELS)], 0)
    del draft.lengths[mixed]
    draft.node("Transpose", [mixed], draft.lengths[x], perm=[0, 2, 1])


STEPS: tuple[Callable[[Draft], None], ...] = (
    *(conv, conv, conv, conv_transpose, activation, activation, slopes, pair, pair),
    *(with_constant, statistics, joined_and_split, causal, apart),
)


def network(seed: int, samples: int | str = 1) -> onnx.ModelProto:
    draft = Draft(seed)
    conv(draft)
    for _ in range(12):
        draft.rng.choice(STEPS)(draft)
    last = [name for name in draft.lengths if name != "x"][-3:]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in last]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [samples, CHANNELS, 17])]
    graph = helper.make_graph(draft.nodes, "network", inputs, outputs, draft.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(12))
def test_random_networks_over_one_length_are_right(seed: int, tmp_path: Path) -> None:
    model = network(seed, samples="n" if seed % 3 == 0 else 1 + seed % 2)
    samples = 2 if seed % 3 == 0 else 1 + seed % 2
    x = np.random.default_rng(seed).standard_normal((samples, CHANNELS, 17), dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    target = Target.parse("llvm")
    compiled = compile_for(TvmToolchain(), ir.from_proto(model), target, tmp_path)
    kernel = TvmToolchain().load(compiled, target, tmp_path, LoadOptions(1))
    for y, expected in zip(kernel([x]), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(y, expected, rtol=2e-4, atol=2e-5)


def test_a_convolution_its_activation_and_a_squeeze_stay_channels_last(tmp_path: Path) -> None:
    """What follows a convolution is computed in its loops, also if the last axis is left out behind it, counted from the end."""
    draft = Draft(0)
    weights = [draft.weight(16, CHANNELS, 3), draft.weight(16), draft.weight(16, 16, 17), draft.weight(16)]
    last = draft.constant(np.array([-1], np.int64))
    draft.nodes += [
        helper.make_node("Conv", ["x", *weights[:2]], ["a"], pads=[1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", *weights[2:]], ["c"]),
        helper.make_node("Squeeze", ["c", last], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, CHANNELS, 17]), ("y", [1, 16]))
    ]
    graph = helper.make_graph(draft.nodes, "kernel", ports[:1], ports[1:], draft.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    toolchain, target = TvmToolchain(), Target.parse("llvm")
    made = compile_for(toolchain, ir.serde.deserialize_model(model), target, tmp_path)
    names = [name for name, _ in made.metadata["calls"]]
    assert any("conv2d" in name and "relu" in name for name in names), names
    assert any("transpose" in name for name in names), "not channels-last: TVM failed to change the layout"
    x = draft.numbers.standard_normal((1, CHANNELS, 17), dtype=np.float32)
    (y,) = toolchain.load(made, target, tmp_path, LoadOptions(2))([x])
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)
