"""Do costs add up? Forces plans of many kernels on two toolchains, and compares the sum of their costs with the whole.

::

    python benchmarks/additive.py [--models resnet50,bert] [--pairs llvm+onnxruntime,onnxruntime+openvino] [--turns 3]

A model is cut into ranges of operators, about equally long, that go to the two toolchains in turn (to the other one, where
one does not take a range). Each range is measured by itself, and once more, as the search does with what a plan is made of;
the plan is then run end to end against the toolchains alone, each in a process of its own, as in the finals. The drift is
what share of the time the machine was slower in the race than when calm, for which costs are stated, as its pace tells. The
additive error is (whole - sum) / whole beyond the drift, where the whole is as compared with the best single turn by turn; the
sum holds the launch penalties. The error with the drift in it, of the printed medians, is printed as well.

Costs and race are minutes apart, and what the machine does meanwhile to one toolchain and not to another counts as error:
on a restless one, single figures of one plan differ by a fifth. So all is done several times, each time with a new database,
and the median tells. Exit code 1 if any plan's exceeds 10 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from lazy import model_of, names, session

from collage.calibration import additive_error, machine_drift
from collage.collage import gather_specs
from collage.finals import choose
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, SubGraph
from collage.plans import Placement, Plan, predicted_s, single_plans
from collage.target import Target
from collage.tuning import Tuning

BAR = 0.1
PAIRS = "llvm+onnxruntime,llvm+openvino,onnxruntime+openvino"


def forced(tuning: Tuning, pair: tuple[Target, Target], count: int) -> Plan | None:
    """Ranges that two targets take in turn; None if they do not take them, or there are not so many."""
    size = len(tuning.graph)
    cuts = [0, *(p for p in range(1, size) if tuning.graph.cuts[p].is_border), size]
    wanted = [min(cuts, key=lambda p, i=i: abs(p - size * i / count)) for i in range(count + 1)]
    places = []
    for start, stop in pairwise(dict.fromkeys(wanted)):
        part = SubGraph(tuning.graph, IndexSet.range(start, stop))
        in_turn = pair if len(places) % 2 == 0 else pair[::-1]
        taker = next((t for t in in_turn if all(tuning.coverage_of(t)(node).ok for node in part.nodes)), None)
        if taker is None or part.why_invalid() is not None:
            return None
        places.append(Placement(part, taker, "forced"))
    plan = Plan("forced", tuple(places))
    return plan if len(places) >= count and set(plan.targets) == set(pair) else None


def compare(tuning: Tuning, label: str, plan: Plan) -> float | None:
    """Measures a plan's kernels, races it against the singles, and prints what both took; the additive error."""
    spec_of = {target: spec for spec in gather_specs(tuning) for target in spec.targets}
    plans = [plan, *single_plans(tuning)]
    places = [place for one in plans for place in one.kernels if place.target in spec_of]
    kernels = [CandidateKernel(p.sub_graph, p.target, spec_of[p.target], ("forced",)) for p in places]
    tuning.measure(kernels)
    tuning.look_again(kernels)
    # Nobody is hopeless here: three runs tell little of a plan, or of the machine.
    tuning.race_plan = replace(tuning.race_plan, hopeless=math.inf)
    finals = choose(tuning, plans)
    sum_s, standing = predicted_s(tuning, plan), finals.standings[plan.name]
    error = additive_error(tuning, finals, plan)
    if sum_s is None or standing.time is None or error is None:
        print(f"  {label:<28} {len(plan.kernels):>3} kernels: {standing.reason or 'not all could be measured'}")
        return None
    time = standing.time
    print(
        f"  {label:<28} {len(plan.kernels):>3} kernels, sum {sum_s * 1e6:>10.1f} us, whole {time.median_s * 1e6:>10.1f} us "
        f"[{time.p10_s * 1e6:.1f}, {time.p90_s * 1e6:.1f}], additive error {error:+.1%}, "
        f"drift {1.0 - 1.0 / machine_drift(finals):+.1%}, both {1.0 - sum_s / time.median_s:+.1%}",
        flush=True,
    )
    for standing, predicted in finals.compared(tuning):
        if standing.contestant.kernels == 1 and standing.time is not None and predicted is not None:
            whole_s = standing.paired_s or standing.time.median_s
            print(
                f"    {standing.contestant.name:<30} {predicted * 1e6:>10.1f} us, then {whole_s * 1e6:>10.1f} us",
                flush=True,
            )
    return error


def in_turns(name: str, pair: str, count: int, turns: int) -> bool:
    """Forces a plan on a pair of targets as often as that; whether its costs add up, as far as they are known."""
    menu, errors = tuple(pair.split("+")), []
    for _ in range(turns):
        with (
            tempfile.TemporaryDirectory() as folder,
            session(model_of(name), str(Path(folder) / "t.sqlite"), menu) as tuning,
        ):
            first, second = (tuning.toolchains.parse_target(alias) for alias in menu)
            plan = forced(tuning, (first, second), count)
            if plan is None:
                print(f"  {pair}: they do not take {count} ranges in turn")
                return True
            if (error := compare(tuning, pair, plan)) is not None:
                errors.append(error)
    if not errors:
        return True
    middle = statistics.median(errors)
    print(f"  {pair:<28} additive error {middle:+.1%}, the median of {len(errors)}", flush=True)
    return abs(middle) <= BAR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names in the zoo or files, by commas; all of the zoo by default")
    parser.add_argument("--pairs", default=PAIRS, help="pairs of targets, by commas")
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3, help="how often to measure and race each plan")
    options = parser.parse_args()
    add_up = True
    for name in names(options.models):
        print(name, flush=True)
        for pair in options.pairs.split(","):
            add_up &= in_turns(name, pair, options.kernels, options.turns)
    return int(not add_up)


if __name__ == "__main__":
    sys.exit(main())
