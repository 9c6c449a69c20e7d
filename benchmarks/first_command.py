"""Compile small models as a newcomer does, and see if ``collage bench`` finds anything that is faster.

::

    python -m benchmarks.first_command [--models a.onnx,b.onnx] [--databases 5] [--load 0] [--rounds 15]

Each compilation begins with an empty database and takes plain defaults. A row tells if the fastest row of ``bench`` took part in
the comparison of ``compile``, and the time of what was returned over that of the fastest row, with the lower end of its 95 %
interval: below 1, ``bench`` cannot tell the two apart. Rows in a coarser type do not count. ``--load`` keeps so many processes
busy in a changing rhythm. Without ``--models``, twelve networks of 0.02 to 10 ms. A quiet machine is a must, but for ``--load``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from benchmarks._arguments import chosen_models, make_parser
from benchmarks.restless import restless

from collage.testing._toolchain_kernels import kernel

NEAR = 1.03
"""Largest ratio of the returned plan's time to that of the fastest row, for the two to count as near."""
NEAR_US = 3.0
"""A call of an artefact may cost so many µs more than the toolchain used directly."""


class _Network:
    """A chain of operators over random weights, in ONNX's textual form."""

    def __init__(self, name: str, *shape: int) -> None:
        self._name, self._shape, self._last, self._body = name, shape, "x", ""
        self._weights: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(len(name))

    def weight(self, *shape: int) -> str:
        """Return the name of a new weight."""
        name = f"w{len(self._weights)}"
        scale = np.sqrt(2 / max(1, np.prod(shape[1:])))
        self._weights[name] = (scale * self._random.standard_normal(shape)).astype(np.float32)
        return name

    def add(self, call: str) -> _Network:
        """Add an operator; ``{}`` in its arguments is the last value."""
        value = f"v{self._body.count('=')}_"
        self._body += f"{value} = {call.replace('{}', self._last)}\n"
        self._last = value
        return self

    def conv(
        self, inner: int, outer: int, size: int = 3, *, stride: int = 1, group: int = 1, relu: bool = True
    ) -> _Network:
        """Add a convolution, and a Relu."""
        pad, w = size // 2, self.weight(outer, inner // group, size, size)
        attributes = f"pads = [{pad},{pad},{pad},{pad}], strides = [{stride},{stride}], group = {group}"
        self.add(f"Conv <{attributes}> ({{}}, {w})")
        return self.add("Relu ({})") if relu else self

    def dense(self, inner: int, outer: int, then: str = "") -> _Network:
        """Add a product with a matrix, a bias and an activation."""
        w, b = self.weight(inner, outer), self.weight(outer)
        self.add(f"MatMul ({{}}, {w})").add(f"Add ({{}}, {b})")
        return self.add(f"{then} ({{}})") if then else self

    def model(self, *shape: int) -> ir.Model:
        """Return the model, whose output has this shape."""
        ins, outs = (",".join(map(str, each)) for each in (self._shape, shape))
        text = f"(float[{ins}] x) => (float[{outs}] y) {{{self._body} y = Identity ({self._last})}}"
        return kernel(self._name, text, self._weights)


def small_models() -> Iterator[ir.Model]:
    """Yield twelve networks of kinds that people start with."""
    digits = _Network("digits", 1, 1, 8, 8).conv(1, 16).conv(16, 32, stride=2).add("Flatten ({})")
    yield digits.dense(512, 64, "Relu").dense(64, 10).model(1, 10)
    yield _Network("table", 1, 32).dense(32, 128, "Relu").dense(128, 64, "Relu").dense(64, 1, "Sigmoid").model(1, 1)
    yield _Network("table_of_64", 64, 32).dense(32, 256, "Relu").dense(256, 256, "Relu").dense(256, 4).model(64, 4)
    words = _Network("keywords", 1, 1, 49, 40).conv(1, 64, 5, stride=2)
    for _ in range(4):
        words.conv(64, 64, group=64).conv(64, 64, 1)
    yield words.add("GlobalAveragePool ({})").add("Flatten ({})").dense(64, 12).model(1, 12)
    layers = _Network("forty_layers", 1, 64)
    for _ in range(40):
        layers.dense(64, 64, "Relu")
    yield layers.model(1, 64)
    yield _Network("edges", 1, 3, 96, 96).conv(3, 16).conv(16, 16).conv(16, 1, 1, relu=False).model(1, 1, 96, 96)
    vgg = _Network("vgg_of_32", 1, 3, 32, 32).conv(3, 64).conv(64, 64).conv(64, 128, stride=2).conv(128, 128)
    yield (
        vgg.conv(128, 256, stride=2)
        .conv(256, 256)
        .add("GlobalAveragePool ({})")
        .add("Flatten ({})")
        .dense(256, 10)
        .model(1, 10)
    )
    mobile = _Network("mobile_of_64", 1, 3, 64, 64).conv(3, 32, stride=2)
    for inner, outer, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
        mobile.conv(inner, inner, stride=stride, group=inner).conv(inner, outer, 1)
    yield mobile.add("GlobalAveragePool ({})").add("Flatten ({})").dense(256, 100, "").add("Softmax ({})").model(1, 100)
    encoder = _Network("encoder", 1, 64, 128)
    for _ in range(2):
        shown = encoder._last
        scores = f"MatMul ({{}}, {encoder.weight(128, 128)})"
        encoder.add(scores).add("Transpose <perm = [0, 2, 1]> ({})").add(f"MatMul ({shown}, {{}})").add("Softmax ({})")
        encoder.add(f"MatMul ({{}}, {shown})").dense(128, 256, "Relu").dense(256, 128)
    yield encoder.model(1, 64, 128)
    coder = _Network("autoencoder", 1, 1, 28, 28).conv(1, 32, stride=2).conv(32, 64, stride=2)
    for inner, outer in ((64, 32), (32, 1)):
        w = coder.weight(inner, outer, 4, 4)
        coder.add(f"ConvTranspose <strides = [2,2], pads = [1,1,1,1]> ({{}}, {w})").add("Relu ({})")
    yield coder.model(1, 1, 28, 28)
    wide = _Network("wide_layers", 1, 512).dense(512, 2048, "Relu").dense(2048, 2048, "Relu")
    yield wide.dense(2048, 512).model(1, 512)
    upscale = _Network("upscale", 1, 1, 48, 48).conv(1, 64, 5).conv(64, 64).conv(64, 32).conv(32, 9, relu=False)
    yield upscale.add("DepthToSpace <blocksize = 3> ({})").model(1, 1, 144, 144)


def models_of(options: Any, folder: Path) -> Iterator[Path]:
    """Yield the files of the models."""
    if options.models:
        yield from (chosen.path for chosen in chosen_models(options))
        return
    for model in small_models():
        path = folder / f"{model.graph.name}.onnx"
        ir.save(model, path)
        yield path


def command(arguments: list[str], database: str) -> tuple[Mapping[str, Any], float]:
    """Run a command of Collage; return the JSON that it prints, and the seconds that it took."""
    began = time.monotonic()
    call = [sys.executable, "-m", "collage", *arguments, "--json", "-q"]
    done = subprocess.run(call, check=True, capture_output=True, text=True, env={**os.environ, "COLLAGE_DB": database})
    return json.loads(done.stdout), time.monotonic() - began


def short(name: str) -> str:
    """Return the name of a target in a table of ``bench``, where the host's compiler is not named."""
    return name.removeprefix("llvm -compiler=")


def main() -> None:
    """Print a row for each compilation, and a summary."""
    parser = make_parser(__doc__, models="", rounds=15)
    parser.add_argument("--databases", type=int, default=5, help="compilations of each model (default: 5)")
    parser.add_argument("--load", type=int, default=0, help="processes of the load (default: none)")
    options = parser.parse_args()
    print(
        f"{'model':<16}{'compile s':>10}  {'returned':>26}{'ms':>9}{'fastest row':>24}{'over it':>9}{'at least':>10}  compared"
    )
    compared = near = beyond = total = 0
    with tempfile.TemporaryDirectory() as kept:
        for path in models_of(options, Path(kept)):
            for _ in range(options.databases):
                with tempfile.TemporaryDirectory() as folder:
                    database, artefact = f"{folder}/db", f"{folder}/m.collage"
                    with restless(options.load):
                        report, seconds = command(["compile", str(path), "-o", artefact], database)
                    table, _ = command(
                        ["bench", artefact, "--rounds", str(options.rounds), "--model", str(path)], database
                    )
                returned = next(short(row["name"]) for row in report["rows"] if row["verdict"] == "returned")
                timed = [row for row in table["rows"] if row["median_us"] is not None and row["status"] == "ok"]
                rows = [row for row in timed if "precision=" not in row["name"]]  # Nobody allowed a coarser type.
                ours = next(row for row in rows if row["name"] == "collage")
                fastest = min(rows, key=lambda row: row["ratio"] or 1.0)
                over = 1 / (fastest["ratio"] or 1.0)
                least = 1 / fastest["ratio_interval"][1] if fastest["name"] != "collage" else 1.0
                raced = {short(row["name"]) for row in report["rows"] if row["ratio"] is not None} | {returned}
                is_compared = fastest["name"] in {*raced, "collage"}
                is_near = over <= NEAR or (1 - 1 / over) * ours["median_us"] <= NEAR_US
                compared, near, total = compared + is_compared, near + is_near, total + 1
                beyond += least > NEAR and not is_near
                figures = f"{ours['median_us'] / 1e3:>9.3f}{fastest['name']:>24}{over:>9.3f}{least:>10.3f}"
                print(
                    f"{path.stem:<16}{seconds:>10.1f}  {returned:>26}{figures}  {'yes' if is_compared else 'NO'}",
                    flush=True,
                )
    print(
        f"{compared} of {total}: the fastest row was compared; {near} of {total} within {NEAR} of it, or {NEAR_US:g} µs"
    )
    print(f"{beyond} of {total} slower than {NEAR} times the fastest row beyond doubt")


if __name__ == "__main__":
    main()
