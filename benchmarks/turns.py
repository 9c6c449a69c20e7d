"""Ablate the turns of a race: how far apart two processes of one artefact seem to be, by the length and number of turns.

::

    python -m benchmarks.turns MODEL.onnx MODEL.collage [--repeat 12] [--turns 0.12x7,0.12x15,0.03x7,0.03x15,0.01x31]

``0.03x15`` is 15 rounds in which each process runs for 0.03 s. Prints for each the root mean square of the difference that is
found between equal processes, the largest one, and the seconds that a race of the two takes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from collage.measure.artefact_race import artefact_on, open_track, opened
from collage.workers.machine_lock import measurement_lock
from collage.workers.worker import Worker

_TURNS = "0.12x7,0.12x15,0.03x7,0.03x15,0.01x31"
_PATIENCE_S = 60.0
_MOST_RUNS = 2000


def difference(workers: Sequence[Worker], least_s: float, block_s: float, rounds: int) -> float:
    """Race two equal processes; return the logarithm of the ratio of their times."""
    runs, ratios = min(max(math.ceil(block_s / least_s), 1), _MOST_RUNS), []
    with measurement_lock():
        for number in range(rounds):
            found = {
                i: statistics.median(workers[i].call("run", _PATIENCE_S, runs=runs, warm_up=1, number=number))
                for i in random.Random(number).sample(range(2), 2)
            }
            ratios.append(found[0] / found[1])
    return math.log(statistics.median(ratios))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("--repeat", type=int, default=12, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--turns", default=_TURNS, help="seconds x rounds (default: %(default)s)")
    options = parser.parse_args(arguments)
    turns = [(float(block), int(rounds)) for block, _, rounds in (x.partition("x") for x in options.turns.split(","))]
    found: dict[tuple[float, int], list[float]] = {each: [] for each in turns}
    seconds = dict.fromkeys(turns, 0.0)
    with ExitStack() as stack:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder, recipe, place = opened(options.artefact, stack, print)
        track = open_track(stack, workspace, recipe, folder, options.model, None, {}, print)
        finalist = artefact_on(track, "artefact", place, recipe)
        track.session.close()
        for _ in range(options.repeat):
            with ExitStack() as pair:
                service, given = finalist.service, dict(finalist.arguments)
                workers = [pair.enter_context(Worker(service, given)) for _ in range(2)]
                least_s = min(min(each.call("run", _PATIENCE_S, runs=5, warm_up=3, number=0)) for each in workers)
                for turn in random.sample(turns, len(turns)):
                    began = time.monotonic()
                    found[turn].append(difference(workers, least_s, *turn))
                    seconds[turn] += time.monotonic() - began
    for (block_s, rounds), each in found.items():
        rms = math.sqrt(statistics.fmean(x * x for x in each))
        print(
            f"{rounds:3} rounds of {block_s:g} s: {100 * rms:5.1f} % apart, at most {100 * max(map(abs, each)):5.1f} %; "
            f"{seconds[block_s, rounds] / options.repeat:.2f} s"
        )


if __name__ == "__main__":
    main()
