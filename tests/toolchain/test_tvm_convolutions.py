"""Convolutions that TVM's importer gets written anew, against ONNX Runtime: many of them in one kernel."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
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

Case = tuple[str, Sequence[int], Sequence[int], Mapping[str, Any]]
"""An operator, the shapes of input and weight, and attributes."""

CASES: list[Case] = [
    ("ConvTranspose", (1, 6, 1, 1), (6, 4, 4, 4), {}),
    ("ConvTranspose", (2, 4, 5, 1), (4, 3, 4, 3), {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("ConvTranspose", (1, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 3], "pads": [0, 1, 2, 0], "output_padding": [1, 2]}),
    ("ConvTranspose", (1, 4, 5, 6), (4, 2, 3, 3), {"strides": [2, 1], "group": 2, "dilations": [2, 1]}),
    ("ConvTranspose", (1, 4, 7, 7), (4, 1, 5, 5), {"strides": [4, 4], "group": 4, "pads": [4, 4, 4, 4]}),
    ("ConvTranspose", (2, 4, 6), (4, 3, 5), {"strides": [3], "pads": [2, 1]}),
    ("ConvTranspose", (1, 3, 3, 4, 4), (3, 2, 2, 3, 3), {"strides": [2, 2, 2], "pads": [0, 1, 1, 0, 1, 1]}),
    ("Conv", (2, 4, 5, 6, 6), (6, 2, 3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1], "group": 2, "strides": [2, 1, 2]}),
    ("Conv", (1, 3, 7, 5, 6), (4, 3, 2, 3, 1), {"pads": [2, 0, 1, 0, 1, 1], "dilations": [3, 1, 1]}),
    ("Conv", (1, 4, 4, 5, 5), (4, 1, 1, 3, 3), {"group": 4}),
    ("Conv", (1, 5, 9, 8), (3, 5, 3, 3), {"pads": [1, 0, 1, 1]}),
    ("Conv", (2, 3, 7, 6), (1, 3, 3, 2), {"strides": [2, 1]}),
    ("Conv", (1, 16, 8, 8), (18, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (1, 8, 11, 12), (3, 8, 9, 9), {"pads": [4, 3, 4, 5]}),
    ("Conv", (2, 8, 11, 12), (1, 8, 5, 4), {"strides": [2, 1], "dilations": [1, 2], "pads": [0, 3, 1, 0]}),
    ("Conv", (1, 8, 9, 12), (2, 8, 3, 5), {"strides": [1, 2]}),
    ("Conv", (1, 4, 6, 6), (6, 2, 3, 3), {"group": 2}),
]


def model_of(cases: Sequence[Case]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, inputs, outputs, weights = [], [], [], []
    for i, (op, x, w, attributes) in enumerate(cases):
        maps = w[0] if op == "Conv" else w[1] * attributes.get("group", 1)
        given = [f"x{i}", f"w{i}", f"b{i}"][: 2 + i % 2]
        nodes.append(helper.make_node(op, given, [f"y{i}"], name=f"n{i}", **attributes))
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, x))
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None))
        values = [rng.standard_normal(shape, dtype=np.float32) for shape in (w, [maps])]
        weights += [numpy_helper.from_array(v, n) for v, n in zip(values, given[1:], strict=False)]
    graph = helper.make_graph(nodes, "convolutions", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def expected_of(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The reference of ONNX writes groups of transposed convolutions over each other."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, dict(feeds))]


def check(cases: Sequence[Case], workspace: Path) -> None:
    model, toolchain, target = model_of(cases), TvmToolchain(), Target.parse("llvm")
    rng = np.random.default_rng(1)
    feeds = {f"x{i}": rng.standard_normal(x, dtype=np.float32) for i, (_, x, _, _) in enumerate(cases)}
    wanted = expected_of(model, feeds)
    made = compile_for(toolchain, ir.serde.deserialize_model(model), target, workspace)
    kernel = toolchain.load(made, target, workspace, LoadOptions(2, exclusive=True))
    found = dict(zip(made.outputs, kernel([feeds[name] for name in made.inputs]), strict=True))
    for i, (case, expected) in enumerate(zip(cases, wanted, strict=True)):
        actual = np.asarray(found[f"y{i}"])
        assert actual.shape == expected.shape, case
        np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max(), rtol=0, err_msg=str(case))


def test_they_compute_what_onnx_says(tmp_path: Path) -> None:
    check([CASES[i] for i in (0, 2, 3, 7)], tmp_path)


@pytest.mark.slow
def test_more_of_them_compute_what_onnx_says(tmp_path: Path) -> None:
    check(CASES, tmp_path)


def drawn(rng: random.Random) -> Case:
    rank, group = rng.choice([1, 2, 2, 3]), rng.choice([1, 1, 2])
    is_transposed = rank < 3 or rng.random() < 0.5
    strides, kernel = ([rng.randint(1, 4 if rank < 3 else 2) for _ in range(rank)] for _ in range(2))
    dilations = [rng.choice([1, 1, 2]) for _ in range(rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    lengths = [rng.choice([1, 2, 5, 6]) if is_transposed else max(rng.randint(1, 6), r) for r in reach]
    channels, maps = group * rng.randint(1, 3), rng.randint(1, 3)
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    if not is_transposed:
        attributes["pads"] = [rng.randint(0, 2) for _ in range(2 * rank)]
        return "Conv", (rng.randint(1, 2), channels, *lengths), (group * maps, channels // group, *kernel), attributes
    extra = [rng.randrange(s) for s in strides]
    whole = [(n - 1) * s + r + e for n, s, r, e in zip(lengths, strides, reach, extra, strict=True)]
    cut = [[(begin := rng.randrange(min(4, n))), rng.randrange(min(4, n - begin))] for n in whole]
    attributes |= {"output_padding": extra, "pads": [each for pair in zip(*cut, strict=True) for each in pair]}
    return "ConvTranspose", (rng.randint(1, 2), channels, *lengths), (channels, maps, *kernel), attributes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_drawn_ones_compute_what_onnx_says(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    check([drawn(rng) for _ in range(10)], tmp_path)


@pytest.mark.slow
def test_lengths_that_are_not_known_need_no_others(tmp_path: Path) -> None:
    """The same kernel serves images of any size, also of one element."""
    model = model_of([CASES[2], CASES[7]])
    for value in model.graph.input:
        for axis in (2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model)
    toolchain, target = TvmToolchain(), Target.parse("llvm")
    made = compile_for(toolchain, ir.serde.deserialize_model(model), target, tmp_path)
    kernel = toolchain.load(made, target, tmp_path, LoadOptions(1, exclusive=True))
    for lengths in ((5, 6), (1, 3), (1, 1), (9, 4)):
        feeds = {
            "x0": np.random.default_rng(2).standard_normal((1, 4, lengths[0], 6), dtype=np.float32),
            "x1": np.random.default_rng(3).standard_normal((2, 4, *lengths, 6), dtype=np.float32),
        }
        feeds["x0"] = np.repeat(feeds["x0"][:, :, :, :1], lengths[1], axis=3)
        found = dict(zip(made.outputs, kernel([feeds[name] for name in made.inputs]), strict=True))
        for name, expected in zip(("y0", "y1"), expected_of(model, feeds), strict=True):
            assert np.shape(found[name]) == expected.shape
            assert np.abs(found[name] - expected).max() <= 1e-4 * math.ceil(np.abs(expected).max())
