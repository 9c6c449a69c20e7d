"""Build the model zoo, lazily.

::

    python benchmarks/build_zoo.py --list
    python benchmarks/build_zoo.py --out .cache/zoo --models bert,resnet50

writes ``OUT/<name>/model.onnx`` and ``OUT/<name>/inputs.npz`` and prints what each took. A model that is there and was
made by these sources is left alone. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # The zoo is no part of the installed package.

from benchmarks.zoo import CATALOGUE, build, find  # noqa: E402


def print_catalogue() -> None:
    """One line per model: who exports it, at which opset, and why."""
    for entry in CATALOGUE:
        mark = "*" if entry.paper else " "
        print(f"{entry.name:17}{mark} {entry.exporter:12} opset {entry.opset}  {entry.why}")
    print("(* = measured in the Collage paper)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Build the model zoo.")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "zoo", help="folder of the zoo")
    parser.add_argument("--models", help="some of them, separated by commas; all without it")
    parser.add_argument("--list", action="store_true", help="say what there is, and build nothing")
    options = parser.parse_args(arguments)
    if options.list:
        print_catalogue()
        return
    try:
        entries = find(options.models.split(",")) if options.models else CATALOGUE
    except KeyError as unknown:
        parser.error(f"no such model: {unknown.args[0]}; see --list")
    print(f"{'model':17} {'nodes':>6} {'parameters':>11} {'MB':>7} {'seconds':>8}")
    for entry in entries:
        built, fresh = build(entry, options.out)
        note = "" if fresh else "  (was there)"
        sizes = f"{built.nodes:6} {built.parameters / 1e6:10.2f}M {built.megabytes:7.1f} {built.seconds:8.1f}"
        print(f"{built.name:17} {sizes}{note}", flush=True)


if __name__ == "__main__":
    main()
