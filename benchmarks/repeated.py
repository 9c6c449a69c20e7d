"""Never slower, however often one compiles? Compiles models anew many times, and races every artefact.

::

    python benchmarks/repeated.py MODEL.onnx [MODEL.onnx ...] [--times 10] [--targets T,T] [--legs 2] [--rounds 7] [--json FILE]

Each compile is ``collage compile`` with a new database, so that it knows nothing of the ones before it; each artefact is
raced by ``independent.py``. Prints, for every compile, its seconds, how many of the distinct workload keys it measured, the
medians in milliseconds, the best single toolchain over the artefact with the 95 % interval of that ratio, the plan's kernels
by target, and their additive error; in the end, of how many compiles the whole interval lies below 0.98. Exit code 1 if any
does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from independent import ENOUGH, race


def compiled(model: Path, artefact: Path, targets: str, database: Path) -> dict[str, Any]:
    """Seconds and report of one cold compile."""
    command = [sys.executable, "-c", "import sys; from collage.cli import main; sys.exit(main())"]
    menu = [word for target in targets.split(",") for word in ("-t", target)]
    options = ["compile", str(model), "-o", str(artefact), "--db", str(database), "--json", *menu]
    started = time.monotonic()
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return {"compile_s": time.monotonic() - started, "report": json.loads(done.stdout)}


def line(row: dict[str, Any]) -> str:
    """One compile in one line."""
    report, (low, high) = row["report"], row["interval"]
    kernels = Counter(kernel["target"] for kernel in report["kernels"])
    plan = ", ".join(f"{count} {target}" for target, count in sorted(kernels.items()))
    keys, error = report["search"], report["additive_error"]
    return (
        f"{row['compile_s']:6.1f} s  {keys['measured']}/{keys['keys']} keys  {row['medians_ms']}  "
        f"{row['ratio']:.3f} [{low:.3f}, {high:.3f}]  {plan}"
        + ("" if len(report["kernels"]) == 1 or error is None else f"; additive error {error:+.1%}")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--targets", default="llvm,onnxruntime,openvino", help="the menu, separated by commas")
    parser.add_argument("--legs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write all rows here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in arguments.models:
            print(f"{model.parent.name}/{model.name}", flush=True)
            for time_ in range(arguments.times):
                artefact = Path(scratch) / f"{len(rows)}.collage"
                row = compiled(model, artefact, arguments.targets, Path(scratch) / f"{len(rows)}.sqlite")
                row |= race(str(model), str(artefact), arguments.legs, arguments.rounds) | {"time": time_}
                rows.append(row)
                print(line(row), flush=True)
    slower = sum(row["interval"][1] < ENOUGH for row in rows)
    print(f"{len(rows)} compiles: {slower} slower than the best single toolchain beyond the interval")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
