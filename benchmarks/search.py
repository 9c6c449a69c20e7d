"""Measure what the search costs: with costs that are known, and with kernels that are measured.

::

    python -m benchmarks.search --costs drawn [--models bert,nasnet]        # enumeration and search of known costs
    python -m benchmarks.search --costs drawn-lazily                        # the same, measuring lazily
    python -m benchmarks.search --costs anchors                             # figures that are known of others
    python -m benchmarks.search --costs cold [--models resnet50,bert]       # keys found and measured, by cold compilations
    python -m benchmarks.search --costs everything --models dcgan,speech [--state FOLDER]

``drawn``: prints times, memory, candidates, states, transitions and caps (``_drawn_costs.py``); without ``--models`` some models
of the zoo and a transformer of 3,000 operators. ``anchors`` repeats the figures known of plain Dijkstra over covered sets: one
target, every admissible connected set of up to k operators (c candidates, st states, tr transitions). The graphs there are
other exports of the same networks.

``cold`` compiles each model on an empty database and prints how many distinct workload keys the candidates have, and how
many of them were built and timed. A small model has few keys, of which some must be measured in any case: every target on
the whole model, and one operator of each type where a toolchain tells nothing.

``everything`` measures every key of a model first (``--search exhaustive``), those of the cheapest plans twice as a compilation
does. Then it searches in the other modes, replayed from that one
database. Plans are compared by the costs that all know. The proof mode must end with the cheapest plan; what the fast mode
loses is printed. The cheapest of very many measured sums is partly cheap by luck. So at last the plan of each mode and the
best single are run end to end, taking turns: these lines tell what was really lost, and what a compilation would return,
which is the single where that is faster. Databases are kept in a folder (``--state``), so that the same command continues;
only figures with the same database are comparable.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import _drawn_costs
from benchmarks._arguments import MENU, ROOT, Model, chosen_models, make_parser

from collage import CompileOptions
from collage.compiler.candidates import collect, gather_specs
from collage.compiler.cost_table import CostTable
from collage.compiler.device_placement import prepare_and_plan_devices
from collage.compiler.final_comparison import choose
from collage.compiler.lab import Lab
from collage.compiler.opening import measure_session
from collage.compiler.partition_search import search_partition, search_until_stable
from collage.compiler.plans import single_plans
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey, survey_model
from collage.database.database import Database
from collage.database.queries import listing
from collage.frontend import place_weights, read_model
from collage.fusion import CandidateKernel, CandidateKernelIndex, FusionReport
from collage.graph import SubGraph
from collage.measure.tuning_records import TuningRecords
from collage.plan import Plan
from collage.search import Partitioning, SearchResult
from collage.toolchains import choose_menu, registry

DRAWN = {"drawn": _drawn_costs.run_eager, "drawn-lazily": _drawn_costs.run_lazy, "anchors": _drawn_costs.run_anchors}
DRAWN_MODELS = "resnet50,bert,gpt2,vit,nasnet,inception_v3"
COLLAGE = (sys.executable, "-c", "from collage.cli import main; main()")
BAR = 0.15


def compile_cold(model: Model, menu: Sequence[str]) -> None:
    """Compiles one model on an empty database, and prints what was found and measured."""
    with tempfile.TemporaryDirectory(prefix="collage-lazy-") as folder:
        db = f"{folder}/timings.sqlite"
        targets = [word for target in menu for word in ("-t", target)]
        command = [*COLLAGE, "compile", str(model.path), "-o", f"{folder}/artefact", *targets, "--db", db, "--json"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode:
            print(f"{model.name:<18} {told.stderr.strip().splitlines()[-1]}", flush=True)
            return
        report: dict[str, Any] = json.loads(told.stdout)
        with Database(db) as database:
            rows = sum(1 for _ in listing(database))
    found = report["search"]
    share = rows / found["keys"]
    print(
        f"{model.name:<18} {report['model']['nodes']:>5} {found['candidates']:>6} {found['keys']:>6} {rows:>6} {share:>6.1%} "
        f"{'yes' if share <= BAR else 'NO':>4} {report['winner'][:24]:<24} {found['stopped_by']:<12} {found['wall_s']:>6.0f}",
        flush=True,
    )


def compare(model: Model, menu: Sequence[str], state: Path) -> None:
    """Measures every key of one model, and compares the plans of searches that are replayed from that."""
    name, path, db = model.name, model.path, str(state / f"{model.name}.sqlite")
    with session(path, db, menu, mode="exhaustive") as opened:
        index = proposed(opened)
        best = search_partition(opened.problem, opened.costs, index).partitioning
        if best is None:
            print(f"{name:<18} nothing covers it")
            return
        keys, single_s = len(one_per_key(opened, index)), opened.survey.best_single_s
    print(row(name, "everything", keys, keys, best.cost.seconds, best.cost.seconds, single_s))
    found = {"everything": best}
    for mode in ("fast", "fast, refined", "proof"):
        with session(path, db, menu, mode=mode.split(",")[0]) as opened:
            index = proposed(opened)
            result = (
                opened.search_until_stable(index)
                if "refined" in mode
                else search_partition(opened.problem, opened.costs, index)
            )
            measured = sum(opened.costs.outcome_of(c) is not None for c in one_per_key(opened, index))
            cost_s = result.partitioning.cost.seconds if result.partitioning is not None else float("inf")
            if result.partitioning is not None:
                found[mode] = result.partitioning
            violated = f", {result.bound_violations} bounds were wrong" if mode == "proof" else ""
            told = f"  {result.stopped_by}{violated}"
            print(row(name, mode, keys, measured, cost_s, best.cost.seconds, single_s) + told, flush=True)

    with session(path, db, menu) as opened:
        proposed(opened)
        race(opened, found)


def race(opened: Opened, found: Mapping[str, Partitioning[CandidateKernel]]) -> None:
    """Runs plans end to end, taking turns, and prints how long each takes; plans of equal kernels are one."""
    plans = single_plans(opened.problem, opened.survey, ())
    names: dict[str, str] = {}
    for mode, cover in found.items():
        plan = Plan.of(on_this_graph(opened, cover).candidates, mode)
        same = next((other for other in plans if other.same_kernels(plan)), plan)
        names[mode] = same.name
        if same is plan:
            plans.append(plan)
    standings = choose(opened.lab, plans).standings
    timed = {name: standing.time.median_s for name, standing in standings.items() if standing.time}
    single_s = min(timed[plan.name] for plan in plans if plan.single and plan.name in timed)
    for mode, name in names.items():
        took = f"{timed[name] * 1e6:.1f} µs" if name in timed else standings[name].reason
        returned_s = min(timed.get(name, single_s), single_s)
        print(f"    end to end: {mode:<14} {took}  ({name}); returned: {returned_s * 1e6:.1f} µs", flush=True)
    print(f"    end to end: {'best single':<14} {single_s * 1e6:.1f} µs", flush=True)


def on_this_graph(opened: Opened, cover: Partitioning[CandidateKernel]) -> Partitioning[CandidateKernel]:
    """A cover that another session of the same model found."""
    here = [
        replace(c, sub_graph=SubGraph(opened.problem.graph, c.sub_graph.inside, c.sub_graph.nested))
        for c in cover.candidates
    ]
    return replace(cover, candidates=tuple(here))


def row(name: str, mode: str, keys: int, measured: int, cost_s: float, best_s: float, single_s: float) -> str:
    return (
        f"{Path(name).stem[:18]:<18} {mode:<14} {keys:>6} {measured:>6} {measured / keys:>6.1%} {cost_s * 1e6:>11.1f} "
        f"{cost_s / best_s - 1:>+7.2%} {single_s * 1e6:>11.1f}"
    )


@dataclass(frozen=True)
class Opened:
    """A model that was surveyed, and whose costs can be asked for."""

    lab: Lab
    records: TuningRecords

    @property
    def problem(self) -> Problem:
        return self.lab.problem

    @property
    def survey(self) -> Survey:
        return self.lab.survey

    @property
    def costs(self) -> CostTable:
        return self.lab.costs

    def search_until_stable(self, index: CandidateKernelIndex) -> SearchResult[CandidateKernel]:
        return search_until_stable(self.lab, self.records, index)[1]


@contextmanager
def session(
    path: Path, db: str, menu: Sequence[str], mode: str = "fast", budget: float | None = None
) -> Iterator[Opened]:
    """A model, and what a database knows of it, to be searched in one of the modes of ``collage compile --search``.

    Args:
        path: ONNX file.
        db: Database.
        menu: Targets.
        mode: See ``--search``.
        budget: Accuracy budget, for targets of reduced precision.
    """
    toolchains = registry()
    prepared, _ = prepare_and_plan_devices(read_model(path), None)
    options = CompileOptions(db=db, use_tuned=False, search=mode, accuracy_budget=budget)
    with (
        tempfile.TemporaryDirectory(prefix="collage-lazy-") as folder,
        Database(db) as database,
        measure_session(toolchains, database, Path(folder), options, say=progress) as measuring,
        ExitStack() as stack,
    ):
        model = place_weights(prepared, Path(folder))
        problem = Problem.of(model, choose_menu(menu, toolchains), toolchains, options)
        lab = Lab(survey_model(problem, measuring, stack=stack), measuring)
        lab.costs.learn()
        yield Opened(lab, TuningRecords(measuring))


def progress(line: str) -> None:
    print(f"\r{line:<78}\r", end="", file=sys.stderr, flush=True)


def proposed(opened: Opened) -> CandidateKernelIndex:
    candidates = collect(opened.problem, gather_specs(opened.survey), FusionReport())
    opened.costs.introduce(candidates)
    return candidates


def one_per_key(opened: Opened, index: CandidateKernelIndex) -> list[CandidateKernel]:
    return list({opened.problem.key_of(c): c for c in index}.values())


def main() -> None:
    """Run the script."""
    without = f"all of the zoo; with drawn costs {DRAWN_MODELS} and transformer-3000"
    parser = make_parser(__doc__, models="", without_models=without, targets=MENU)
    parser.add_argument("--costs", choices=[*DRAWN, "cold", "everything"], required=True)
    parser.add_argument("--seed", type=int, default=0, help="of costs that are drawn")
    state = ROOT / ".cache" / "search"
    parser.add_argument("--state", type=Path, default=state, help="everything: folder of databases to continue with")
    options = parser.parse_args()
    menu = options.targets.split(",")
    began = time.monotonic()
    if options.costs in DRAWN:
        synthetic = [] if options.models else [("transformer-3000", None)]
        options.models = options.models or DRAWN_MODELS
        models = [(model.name, model.path) for model in chosen_models(options)]
        _drawn_costs.run(DRAWN[options.costs], [*models, *synthetic], options.seed)
    elif options.costs == "everything":
        options.state.mkdir(parents=True, exist_ok=True)
        print("model              mode             keys   meas.  share   plan, µs    loss  single, µs")
        for model in chosen_models(options):
            compare(model, menu, options.state)
    else:
        print("model              nodes  cands   keys  meas.  share <=15 winner                   ended by     wall s")
        for model in chosen_models(options):
            compile_cold(model, menu)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
