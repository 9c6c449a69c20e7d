"""What half a gigabyte of weights costs in resident memory: an artefact loaded, and running, and the model compiled.

Five large matrix products are built as one kernel for each toolchain, and as a mix. Each artefact is loaded and run in a
process of its own; what the process had before, packages imported, does not count. Then the model is compiled: what all
processes of that hold together, pages that they share counted once, may be what the largest toolchain held at its peak,
and one copy of the weights. What compiling a model of no weights takes, packages in several processes, does not count.

Usage: ``python -m benchmarks.memory [--width N]``; weights are 20 N² bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS
from pathlib import Path

import numpy as np
import psutil
from benchmarks._arguments import make_parser

LIMIT = 1.3
LAYERS = 5
CASES = {
    "onnxruntime": [(range(2 * LAYERS), "onnxruntime")],
    "openvino": [(range(2 * LAYERS), "openvino")],
    "both": [(range(4), "onnxruntime"), (range(4, 2 * LAYERS), "openvino")],
}


TARGETS = ("onnxruntime", "openvino")


def save_model(width: int, folder: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(LAYERS):
        weight = random.standard_normal((width, width), np.float32) / width**0.5
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"x{i + 1}"]))
    first, last = (helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1, width]) for i in (0, LAYERS))
    graph = helper.make_graph(nodes, "wide", [first], [last], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = folder / f"wide_{width}.onnx"
    onnx.save(model, path, save_as_external_data=True, location=f"wide_{width}.data")
    return path


def save_artefacts(model: Path) -> None:
    from collage.testing import executable_of

    for name, parts in CASES.items():
        executable_of(model, parts).save(model.with_name(f"{name}.collage"))


def compile_model(model: Path) -> None:
    import collage

    collage.compile(model, TARGETS, options=collage.CompileOptions(db="sqlite:///:memory:"))


def peak_of_compiling(model: Path) -> int:
    """What a compiling process and its workers hold together at most, in bytes."""
    peak = 0
    command = [sys.executable, "-m", "benchmarks.memory", "--compile", str(model)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None:
            held = 0
            try:
                own = psutil.Process(running.pid)
                for process in (own, *own.children(recursive=True)):
                    held += process.memory_full_info().pss
            except psutil.Error:  # One that has just ended.
                continue
            peak = max(peak, held)
            time.sleep(0.02)
    if running.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}")
    return peak


def measure(path: Path, width: int) -> dict[str, int]:
    import onnxruntime  # noqa: F401  packages are not what is measured
    import openvino  # noqa: F401

    import collage
    import collage.frontend

    def resident() -> int:
        return int(psutil.Process().memory_info().rss)

    before = resident()
    exe = collage.load(path)
    loaded = resident()
    for _ in range(3):
        exe.run([np.ones((1, width), np.float32)])
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"loaded": loaded - before, "running": resident() - before, "peak": peak - before}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--width", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--measure", type=Path, help=SUPPRESS)
    parser.add_argument("--compile", type=Path, help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure, arguments.width)))
        return 0
    if arguments.compile is not None:
        compile_model(arguments.compile)
        return 0
    weights = LAYERS * 4 * arguments.width**2
    print(f"weights {weights / 2**20:.0f} MiB")
    print(f"{'MiB':<14}{'loaded':>9}{'running':>9}{'peak':>9}{'running/weights':>18}")
    fine, largest = True, 0
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(arguments.width, Path(folder))
        save_artefacts(model)
        for name in CASES:
            artefact = model.with_name(f"{name}.collage")
            command = [
                sys.executable,
                "-m",
                "benchmarks.memory",
                "--measure",
                artefact,
                "--width",
                str(arguments.width),
            ]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            ratio = found["running"] / weights
            fine, largest = fine and ratio <= LIMIT, max(largest, found["peak"])
            print(f"{name:<14}" + "".join(f"{value / 2**20:>9.0f}" for value in found.values()) + f"{ratio:>18.2f}")
        compiling = peak_of_compiling(model) - peak_of_compiling(save_model(16, Path(folder)))
    allowed = largest + weights
    fine = fine and compiling <= allowed
    print(f"compiling     {compiling / 2**20:.0f} MiB of {allowed / 2**20:.0f}: {compiling / allowed:.2f}")
    print(f"{'within' if fine else 'BEYOND'} {LIMIT} times the weights, and the largest toolchain's peak and one copy")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
