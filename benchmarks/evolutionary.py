"""Measure what the second phase of ``--strategy evolutionary`` gains and costs, on six models of the zoo.

::

    python -m benchmarks.evolutionary [--models ocr,speech,...] [--targets llvm,onnxruntime,openvino]

Each model is compiled twice with one database, so that the second compilation has the kernels that the first one measured. The
first strategy is ``lazy``, the second ``evolutionary``. A row says how many plans the second phase timed, and how long it took.

The gain is from the final comparison of the second compilation: time of the fastest plan without the phase, over that of
the fastest plan of the phase. A dash means that the phase proposed nothing, or that this lost before the reported rounds.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._arguments import MENU, Model, chosen_models, make_parser

import collage
from collage.report import Report, Row

SIX = "ocr,speech,mobilenet_v2,super_resolution,graph_network,ssd"
_PHASE = re.compile(r"evolutionary: (\d+) plans timed in (\d+) s")


@dataclass(frozen=True, slots=True)
class Found:
    """The results of two compilations of a model.

    Attributes:
        lazy_s: Seconds of the first.
        evolutionary_s: Seconds of the second.
        timed: Plans that the second phase timed.
        phase_s: Seconds that it took.
        gain: Time of the fastest other plan over that of its fastest plan; None if it proposed none that finished.
        returned: Name of the plan that was returned.
    """

    lazy_s: float
    evolutionary_s: float
    timed: int
    phase_s: float
    gain: float | None
    returned: str


def compiled(model: Model, menu: Sequence[str], db: Path, strategy: str) -> tuple[Report, float, list[str]]:
    """Compile a model; return its report, the seconds that it took, and what was said."""
    said: list[str] = []
    options = collage.CompileOptions(db=str(db), strategy=strategy, remeasure=False)
    began = time.monotonic()
    executable = collage.compile(model.path, menu, options=options, progress=lambda event: said.append(event.text))
    return executable.report, time.monotonic() - began, said


def gain_of(rows: Sequence[Row]) -> float | None:
    """Return the time of the fastest other plan over that of the fastest refined one, if both were in the reported rounds."""
    times = [(row.name.startswith("refined"), row.ratio.value) for row in rows if row.ratio and row.kind != "baseline"]
    refined, others = ([ratio for is_refined, ratio in times if is_refined is wanted] for wanted in (True, False))
    return min(others) / min(refined) if refined and others else None


def measured(model: Model, menu: Sequence[str]) -> Found:
    with tempfile.TemporaryDirectory(prefix="collage-evolutionary-") as folder:
        db = Path(folder) / "costs.sqlite"
        _, lazy_s, _ = compiled(model, menu, db, "lazy")
        report, evolutionary_s, said = compiled(model, menu, db, "evolutionary")
    phases = [match for line in said if (match := _PHASE.search(line))]
    timed, phase_s = (sum(int(phase[number]) for phase in phases) for number in (1, 2))
    return Found(lazy_s, evolutionary_s, timed, phase_s, gain_of(report.rows), report.winner)


def main() -> int:
    parser = make_parser(__doc__, models=SIX, targets=MENU)
    options = parser.parse_args()
    menu = options.targets.split(",")
    print(f"{'model':20}{'lazy':>8}{'evolutionary':>14}{'plans':>7}{'phase':>8}{'gain':>8}  returned", flush=True)
    gains = []
    for model in chosen_models(options):
        found = measured(model, menu)
        gains.append(found.gain or 1.0 if found.returned.startswith("refined") else 1.0)
        gain = "-" if found.gain is None else f"{found.gain:.3f}"
        print(
            f"{model.name:20}{found.lazy_s:6.0f} s{found.evolutionary_s:12.0f} s{found.timed:7}{found.phase_s:6.0f} s"
            f"{gain:>8}  {found.returned}",
            flush=True,
        )
    mean = math.exp(statistics.fmean(map(math.log, gains)))
    print(
        f"The returned plan is {mean:.3f} times as fast as without the second phase (geometric mean of {len(gains)})."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
