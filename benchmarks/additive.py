"""Check that costs add up: force plans of many kernels on two toolchains, and compare their kernels with the whole.

::

    python -m benchmarks.additive [--models resnet50,bert] [--pairs llvm+onnxruntime,onnxruntime+openvino] [--rounds 3]
    python -m benchmarks.additive --budget 5e-2 --pairs "onnxruntime -precision=int8+openvino -precision=bf16"

A model is cut into ranges of operators, about equally long, that go to the two toolchains in turn (to the other one, if one
does not take a range). Each range is measured by itself, as in a search. The sum of that, with launch penalties, is what the
plan is predicted to take. Then the plan and the single toolchains run end to end, in turns. The additive error is what a
compilation reports, see ``collage.compiler.additive_error``. Exit code 1 if the median of a plan's errors exceeds 10 %.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks._arguments import Model, chosen_models, make_parser
from benchmarks.search import Opened, session

from collage.compiler.additive_error import additive_error
from collage.compiler.candidates import gather_specs
from collage.compiler.final_comparison import built_plans, compared, finalist_of
from collage.compiler.plans import predicted_s, single_plans
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, SubGraph
from collage.plan import Plan, PlannedKernel
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


def in_turns(model: Model, pair: str, count: int, turns: int, budget: float | None) -> bool:
    """Force a plan on a pair of targets as often as that; return True if its costs add up, as far as they are known."""
    menu, errors = tuple(pair.split("+")), list[float]()
    for _ in range(turns):
        with (
            tempfile.TemporaryDirectory() as folder,
            session(model.path, str(Path(folder) / "t.sqlite"), menu, budget=budget) as opened,
        ):
            first, second = (opened.problem.toolchains.parse_target(alias) for alias in menu)
            plan = forced(opened, (first, second), count)
            if plan is None:
                print(f"  {pair}: they do not take {count} ranges in turn")
                return True
            if (error := compare(opened, pair, plan)) is not None:
                errors.append(error)
    if not errors:
        return True
    middle = statistics.median(errors)
    print(f"  {pair:<28} additive error {middle:+.1%}, median of {len(errors)}", flush=True)
    return abs(middle) <= BAR


def compare(opened: Opened, label: str, plan: Plan) -> float | None:
    """Measure a plan's kernels, run it and the singles in turns, and print and return its additive error."""
    spec_of = {target: spec for spec in gather_specs(opened.survey) for target in spec.targets}
    places = [place for place in plan.kernels if place.target in spec_of]
    opened.costs.measure([CandidateKernel(p.sub_graph, p.target, spec_of[p.target], ("forced",)) for p in places])
    singles = single_plans(opened.problem, opened.survey, ())
    problem, running = opened.problem, opened.lab.session
    recipes, failures = built_plans(problem, running, [*singles, plan], opened.costs.why_wrong)
    built = [each for each in (*singles, plan) if each.name in recipes]
    finalists = [finalist_of(problem, running, each, recipes[each.name]) for each in built]
    # However slow the plan is, it is timed: its costs have to add up, too.
    patient = replace(problem.comparison_plan, abandon_ratio=math.inf)
    finals = compared(problem, running, built, recipes, finalists, None, plan=patient, winner=plan.name)
    error = additive_error(replace(finals, plan=plan), partial(predicted_s, problem, opened.costs))
    standing = {**failures, **finals.standings}[plan.name]
    if error is None or standing.time is None:
        print(f"  {label:<28} {len(plan.kernels):>3} kernels: not all could be measured; {standing.reason or ''}")
        return None
    predicted = predicted_s(problem, opened.costs, plan)
    print(
        f"  {label:<28} {len(plan.kernels):>3} kernels, predicted {predicted * 1e6:>9.1f} us, "
        f"whole {standing.time.median_s * 1e6:>9.1f} us, additive error {error:+.1%}",
        flush=True,
    )
    return error


def main() -> int:
    parser = make_parser(__doc__, models="")
    parser.add_argument("--pairs", default=PAIRS, help="pairs of targets, by commas")
    parser.add_argument("--budget", type=float, help="accuracy budget, for targets with -precision")
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure and run each plan")
    options = parser.parse_args()
    add_up = True
    for model in chosen_models(options):
        print(model.name, flush=True)
        for pair in options.pairs.split(","):
            add_up &= in_turns(model, pair, options.kernels, options.rounds, options.budget)
    return int(not add_up)


if __name__ == "__main__":
    sys.exit(main())
