"""Convolutions of windows 3 x 3 in TVM's loops: plain, by F(2,3), F(4,3) and F(6,3), and by other toolchains.

::

    python -m benchmarks.winograd [--threads 1] [--seconds 4] [--only 64x64] [--models FILE.onnx]

Each case is a chain of convolutions with bias and ReLU. All contenders are kernels of this process, called in turns, in random
order. The figures are milliseconds of one convolution. With one thread it is processor time, which other processes on
the machine do not count in, and the least of all calls. With several it is the lower quartile of the elapsed time.
Errors are the largest difference from ONNX Runtime, relative to its largest output. ``--models`` times whole files instead.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
from benchmarks._arguments import make_parser
from onnx import TensorProto, helper, numpy_helper

from collage.frontend import make_inputs, place_weights, read_model
from collage.graph import copy_model
from collage.target import Target
from collage.toolchains import LoadOptions, compile_for, load_for, registry
from collage.transform import prepare

LENGTH = 4
"""Convolutions of a chain: the layout of its input and output changes once."""
TURN_S = 0.02
PAUSE_S = 0.003
CASES = (
    (16, 32), (16, 128), (32, 16), (32, 64), (32, 128), (64, 8), (64, 16), (64, 32), (64, 64), (64, 96), (96, 40),
    (128, 8), (128, 16), (128, 32), (128, 64), (192, 28), (256, 8), (256, 16), (256, 24), (256, 48),
    (512, 7), (512, 12), (512, 24),
)  # fmt: skip
"""Channels, and rows and columns of the image."""
OTHERS = ("onnxruntime", "openvino", "ncnn")
PLAIN = "plain"

Call = Callable[[], Any]


def by_tiles(outputs: int | None) -> AbstractContextManager[Any]:
    """Have TVM's loops use F(outputs, 3) wherever they can while this is entered; plain loops for 0, the rule for None."""
    from collage.toolchains.tvm import winograd

    if outputs is None:
        return nullcontext()
    return patch.multiple(winograd, _OUTPUTS=(outputs or 2,), _GAIN=1e9 if outputs else 0.0)


def chain(channels: int, size: int) -> onnx.ModelProto:
    """Return a chain of convolutions that keep the number of channels, each with bias and ReLU."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(LENGTH):
        scale = np.sqrt(2 / (9 * channels))
        weight = rng.standard_normal((channels, channels, 3, 3)) * scale
        bias = rng.standard_normal(channels) * 0.1
        for name, numbers in ((f"w{i}", weight), (f"b{i}", bias)):
            weights.append(numpy_helper.from_array(numbers.astype(np.float32), name))
        nodes.append(helper.make_node("Conv", [value, f"w{i}", f"b{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        value = f"y{i}"
        nodes.append(helper.make_node("Relu", [f"c{i}"], [value]))
    shape = [1, channels, size, size]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", value)]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def contender(model: ir.Model, text: str, inputs: Mapping[str, Any], threads: int, folder: Path) -> Call:
    """Return a call of a model on one toolchain."""
    target = Target.parse(text)
    toolchain = registry().for_target(target)
    folder.mkdir()
    compiled = compile_for(toolchain, place_weights(copy_model(model), folder), target, folder)
    kernel = load_for(toolchain, compiled, target, folder, LoadOptions(threads))
    given = [inputs[name] for name in compiled.inputs]
    return lambda: kernel(given)


def race(calls: Mapping[str, Call], seconds: float, threads: int) -> dict[str, float]:
    """Return the time of each call in milliseconds."""
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    rng = np.random.default_rng(1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name in rng.permutation(list(calls)):
            calls[name]()
            end = time.monotonic() + TURN_S
            while True:
                began = clock()
                calls[name]()
                times[name].append(clock() - began)
                if time.monotonic() > end:
                    break
            time.sleep(PAUSE_S)
    quantile = 0.0 if threads == 1 else 0.25
    return {name: float(np.quantile(taken, quantile)) * 1e3 for name, taken in times.items()}


def contenders(
    model: ir.Model, inputs: Mapping[str, Any], threads: int, tiles: Mapping[str, int | None]
) -> Iterator[tuple[str, Call | None]]:
    """Yield calls of a model by name: other toolchains, then TVM with each kind of tiles; None of what refuses it."""
    names = [*OTHERS, *tiles]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            text = "llvm" if name in tiles else f"llvm -compiler={name}"
            try:
                with by_tiles(tiles.get(name)):
                    yield name, contender(model, text, inputs, threads, Path(folder, name))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {str(error)[:120]}")
                yield name, None


def row_of(model: ir.Model, threads: int, seconds: float, tiles: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the time of each contender in milliseconds, and errors of TVM's."""
    inputs = dict(make_inputs(model, 1))
    calls = {name: call for name, call in contenders(model, inputs, threads, tiles) if call is not None}
    answers = {name: np.array(call()[0]) for name, call in calls.items()}
    exact = answers["onnxruntime"]
    errors = {name: float(np.abs(answers[name] - exact).max() / np.abs(exact).max()) for name in tiles if name in calls}
    return {**race(calls, seconds, threads), "errors": errors}


def shown(row: Mapping[str, Any], names: Sequence[str], divisor: int) -> str:
    """Return a row of a table in Markdown."""
    figures = [f"{row[name] / divisor:.3f}" if name in row else "-" for name in names]
    return " | ".join([*figures, ", ".join(f"{error:.0e}" for error in row["errors"].values())])


def main() -> None:
    """Entry point of the script."""
    parser = make_parser(__doc__, threads=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long a case is timed (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="64x64", help="only the case of these channels and rows")
    parser.add_argument("--models", nargs="*", type=Path, default=[], metavar="FILE", help="whole ONNX files instead")
    options = parser.parse_args()
    tiles: dict[str, int | None] = {PLAIN: 0, "chosen": None}
    if not options.models:
        tiles = {PLAIN: 0, "F(2,3)": 2, "F(4,3)": 4, "F(6,3)": 6}
    names = [*OTHERS, *tiles]
    print(f"| case | {' | '.join(names)} | errors |\n|{'---|' * (len(names) + 2)}", flush=True)
    for path in options.models:
        row = row_of(prepare(read_model(path)), options.threads, options.seconds, tiles)
        print(f"| {path.parent.name} | {shown(row, names, 1)} |", flush=True)
    for channels, size in [] if options.models else CASES:
        if options.only in ("", f"{channels}x{size}"):
            model = prepare(read_model(chain(channels, size)))
            row = row_of(model, options.threads, options.seconds, tiles)
            print(f"| {channels}x{size} | {shown(row, names, LENGTH)} |", flush=True)


if __name__ == "__main__":
    main()
