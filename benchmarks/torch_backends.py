"""Race backends of ``torch.compile``: eager PyTorch, Inductor, OpenVINO's and Collage's, on modules as users write them.

    python -m benchmarks.torch_backends [--models mobile,unet] [--contenders inductor,collage] [--rounds 15]

Inductor and Collage are told that weights are frozen. Inductor runs by its defaults and by ``mode="max-autotune"``, and
OpenVINO computes in float32. Every contender compiles each module in a process of its own, without anything from earlier runs.
All take turns in random order. A row has milliseconds, the seconds of the first call, the largest error against eager PyTorch
relative to the largest value, and the time of the fastest other contender over Collage's, with its interval. The last line has
the geometric mean of these ratios. The exit code is 1 if Collage is slower than the fastest other by more than 3 % beyond
doubt, or wrong. Nothing else should run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks._independent import BLOCK_S, OURS, PAUSE_S, ROOT, answer, timed
from torch import nn
from torch.nn import functional

CONTENDERS = ("eager", "inductor", "max-autotune", "openvino", OURS)
_TOLERANCE = 1e-3
_SLOWER = 0.97


class Mobile(nn.Module):  # type: ignore[misc]
    """Inverted residual blocks with squeeze-and-excite."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish())
        self.blocks = nn.ModuleList()
        for _ in range(6):
            wide = nn.Sequential(nn.Conv2d(24, 96, 1, bias=False), nn.BatchNorm2d(96), nn.Hardswish())
            deep = nn.Sequential(nn.Conv2d(96, 96, 5, 1, 2, groups=96, bias=False), nn.BatchNorm2d(96), nn.Hardswish())
            gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(96, 24, 1), nn.ReLU(), nn.Conv2d(24, 96, 1), nn.Hardsigmoid()
            )
            self.blocks.append(nn.ModuleList([wide, deep, gate, nn.Conv2d(96, 24, 1)]))

    def forward(self, x: Any) -> Any:
        """Return features of pictures [N, 3, H, W]."""
        x = self.stem(x)
        for wide, deep, gate, narrow in self.blocks:
            y = deep(wide(x))
            x = x + narrow(y * gate(y))
        return x.mean((2, 3))


class Attending(nn.Module):  # type: ignore[misc]
    """Layers of attention and perceptrons, as encoders of text and of pictures have them."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )

    def forward(self, x: Any) -> Any:
        """Return the rows [N, T, width] after all layers."""
        for layer in self.layers:
            h = layer.norm1(x)
            qkv = functional.linear(h, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)
            q, k, v = qkv.unflatten(-1, (3, layer.self_attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + layer.self_attn.out_proj(y)
            x = x + layer.linear2(functional.gelu(layer.linear1(layer.norm2(x))))
        return x


class Residual(nn.Module):  # type: ignore[misc]
    """Residual blocks of 3 x 3 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(64, 64, 3, 1, 1),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1, 1),
                nn.BatchNorm2d(64),
            )
            for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        """Return features of pictures [N, 3, H, W]."""
        x = self.stem(x)
        for block in self.blocks:
            x = functional.relu(x + block(x))
        return x


class Next(nn.Module):  # type: ignore[misc]
    """Blocks of depthwise 7 x 7 convolutions, layer normalisation and perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 96, 4, 4)
        self.deep = nn.ModuleList(nn.Conv2d(96, 96, 7, 1, 3, groups=96) for _ in range(3))
        self.rest = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96)) for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        """Return features of pictures [N, 3, H, W]."""
        x = self.stem(x)
        for deep, rest in zip(self.deep, self.rest, strict=True):
            x = x + rest(deep(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x


class Unet(nn.Module):  # type: ignore[misc]
    """Halved and doubled pictures, joined, with group normalisation."""

    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1), nn.SiLU()
            )

        self.down = nn.ModuleList([block(4, 32), block(32, 64), block(64, 128)])
        self.up = nn.ModuleList([block(192, 64), block(96, 32)])
        self.out = nn.Conv2d(32, 4, 1)

    def forward(self, x: Any) -> Any:
        """Return pictures of the same size [N, 4, H, W]."""
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = functional.max_pool2d(kept[-1], 2)
        x = kept.pop()
        for block in self.up:
            x = block(torch.cat([functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.out(x)


class Gated(nn.Module):  # type: ignore[misc]
    """Gated convolutions over time, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(64, 128, 5, 1, 2) for _ in range(4))
        self.first, self.gru = nn.Conv1d(40, 64, 3, 1, 1), nn.GRU(64, 128, batch_first=True)

    def forward(self, x: Any) -> Any:
        """Return states of sounds [N, 40, T]."""
        x = self.first(x)
        for gate in self.gates:
            x = x + functional.glu(gate(x), 1)
        return self.gru(x.transpose(1, 2))[0]


class Mixer(nn.Module):  # type: ignore[misc]
    """Perceptrons over tokens and over channels."""

    def __init__(self) -> None:
        super().__init__()

        def mlp(width: int) -> nn.Module:
            return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

        self.tokens, self.channels = (nn.ModuleList(mlp(n) for _ in range(4)) for n in (64, 192))
        self.norms = nn.ModuleList(nn.LayerNorm(192) for _ in range(8))

    def forward(self, x: Any) -> Any:
        """Return the rows [N, 64, 192] after all layers."""
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        return x


class Style(nn.Module):  # type: ignore[misc]
    """Large windows, instance normalisation and doubled pictures."""

    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int, side: int, stride: int) -> nn.Module:
            return nn.Sequential(
                nn.ReflectionPad2d(side // 2),
                nn.Conv2d(a, b, side, stride),
                nn.InstanceNorm2d(b, affine=True),
                nn.ReLU(),
            )

        self.down = nn.Sequential(block(3, 16, 9, 1), block(16, 32, 3, 2), block(32, 64, 3, 2))
        self.same = nn.ModuleList(block(64, 64, 3, 1) for _ in range(3))
        self.up = nn.ModuleList([block(64, 32, 3, 1), block(32, 16, 3, 1)])
        self.out = nn.Sequential(nn.ReflectionPad2d(4), nn.Conv2d(16, 3, 9))

    def forward(self, x: Any) -> Any:
        """Return pictures of the same size [N, 3, H, W]."""
        x = self.down(x)
        for block in self.same:
            x = x + block(x)
        for block in self.up:
            x = block(functional.interpolate(x, scale_factor=2.0))
        return self.out(x)


def _enlarger() -> nn.Module:
    body = [each for _ in range(5) for each in (nn.Conv2d(48, 48, 3, 1, 1), nn.PReLU(48))]
    return nn.Sequential(nn.Conv2d(3, 48, 5, 1, 2), nn.PReLU(48), *body, nn.Conv2d(48, 27, 3, 1, 1), nn.PixelShuffle(3))


def _small_layers() -> nn.Module:
    return nn.Sequential(*(each for _ in range(40) for each in (nn.Linear(32, 32), nn.Tanh())))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mobile": (Mobile, (1, 3, 160, 160)),
    "residual": (Residual, (1, 3, 128, 128)),
    "next": (Next, (1, 3, 128, 128)),
    "picture encoder": (lambda: Attending(192, 3, 4), (1, 197, 192)),
    "text encoder": (lambda: Attending(256, 4, 4), (4, 64, 256)),
    "unet": (Unet, (1, 4, 64, 64)),
    "enlarger": (_enlarger, (1, 3, 80, 80)),
    "gated": (Gated, (1, 40, 200)),
    "mixer": (Mixer, (2, 64, 192)),
    "style": (Style, (1, 3, 96, 96)),
    "small layers": (_small_layers, (1, 32)),
}
"""Makers of modules, and the shapes of their inputs."""


def compiled(contender: str, module: nn.Module, folder: Path) -> Any:
    """Return a module as a contender runs it."""
    if contender == "eager":
        return module
    if contender == "openvino":
        return torch.compile(
            module, backend="openvino", options={"config": {"INFERENCE_PRECISION_HINT": "f32"}, "aot_autograd": True}
        )
    import torch._inductor.config as inductor

    inductor.freezing = True
    if contender == OURS:
        options = {"wait": True, "cache_dir": None, "db": str(folder / "timings.db")}
        return torch.compile(module, backend="collage", options=options)
    return torch.compile(module, mode=None if contender == "inductor" else contender)


def serve(contender: str, name: str, folder: Path) -> None:
    """Compile a module, keep its first result, and time as many runs as each line of the standard input says."""
    with contextlib.redirect_stdout(sys.stderr):
        torch.manual_seed(0)
        make, shape = MODULES[name]
        module, x = make().eval(), torch.randn(shape)
        torch._dynamo.reset()
    with torch.no_grad():
        with contextlib.redirect_stdout(sys.stderr):
            began = time.perf_counter()
            run = compiled(contender, module, folder)
            first = run(x)
            took_s = time.perf_counter() - began
            for _ in range(3):
                run(x)
        np.save(folder / f"{contender}.npy", first.numpy())
        print(json.dumps(took_s), flush=True)
        for line in sys.stdin:
            run(x)
            samples = []
            for _ in range(int(line)):
                before = time.perf_counter()
                run(x)
                samples.append(time.perf_counter() - before)
            print(json.dumps(samples), flush=True)


def started(contender: str, name: str, folder: Path) -> subprocess.Popen[str]:
    """Return the process of a contender, which keeps nothing elsewhere."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.torch_backends",
        "--serve",
        contender,
        name,
        str(folder),
    ]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / contender), "XDG_CACHE_HOME": str(folder / contender)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, text=True, env={**os.environ, **caches}, **pipes)


def race(name: str, contenders: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return the row of a module."""
    from collage.cost.statistics import median_interval

    children: dict[str, subprocess.Popen[str]] = {}
    row: dict[str, Any] = {"module": name, "ms": {}, "first_s": {}, "error": {}}
    medians: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        try:
            for contender in contenders:  # One after the other: each compiles alone.
                child = children[contender] = started(contender, name, folder)
                if line := answer(child).strip():
                    row["first_s"][contender], medians[contender] = float(line), []
            first_s = {contender: float(np.median(timed(children[contender], 3))) for contender in medians}
            for _ in range(rounds):
                for contender in random.sample(list(medians), len(medians)):
                    time.sleep(PAUSE_S)
                    runs = max(2, int(BLOCK_S / first_s[contender]))
                    medians[contender].append(float(np.median(timed(children[contender], runs))))
        finally:
            for child in children.values():
                child.kill()
                child.wait()
        results = {contender: np.load(folder / f"{contender}.npy") for contender in medians}
    row["ms"] = {contender: 1e3 * float(np.median(times)) for contender, times in medians.items()}
    if "eager" in results:
        size = float(np.abs(results["eager"]).max())
        row["error"] = {each: float(np.abs(y - results["eager"]).max()) / size for each, y in results.items()}
    others = [contender for contender in medians if contender != OURS]
    if OURS in medians and others:
        best = min(others, key=row["ms"].__getitem__)
        ratios = np.array(medians[best]) / np.array(medians[OURS])
        row |= {
            "best": best,
            "ratio": float(np.median(ratios)),
            "interval": median_interval(ratios.tolist()).as_list(),
        }
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODULES), help="default: %(default)s")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        contender, name, folder = options.serve
        serve(contender, name, Path(folder))
        return 0
    rows = []
    for name in options.models.split(","):
        rows.append(race(name, options.contenders.split(","), options.rounds))
        print(json.dumps(rows[-1]), flush=True)
    raced = [row for row in rows if "ratio" in row]
    slow = [row["module"] for row in raced if row["interval"][1] < _SLOWER]
    wrong = [row["module"] for row in rows if row["error"].get(OURS, 0.0) > _TOLERANCE]
    mean = float(np.exp(np.mean([np.log(row["ratio"]) for row in raced]))) if raced else float("nan")
    print(f"{len(raced)} modules: geometric mean {mean:.3f} over the fastest other; slower: {slow}; wrong: {wrong}")
    return int(bool(slow or wrong or len(raced) < len(rows)))


if __name__ == "__main__":
    raise SystemExit(main())
