"""Gathers and scatters in TVM's loops, against ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage._errors import InputError
from collage.frontend import read_model
from collage.target import Target
from collage.toolchains import LoadOptions, compile_for, load_for
from collage.toolchains.tvm.toolchain import TvmToolchain
from collage.transform import prepare

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
RESULTS = "y"


class Case(NamedTuple):
    """One operator: its inputs by name, and how it is written."""

    op: str
    feeds: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]
    repeats: tuple[int, ...] | None = None

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the operator, with an Expand before it that repeats its indices."""
        inputs = list(self.feeds)
        if self.repeats is None:
            return [helper.make_node(self.op, inputs, ["y"], **self.attributes)]
        inputs[1] = "e"
        return [
            helper.make_node("Expand", ["i", "s"], ["e"]),
            helper.make_node(self.op, inputs, ["y"], **self.attributes),
        ]


def model_of(cases: list[Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return one model with all cases side by side, and its inputs."""
    nodes, inputs, outputs, weights, feeds = [], [], [], [], {}
    for n, case in enumerate(cases):
        for node in case.nodes():
            for names in (node.input, node.output):
                names[:] = [f"{name}{n}" for name in names]
            nodes.append(node)
        for name, array in case.feeds.items():
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"{name}{n}", dtype, array.shape))
            feeds[f"{name}{n}"] = array
        if case.repeats is not None:
            weights.append(numpy_helper.from_array(np.array(case.repeats, np.int64), f"s{n}"))
        dtype = helper.np_dtype_to_tensor_dtype(case.feeds["x"].dtype)
        outputs.append(helper.make_tensor_value_info(f"y{n}", dtype, None))
    graph = helper.make_graph(nodes, "cases", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), feeds


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path, threads: int = 2) -> list[np.ndarray]:
    kernel = prepare(read_model(model))
    kernel.graph.name = "kernel"
    compiled = compile_for(TvmToolchain(), kernel, TARGET, folder)
    loaded = load_for(TvmToolchain(), compiled, TARGET, folder, LoadOptions(threads=threads))
    return [np.array(y) for y in loaded([feeds[name] for name in compiled.inputs])]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("int"):
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def scattered_elements(rng: np.random.Generator, reduction: str, dtype: str) -> Iterator[Case]:
    """Random scatters of every rank and axis, with indices that are repeated along other axes or not."""
    for rank in (1, 2, 3, 4):
        shape = [int(n) for n in rng.integers(1, 7, rank)]
        if rank == 2:
            shape[1] = int(rng.choice([1, 16, 40, 64, 96, 100]))
        axis = int(rng.integers(0, rank))
        count = int(rng.choice([0, 1, 5, 11]))
        whole = [*shape[:axis], count, *shape[axis + 1 :]]
        kept = [n if i == axis or not count or rng.random() < 0.4 else 1 for i, n in enumerate(whole)]
        indices = rng.integers(-shape[axis], shape[axis], kept).astype(rng.choice(["int32", "int64"]))
        feeds = {"x": numbers(rng, (*shape,), dtype), "i": indices, "u": numbers(rng, (*whole,), dtype)}
        attributes = {"axis": axis - rank * int(rng.integers(0, 2)), "reduction": reduction}
        yield Case("ScatterElements", feeds, attributes, None if kept == whole or 0 in whole else tuple(whole))


def scattered_points(rng: np.random.Generator, reduction: str, dtype: str) -> Iterator[Case]:
    for rank in (1, 2, 3, 4):
        shape = [int(n) for n in rng.integers(1, 7, rank)]
        count = int(rng.integers(1, rank + 1))
        points = [int(n) for n in rng.integers(0, 5, int(rng.integers(1, 3)))]
        indices = np.stack([rng.integers(-n, n, points) for n in shape[:count]], -1)
        feeds = {"x": numbers(rng, (*shape,), dtype), "i": indices}
        yield Case("ScatterND", feeds | {"u": numbers(rng, (*points, *shape[count:]), dtype)}, {"reduction": reduction})


def gathers(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    for rank in (1, 2, 3, 4):
        shape = [int(n) for n in rng.integers(1, 7, rank)]
        axis, count = int(rng.integers(0, rank)), int(rng.choice([0, 1, 5]))
        x = numbers(rng, (*shape,), dtype)
        some = [int(n) for n in rng.integers(0, 4, int(rng.integers(0, 3)))]
        i = rng.integers(-shape[axis], shape[axis], some).astype(rng.choice(["int32", "int64"]))
        yield Case("Gather", {"x": x, "i": i}, {"axis": axis - rank * int(rng.integers(0, 2))})
        whole = [*shape[:axis], count, *shape[axis + 1 :]]
        kept = [n if at == axis or not count or rng.random() < 0.4 else 1 for at, n in enumerate(whole)]
        i = rng.integers(-shape[axis], shape[axis], kept)
        yield Case(
            "GatherElements", {"x": x, "i": i}, {"axis": axis}, None if kept == whole or 0 in whole else tuple(whole)
        )
        batches = int(rng.integers(0, rank))
        entries = shape[batches : batches + int(rng.integers(1, rank - batches + 1))]
        lead = [*shape[:batches], *(int(n) for n in rng.integers(0, 4, int(rng.integers(0, 2))))]
        points = np.stack([rng.integers(-n, n, lead) for n in entries], -1)
        yield Case("GatherND", {"x": x, "i": points}, {"batch_dims": batches})


def expected(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model).run(None, dict(feeds))


def assert_equal(cases: list[Case], folder: Path) -> None:
    model, feeds = model_of(cases)
    for case, made, right in zip(cases, run(model, feeds, folder), expected(model, feeds), strict=True):
        what = (case.op, {k: (v.shape, v.dtype) for k, v in case.feeds.items()}, case.attributes, case.repeats)
        np.testing.assert_array_equal(made, right, err_msg=str(what))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters_are_those_of_the_reference_to_the_last_bit(reduction: str, dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(reduction) * 7 + len(dtype))
    assert_equal([*scattered_elements(rng, reduction, dtype), *scattered_points(rng, reduction, dtype)], tmp_path)
