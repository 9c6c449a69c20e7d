"""Do costs add up? Forces plans of many kernels on two toolchains, and compares their kernels with the whole.

::

    python -m benchmarks.additive [--models resnet50,bert] [--pairs llvm+onnxruntime,onnxruntime+openvino] [--rounds 3]

A model is cut into ranges of operators, about equally long, that go to the two toolchains in turn (to the other one, where
one does not take a range). Each range is measured by itself, as in a search: the sum of that, with launch penalties, is what the
plan was predicted to take on a calm machine. Then the plan runs end to end, and its kernels beside it, in turns, as after a
race. The additive error is (whole - kernels) / whole of that.

Where that is more than a twentieth, it is the mean of two occasions, as a compilation has it.

It is printed as it is, and as a compilation would state it, which corrects costs by what the fastest chain of the first race
teaches: here that is another plan, in which the toolchains have changed places. Exit code 1 if the median of a plan's corrected
errors exceeds 10 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks._arguments import Model, chosen_models, make_parser
from benchmarks.search import Opened, session

from collage.compiler.additivity import PlanChecks, additive_error, estimate_correction, mean_of_two_checks
from collage.compiler.candidates import gather_specs
from collage.compiler.plans import Plan, PlannedKernel
from collage.cost.cost import Correction
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, SubGraph
from collage.target import Target

BAR = 0.1
PAIRS = "llvm+onnxruntime,llvm+openvino,onnxruntime+openvino"


def forced(opened: Opened, pair: tuple[Target, Target], count: int) -> Plan | None:
    """Ranges that two targets take in turn; None if they do not take them, or there are not so many."""
    size = len(opened.problem.graph)
    cuts = [0, *(p for p in range(1, size) if opened.problem.graph.cuts[p].is_border), size]
    wanted = [min(cuts, key=lambda p, i=i: abs(p - size * i / count)) for i in range(count + 1)]
    places = []
    for start, stop in pairwise(dict.fromkeys(wanted)):
        part = SubGraph(opened.problem.graph, IndexSet.range(start, stop))
        in_turn = pair if len(places) % 2 == 0 else pair[::-1]
        taker = next((t for t in in_turn if all(opened.survey.coverage_of(t)(node).ok for node in part.nodes)), None)
        if taker is None or part.why_invalid() is not None:
            return None
        places.append(PlannedKernel(part, taker, "forced"))
    plan = Plan("forced", tuple(places))
    return plan if len(places) >= count and set(plan.targets) == set(pair) else None


def in_turns(model: Model, pair: str, count: int, turns: int) -> bool:
    """Forces a plan on a pair of targets as often as that; whether its costs add up, as far as they are known."""
    menu, plain, corrected = tuple(pair.split("+")), list[float](), list[float]()
    for _ in range(turns):
        with (
            tempfile.TemporaryDirectory() as folder,
            session(model.path, str(Path(folder) / "t.sqlite"), menu) as opened,
        ):
            first, second = (opened.problem.toolchains.parse_target(alias) for alias in menu)
            plans = [forced(opened, (first, second), count), forced(opened, (second, first), count)]
            if plans[0] is None:
                print(f"  {pair}: they do not take {count} ranges in turn")
                return True
            found = compare(opened, pair, plans[0], plans[1] or plans[0])
            if found is not None:
                plain.append(found[0])
                corrected.append(found[1])
    if not corrected:
        return True
    middle = statistics.median(corrected)
    print(
        f"  {pair:<28} additive error {middle:+.1%} ({statistics.median(plain):+.1%} without correction), medians of {len(plain)}"
    )
    sys.stdout.flush()
    return abs(middle) <= BAR


def compare(opened: Opened, label: str, plan: Plan, teacher: Plan) -> tuple[float, float] | None:
    """Measures a plan's kernels, times them beside it, and prints the additive errors without and with what another taught."""
    spec_of = {target: spec for spec in gather_specs(opened.survey) for target in spec.targets}
    places = [place for place in plan.kernels if place.target in spec_of]
    opened.costs.measure([CandidateKernel(p.sub_graph, p.target, spec_of[p.target], ("forced",)) for p in places])
    costs, checks = opened.costs, PlanChecks(opened.problem, opened.costs, opened.session)
    predicted, found = checks.predicted_s(plan), mean_of_two_checks(costs, checks, plan, (1, 2))
    if found is None or predicted is None:
        print(f"  {label:<28} {len(plan.kernels):>3} kernels: not all could be measured")
        return None
    plain = additive_error(costs, plan, found)
    costs.correction = estimate_correction(costs, checks, teacher)
    corrected = additive_error(costs, plan, found)
    print(
        f"  {label:<28} {len(plan.kernels):>3} kernels, predicted {predicted * 1e6:>9.1f} us, "
        f"whole {found.whole_s * 1e6:>9.1f} us, "
        f"additive error {plain:+.1%}; corrected ({_words(costs.correction)}) {corrected:+.1%}",
        flush=True,
    )
    return plain, corrected


def _words(correction: Correction) -> str:
    if correction.chain_s:
        return f"{correction.chain_s * 1e6:+.0f} us each"
    return f"x {correction.parts:.2f}"


def main() -> int:
    parser = make_parser(__doc__, models="")
    parser.add_argument("--pairs", default=PAIRS, help="pairs of targets, by commas")
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure and run each plan")
    options = parser.parse_args()
    add_up = True
    for model in chosen_models(options):
        print(model.name, flush=True)
        for pair in options.pairs.split(","):
            add_up &= in_turns(model, pair, options.kernels, options.rounds)
    return int(not add_up)


if __name__ == "__main__":
    sys.exit(main())
