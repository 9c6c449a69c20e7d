"""Do costs add up? Forces plans of many kernels on two toolchains, and compares the sum of their costs with the whole.

::

    python benchmarks/additive.py [--models resnet50,bert] [--pairs llvm+onnxruntime,onnxruntime+openvino] [--kernels 10]

A model is cut into ranges of operators, about equally long, that go to the two toolchains in turn (to the other one, where
one does not take a range). Each range is measured by itself, as the search would; the plan is then run end to end in a
process of its own, as in the finals. The additive error is (whole - sum) / whole; the sum holds the launch penalties. The
singles in between say how far the machine itself was the same in both measurements: their sum has one term.
Exit code 1 if any plan's error exceeds 10 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from lazy import model_of, names, session

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
    """Measures a plan's kernels, runs the plan, and prints both; the additive error."""
    spec_of = {target: spec for spec in gather_specs(tuning) for target in spec.targets}
    tuning.measure([CandidateKernel(k.sub_graph, k.target, spec_of[k.target], ("forced",)) for k in plan.kernels])
    sum_s, standing = predicted_s(tuning, plan), choose(tuning, [plan]).standings.get(plan.name)
    if sum_s is None or standing is None or standing.time is None:
        print(
            f"  {label:<28} {len(plan.kernels):>3} kernels: {standing.reason if standing else 'not all could be measured'}"
        )
        return None
    time = standing.time
    error = (time.median_s - sum_s) / time.median_s
    print(
        f"  {label:<28} {len(plan.kernels):>3} kernels, sum {sum_s * 1e6:>10.1f} us, whole {time.median_s * 1e6:>10.1f} us "
        f"[{time.p10_s * 1e6:.1f}, {time.p90_s * 1e6:.1f}], additive error {error:+.1%}",
        flush=True,
    )
    return error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names in the zoo or files, by commas; all of the zoo by default")
    parser.add_argument("--pairs", default=PAIRS, help="pairs of targets, by commas")
    parser.add_argument("--kernels", type=int, default=10)
    options = parser.parse_args()
    worst = 0.0
    for name in names(options.models):
        print(name, flush=True)
        pairs = [pair.split("+") for pair in options.pairs.split(",")]
        menu = tuple(dict.fromkeys(alias for pair in pairs for alias in pair))
        with (
            tempfile.TemporaryDirectory() as folder,
            session(model_of(name), str(Path(folder) / "t.sqlite"), menu) as tuning,
        ):
            for single in single_plans(tuning):
                compare(tuning, single.name, single)
            for first, second in pairs:
                pair = tuning.toolchains.parse_target(first), tuning.toolchains.parse_target(second)
                plan = forced(tuning, pair, options.kernels)
                if plan is None:
                    print(f"  {first} + {second}: they do not take {options.kernels} ranges in turn")
                    continue
                error = compare(tuning, f"{first} + {second}", plan)
                worst = max(worst, abs(error or 0.0))
    print(f"largest additive error of a forced plan: {worst:.1%}")
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
