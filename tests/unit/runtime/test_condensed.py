"""Small artefacts compute what large ones do, by their kernels, by the host in their place, and after a rebuild."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.runtime import Executable, write_condensed
from collage.testing import executable_of

ORT, OPENVINO = "llvm -compiler=onnxruntime", "llvm -compiler=openvino"
SIZE = 256


def model() -> onnx.ModelProto:
    """Rows of a table, then products, two of whose weights are equal."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 16, name)

    weights = [weight("table", 50, SIZE), weight("a", SIZE, SIZE), weight("c", SIZE, SIZE)]
    weights.append(numpy_helper.from_array(numpy_helper.to_array(weights[1]), "b"))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        *(helper.make_node("MatMul", [x, w], [y]) for x, w, y in (("x", "a", "p"), ("p", "b", "q"), ("q", "c", "y"))),
    ]
    ports = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIZE]),
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


FEEDS = {"ids": np.array([3, 49, 0], np.int64)}


def condensed(executable: Executable, folder: Path) -> Executable:
    folder.mkdir()
    return Executable(write_condensed(executable.recipe, executable.workspace, folder), folder)


def weights_in(executable: Executable) -> int:
    names = executable.recipe.files_with_weights(executable.workspace)
    return sum((executable.workspace / name).stat().st_size for name in names)


def run(executable: Executable) -> Any:
    return executable.run(FEEDS)["y"]


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        # Of 3 x 256 KiB and a table of 50 KiB: one product in floats twice, which is stored once; the rest in bytes.
        ([(range(2), f"{ORT} -precision=w8"), ([2], ORT), ([3], f"{OPENVINO} -precision=w8")], 0.62),
        (f"{ORT} -precision=w4", 0.25),
        (f"{ORT} -precision=int8-dynamic", 0.36),
        (ORT, 0.70),
    ],
    ids=["mixed", "w4", "dynamic", "floats"],
)
def test_small_artefacts_compute_the_same(parts: Any, most: float, tmp_path: Path) -> None:
    usual = executable_of(model(), parts, threads=1)
    small = condensed(usual, tmp_path / "small")
    floats = sum(numpy_helper.to_array(each).nbytes for each in model().graph.initializer)
    assert weights_in(small) < most * floats + 20_000 < weights_in(usual) + 20_000
    expected = run(usual)
    np.testing.assert_array_equal(run(small), expected)
    path = small.save(tmp_path / "a.collage")
    np.testing.assert_array_equal(run(collage.load(path)), expected)  # Every byte and model of it is checked.
    # The partitioned model is the source of a reduced kernel, so that nothing needs the floats.
    host = small._loader()
    values: list[Any] = [FEEDS["ids"]]
    for position, kernel in enumerate(small.recipe.kernels):
        (made,) = host.run(position, values)
        values = [made]
        assert kernel.outputs
    np.testing.assert_allclose(values[0], expected, rtol=0, atol=2e-2 * np.abs(expected).max())
