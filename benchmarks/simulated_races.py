"""Race finalists whose latencies are drawn, and print what rules of the race cost and save.

::

    python -m benchmarks.simulated_races [--races 300]

Each race has three single toolchains within 1.45 of each other and two mixes at 0.9 to 1.3 of the best one. A turn errs by
``noise``, and a process by ``place`` as long as it lives. ``loss`` is the mean of what the returned finalist takes more than the
fastest one, ``slower`` the races whose finalist is over 1 % slower than the fastest single toolchain, and ``s`` the mean seconds
of running. Nothing is built or timed.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._arguments import make_parser

from collage.measure import race as racing
from collage.measure import track, turns
from collage.measure.finalist import Finalist

RULES = {
    "before": (7, float("inf"), float("inf")),
    "first look": (3, 1.1, float("inf")),
    "close": (7, float("inf"), 1.02),
    "both": (3, 1.1, 1.02),
    "both, 1.05 at 3": (3, 1.05, 1.02),
    "both, 1.1 at 2": (2, 1.1, 1.02),
    "both, all lost": (3, 1.1, 1.0),
}
"""By name: rounds before the first look, how far behind a finalist loses there, how far behind a single is not run again."""
NOISES = (0.02, 0.05, 0.1)
PLACES = (0.0, 0.02)
LATENCY_S = 0.05


class DrawnWorker:
    """Stands in for the process of a finalist. All of them add to ``ran_s``."""

    place, noise, ran_s = 0.0, 0.0, 0.0

    def __init__(self, service: str, arguments: Mapping[str, Any]) -> None:
        self._random = random.Random(service)
        self._seconds = float(arguments["seconds"])
        self.kill()

    def start(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Have the next process at another place in memory."""
        self._luck = self._random.lognormvariate(0.0, self.place)

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        """Return a check that found nothing, or latencies of runs."""
        if method == "check":
            return {"max_abs": 0.0, "max_rel": 0.0, "wrong": None, "doubts": []}
        seconds = self._seconds * self._luck * self._random.lognormvariate(0.0, self.noise)
        found = [seconds * self._random.lognormvariate(0.0, 0.01) for _ in range(params["runs"])]
        DrawnWorker.ran_s += sum(found) + params["warm_up"] * seconds
        return found


def drawn(number: int) -> list[Finalist]:
    """Return the finalists of a race."""
    source = random.Random(number)
    singles = [LATENCY_S * source.uniform(1.0, 1.45) for _ in range(3)]
    mixes = [min(singles) * source.uniform(0.9, 1.3) for _ in range(2)]
    return [
        Finalist(f"{kernels} {i}", f"{kernels} {i} {number}", {"seconds": seconds}, kernels, incumbent=kernels == 1)
        for kernels, all_s in ((1, singles), (2, mixes))
        for i, seconds in enumerate(all_s)
    ]


def losses(finalists: Sequence[Finalist]) -> tuple[float, float]:
    """Return how much slower the returned finalist is than the fastest one, and than the fastest single toolchain."""
    result = racing.race(finalists, 1e-4)
    assert result.winner is not None
    own = result.winner.finalist.arguments["seconds"]
    least = [min(each.arguments["seconds"] for each in finalists if each.kernels <= most) for most in (2, 1)]
    return own / least[0] - 1.0, own / least[1] - 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = make_parser(__doc__)
    parser.add_argument("--races", type=int, default=300, help="races of each row")
    races = parser.parse_args(arguments).races
    track.Worker = DrawnWorker  # type: ignore[assignment,misc]
    for module, lock in ((track, "build_lock"), (racing, "measurement_lock"), (turns, "measurement_lock")):
        setattr(module, lock, contextlib.nullcontext)
    print(f"{'place':>5} {'noise':>5}  {'rules':18} {'loss':>6} {'slower':>6} {'s':>6}")
    for place in PLACES:
        for noise in NOISES:
            for name, (first, clear, close) in RULES.items():
                racing._FIRST_LOOK, racing._CLEAR, racing._CLOSE = first, clear, close
                DrawnWorker.place, DrawnWorker.noise, DrawnWorker.ran_s = place, noise, 0.0
                found = [losses(drawn(number)) for number in range(races)]
                loss, slower = statistics.mean(each for each, _ in found), sum(each > 0.01 for _, each in found)
                print(
                    f"{place:5} {noise:5}  {name:18} {loss:6.2%} {slower:6} {DrawnWorker.ran_s / races:6.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
