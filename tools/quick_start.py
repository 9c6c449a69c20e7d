"""Run the quick start of the README with the Collage that is installed, on a small model that is made here.

``make try-dist`` runs it in a clean environment, outside the checkout.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import collage


def write_model(path: Path) -> None:
    """Write a small network of two convolutions."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "v": (8, 8, 3, 3)}
    initializers = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) / 5, name) for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], pads=[1] * 4),
        helper.make_node("Tanh", ["c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 32, 32]) for n, c in (("x", 3), ("y", 8))]
    graph = helper.make_graph(nodes, "quick_start", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def main() -> None:
    """Run each command, and fail with the first that fails."""
    assert not Path(str(collage.__file__)).is_relative_to(Path(__file__).parents[1] / "src"), "not the installed one"
    command = str(Path(sys.executable).with_name("collage"))
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model.onnx")
        for line in (
            "targets",
            "compile model.onnx -o model.collage",
            "run model.collage",
            "bench model.collage",
            "explain model.collage",
            "report model.collage -o report.html",
        ):
            print(f"$ collage {line}", flush=True)
            subprocess.run([command, *line.split()], cwd=folder, check=True)


if __name__ == "__main__":
    main()
