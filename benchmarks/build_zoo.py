"""Build the model zoo.

::

    python -m benchmarks.build_zoo --list
    python -m benchmarks.build_zoo --models bert,resnet50

Writes ``ZOO/<name>/model.onnx`` and ``ZOO/<name>/inputs.npz`` and prints what each took. A model that is there and was made by
these sources is left alone. Needs PyTorch. Other benchmarks build the models that they use by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._arguments import make_parser
from benchmarks.zoo import CATALOGUE, build, find


def print_catalogue() -> None:
    """Print one line per model: its exporter, its opset, and the reason why it is in the zoo."""
    for entry in CATALOGUE:
        mark = "*" if entry.paper else " "
        print(f"{entry.name:17}{mark} {entry.exporter:12} opset {entry.opset}  {entry.why}")
    print("(* = measured in the Collage paper)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = make_parser(__doc__, models="")
    parser.add_argument("--list", action="store_true", help="print the catalogue, and build nothing")
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
        built, fresh = build(entry, options.zoo)
        note = "" if fresh else "  (was there)"
        sizes = f"{built.nodes:6} {built.parameters / 1e6:10.2f}M {built.megabytes:7.1f} {built.seconds:8.1f}"
        print(f"{built.name:17} {sizes}{note}", flush=True)


if __name__ == "__main__":
    main()
