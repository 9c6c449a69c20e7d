"""Gains inside control flow: models whose time is in the body of a Loop, a Scan or an If, and any model that is named.

Each model is compiled. If its plan has kernels in bodies, it is raced against the fastest single target, which takes the operator
with all in it. Each lives in clean processes, and they take turns in random order. A ratio above 1 says how many times as fast
the plan with kernels in bodies is. Says nothing on a machine on which anything else runs.

::

    python -m benchmarks.control_flow [--models MODEL.onnx,...] [--targets T,...] [--threads N] [--rounds N]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks._arguments import MENU, chosen_models, make_parser
from benchmarks.branches import fastest_single
from onnx import TensorProto, helper, numpy_helper

import collage
from collage import CompileOptions
from collage.artefact_comparison import compare_artefacts

CHANNELS, PIXELS, BLOCKS, STEPS = 64, 64, 3, 4
WIDTH, WORDS, TOKENS = 512, 8000, 12
value = helper.make_tensor_value_info


class Network:
    """Nodes and weights of a small network that is being written down."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        """Add a weight of random values, and return its name."""
        fan_in = max(1, int(np.prod(shape[1:])) if len(shape) > 2 else shape[0])
        return self.constant((self._random.standard_normal(shape) / fan_in**0.5).astype(np.float32))

    def constant(self, array: Any) -> str:
        """Add a constant, and return its name."""
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator, and return the name of its output."""
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, channels_in: int, channels_out: int) -> str:
        """Add a convolution of windows 3 x 3."""
        return self.add("Conv", x, self.weight(channels_out, channels_in, 3, 3), pads=[1, 1, 1, 1])

    def residual_network(self, x: str) -> str:
        """Add a network such as EDSR: residual blocks of two convolutions between a head and a tail."""
        h = self.conv(x, 3, CHANNELS)
        for _ in range(BLOCKS):
            inner = self.add("Relu", self.conv(h, CHANNELS, CHANNELS))
            h = self.add("Add", h, self.conv(inner, CHANNELS, CHANNELS))
        return self.conv(h, CHANNELS, 3)

    def body(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """Return what was added as a body with weights of its own."""
        return helper.make_graph(self.nodes, name, inputs, outputs, self.weights)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def sampler() -> onnx.ModelProto:
    """A Loop such as that of a diffusion model: each step takes away what the network finds in the picture."""
    inside = Network()
    noise = inside.add("Tanh", inside.residual_network("x"))
    made = inside.add("Sub", "x", inside.add("Mul", noise, inside.constant(np.float32(0.1))))
    still = inside.add("Identity", "on")
    shape = [1, 3, PIXELS, PIXELS]
    body = inside.body(
        "step",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, shape)],
        [value(still, TensorProto.BOOL, []), value(made, TensorProto.FLOAT, shape)],
    )
    outside = Network()
    begin = outside.constant(np.int64(STEPS))
    outside.nodes.append(helper.make_node("Loop", [begin, "", "noise"], ["picture"], name="sampler", body=body))
    ends = [value("noise", TensorProto.FLOAT, shape)], [value("picture", TensorProto.FLOAT, shape)]
    return _model(outside.body("sampler", *ends))


def frames() -> onnx.ModelProto:
    """A Scan over the frames of a clip: each is added to a moving mean, which a network sharpens."""
    inside, shape = Network(), [1, 3, PIXELS, PIXELS]
    half = inside.constant(np.float32(0.5))
    mean = inside.add("Mul", inside.add("Add", "mean", "frame"), half)
    sharp = inside.add("Add", mean, inside.residual_network(mean))
    body = inside.body(
        "frame",
        [value("mean", TensorProto.FLOAT, shape), value("frame", TensorProto.FLOAT, shape)],
        [value(mean, TensorProto.FLOAT, shape), value(sharp, TensorProto.FLOAT, shape)],
    )
    outside, clip = Network(), [STEPS, *shape]
    outside.nodes.append(
        helper.make_node("Scan", ["begin", "clip"], ["end", "made"], name="clip", body=body, num_scan_inputs=1)
    )
    inputs = [value("begin", TensorProto.FLOAT, shape), value("clip", TensorProto.FLOAT, clip)]
    outputs = [value("end", TensorProto.FLOAT, shape), value("made", TensorProto.FLOAT, clip)]
    return _model(outside.body("frames", inputs, outputs))


def branch() -> onnx.ModelProto:
    """An If that sharpens a picture, or leaves it as it is where it is dark."""
    inside, outside, shape = Network(), Network(), [1, 3, PIXELS, PIXELS]
    made = inside.add("Add", "x", inside.residual_network("x"))
    sharp = inside.body("sharp", [], [value(made, TensorProto.FLOAT, shape)])
    plain = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"], name="same")],
        "plain",
        [],
        [value("same", TensorProto.FLOAT, shape)],
    )
    light = outside.add("ReduceMean", "x", keepdims=0)
    bright = outside.add("Greater", light, outside.constant(np.float32(-9)))
    outside.nodes.append(helper.make_node("If", [bright], ["y"], name="if", then_branch=sharp, else_branch=plain))
    ends = [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, shape)]
    return _model(outside.body("branch", *ends))


def decoder() -> onnx.ModelProto:
    """A greedy decoder: a Loop of wide products, whose last one says which word comes next."""
    inside = Network()
    word = inside.add("Gather", inside.weight(WORDS, WIDTH), "word")
    h = inside.add("Tanh", inside.add("Add", word, inside.add("MatMul", "state", inside.weight(WIDTH, WIDTH))))
    wide = inside.add("Relu", inside.add("MatMul", h, inside.weight(WIDTH, 4 * WIDTH)))
    state = inside.add("Add", h, inside.add("MatMul", wide, inside.weight(4 * WIDTH, WIDTH)))
    scores = inside.add("MatMul", state, inside.weight(WIDTH, WORDS))
    found = inside.add("ArgMax", scores, axis=-1, keepdims=0)
    still = inside.add("Identity", "on")
    body = inside.body(
        "word",
        [
            value("i", TensorProto.INT64, []),
            value("on", TensorProto.BOOL, []),
            value("word", TensorProto.INT64, [1]),
            value("state", TensorProto.FLOAT, [1, WIDTH]),
        ],
        [
            value(still, TensorProto.BOOL, []),
            value(found, TensorProto.INT64, [1]),
            value(state, TensorProto.FLOAT, [1, WIDTH]),
            value(scores, TensorProto.FLOAT, [1, WORDS]),
        ],
    )
    outside = Network()
    count, begin = outside.constant(np.int64(TOKENS)), outside.constant(np.int64([1]))
    outside.nodes.append(
        helper.make_node("Loop", [count, "", begin, "state"], ["last", "end", "scores"], name="decoder", body=body)
    )
    outputs = [value("end", TensorProto.FLOAT, [1, WIDTH]), value("scores", TensorProto.FLOAT, [TOKENS, 1, WORDS])]
    return _model(outside.body("decoder", [value("state", TensorProto.FLOAT, [1, WIDTH])], outputs))


MODELS = {
    f"Loop: a sampler of {STEPS} steps": sampler,
    f"Scan: {STEPS} frames": frames,
    "If: one picture": branch,
    f"Loop: a decoder of {TOKENS} words": decoder,
}


def look(name: str, model: Path, options: CompileOptions, targets: list[str], rounds: int, folder: Path) -> None:
    """Compile one model and print what the kernels in its bodies gain."""
    options = replace(options, plan_out=folder / "plan.json", db=str(folder / "timings.sqlite"))
    executable = collage.compile(model, targets, options=options)
    inner = [kernel for row in executable.report.kernels for kernel in row.bodies]
    print(f"{name}: {executable!r}", flush=True)
    for kernel in inner:
        print(f"  {kernel.name}: {kernel.target}, {kernel.operators}", flush=True)
    if not inner:
        return
    single = fastest_single(model, executable, options)
    saved = [each.save(folder / f"{i}.collage") for i, each in enumerate((single, executable))]
    found = compare_artefacts(saved[0], saved[1], model, rounds=rounds)
    if found["speedup"] is None:
        print(f"  not compared: {'; '.join(str(row['reason']) for row in found['rows'] if row['reason'])}", flush=True)
        return
    before, after = (row["median_us"] / 1e3 for row in found["rows"])
    low, high = found["speedup_interval"]
    print(
        f"  {found['speedup']:.3f} ({low:.3f} to {high:.3f}) times as fast as {single.recipe.kernels[0].target} alone: "
        f"{after:.3f} ms, {before:.3f} ms without",
        flush=True,
    )


def main() -> int:
    parser = make_parser(__doc__, models="", without_models="four that are made up", targets=MENU, threads=0, rounds=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        named = [(model.name, model.path) for model in chosen_models(given)] if given.models else []
        for name, make in () if named else MODELS.items():
            path = Path(scratch) / f"{make.__name__}.onnx"
            onnx.save(make(), path)
            named.append((name, path))
        for number, (name, path) in enumerate(named):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            look(name, path, CompileOptions(threads=given.threads), given.targets.split(","), given.rounds, folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
