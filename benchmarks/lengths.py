"""Race plans for sets of lengths against compilations of the same file with these lengths fixed in it.

    python -m benchmarks.lengths [--folder DIR] [--rounds 15] [NAME ...]

Each model is compiled once for all its sets of lengths, and once for each set with ``fixed``, every time with an empty
database. Both artefacts, ONNX Runtime and OpenVINO run in turns, in processes of their own, on inputs of that set. A row has
the time of the plan for the set over that of the fixed model, with its interval, the gain over the faster of both libraries,
and the seconds of each compilation. The exit code is 1 if a plan is more than 3 % slower than the fixed model beyond doubt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._independent import OURS, run_leg
from benchmarks.real_models import MODELS, fetched

_ALLOWED = 1.03
_SETS, _FIXED = f"{OURS}, sets", f"{OURS}, fixed"

Lengths = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with free lengths.

    Attributes:
        model: Makes the file in a folder, and returns its path.
        sets: The sets of lengths that are raced.
    """

    model: Callable[[Path], Path]
    sets: Sequence[Lengths]


def _real(name: str) -> Callable[[Path], Path]:
    return lambda folder: fetched(MODELS[name], folder)


def _exported(kind: str) -> Callable[[Path], Path]:
    """Return a maker of a network of four layers, exported by PyTorch: an encoder of tokens, or a decoder with a cache."""

    def make(folder: Path) -> Path:
        import torch

        width, heads, layers = 384, 6, 4

        class Layer(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
                self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
                self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

            def forward(self, x: Any, past: Any) -> Any:
                rows = self.qkv(self.first(x)).unflatten(-1, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
                q, k, v = rows[0], torch.cat([past[0], rows[1]], 2), torch.cat([past[1], rows[2]], 2)
                y = torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
                x = x + self.out(y.transpose(1, 2).flatten(2))
                return x + self.down(torch.nn.functional.gelu(self.up(self.second(x)))), torch.stack([k, v])

        class Network(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.table = torch.nn.Embedding(2000, width)
                self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

            def forward(self, ids: Any, past: Any = None) -> Any:
                x, kept = self.table(ids), []
                for number, layer in enumerate(self.layers):
                    none = x.new_zeros(2, 1, heads, 0, width // heads)
                    x, cache = layer(x, none if past is None else past[number])
                    kept.append(cache)
                return x if past is None else (x, torch.stack(kept))

        torch.manual_seed(0)
        ids, rows = torch.zeros(1, 16, dtype=torch.int64), torch.export.Dim("rows", max=4096)
        arguments, shapes = (ids,), {"ids": {1: rows}}
        if kind == "decoder":
            arguments = (ids, torch.zeros(layers, 2, 1, heads, 8, width // heads))
            shapes["past"] = {4: torch.export.Dim("held", max=4096)}
        path = folder / f"{kind}.onnx"
        torch.onnx.export(Network().eval(), arguments, path, dynamic_shapes=shapes, dynamo=True, verbose=False)
        return path

    return make


_WIDTH = "DynamicDimension.1"
_BATCH = {"DynamicDimension.0": 1}
CASES: Mapping[str, Case] = {
    "text recogniser 6": Case(_real("text recogniser 6"), [{**_BATCH, _WIDTH: n} for n in (160, 320, 640)]),
    "voice, sequence": Case(_real("voice, sequence"), [{"sequence_length": n} for n in (16, 64)]),
    "encoder": Case(_exported("encoder"), [{"rows": n} for n in (32, 384)]),
    "decoder": Case(_exported("decoder"), [{"rows": n, "held": 128} for n in (1, 128)]),
    "notes": Case(_real("notes"), [{"unk__749": 1}]),
    "text detector 6": Case(
        _real("text detector 6"),
        [{**_BATCH, _WIDTH: h, "DynamicDimension.2": w} for h, w in ((480, 640), (736, 1280))],
    ),
}


def compiled(path: Path, artefact: Path, **options: Any) -> float:
    """Compile a model with an empty database in a process of its own; return the seconds.

    Raises:
        RuntimeError: It failed.
    """
    program = (
        "import json, sys, collage\n"
        "path, artefact, options = json.loads(sys.argv[1])\n"
        "dims = {n: {int(k): v for k, v in d.items()} for n, d in options.pop('dims', {}).items()}\n"
        "collage.compile(path, dims=dims, **options).save(artefact)\n"
    )
    database = artefact.with_suffix(".db")
    database.unlink(missing_ok=True)
    given = [str(path), str(artefact), {**options, "db": str(database)}]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(given)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{path.name} with {options}: {done.stderr[-300:]}")
    return time.monotonic() - began


def feeds_of(path: Path, lengths: Lengths) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs of a set of lengths; token numbers are below 100."""
    import onnxruntime

    from collage.frontend import describe_inputs, dimension_name, read_model

    random, kinds = np.random.default_rng(0), {p.name: p.type for p in onnxruntime.InferenceSession(path).get_inputs()}
    feeds = {}
    for port in describe_inputs(read_model(path)):
        names = [dimension_name(port.name, axis, dim) for axis, dim in enumerate(port.shape or ())]
        pairs = zip(names, port.shape or (), strict=True)
        shape = [int(str(dim)) if name is None else lengths[name] for name, dim in pairs]
        is_float = "float" in kinds[port.name]
        feeds[port.name] = random.normal(0, 0.5, shape).astype("f") if is_float else random.integers(0, 100, shape)
    return feeds


def raced(path: Path, ours: Mapping[str, Path], feeds: Mapping[str, Any], rounds: int) -> dict[str, list[float]]:
    """Return the medians of each round of the artefacts and both libraries, in seconds."""
    inputs = path.with_name("feeds.npz")
    np.savez(inputs, **feeds)
    paths = {"onnxruntime": str(path), "openvino": str(path), **{name: str(file) for name, file in ours.items()}}
    medians: dict[str, list[float]] = {name: [] for name in paths}
    run_leg(paths, inputs, rounds, medians)
    return medians


def row_of(name: str, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of a model."""
    from collage.cost.statistics import median_interval

    case = CASES[name]
    path = case.model(folder)
    home = folder / "lengths" / name.replace(" ", "_").replace(",", "")
    home.mkdir(parents=True, exist_ok=True)
    dims = {key: dict.fromkeys(str(each[key]) for each in case.sets) for key in case.sets[0]}
    together = home / "sets.collage"
    took_s = compiled(path, together, dims={key: dict.fromkeys(values, 1) for key, values in dims.items()})
    rows = []
    for number, lengths in enumerate(case.sets):
        alone = home / f"fixed{number}.collage"
        alone_s = compiled(path, alone, fixed=dict(lengths))
        ours, feeds = {_SETS: together, _FIXED: alone}, feeds_of(path, lengths)
        times = {tool: np.array(seconds) for tool, seconds in raced(path, ours, feeds, rounds).items()}
        ratios = times[_SETS] / times[_FIXED]
        libraries = [times[tool] for tool in ("onnxruntime", "openvino") if len(times[tool])]
        best = min(float(np.median(each)) for each in libraries) if libraries else float("nan")
        rows.append(
            {
                "model": name,
                "lengths": dict(lengths),
                "ms": 1e3 * float(np.median(times[_SETS])),
                "of fixed": float(np.median(ratios)),
                "interval": median_interval(ratios.tolist()).as_list(),
                "gain": best / float(np.median(times[_SETS])),
                "sets_s": took_s,
                "fixed_s": alone_s,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--folder", type=Path, default=Path(".cache/real"))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = [row for name in options.names or CASES for row in row_of(name, options.folder.resolve(), options.rounds)]
    slower = [row for row in rows if row["interval"][0] > _ALLOWED]
    gain = float(np.exp(np.mean([np.log(row["gain"]) for row in rows])))
    print(f"{len(rows)} sets, {len(slower)} more than 3 % slower than the fixed model beyond doubt; gain {gain:.2f}")
    return int(bool(slower))


if __name__ == "__main__":
    raise SystemExit(main())
