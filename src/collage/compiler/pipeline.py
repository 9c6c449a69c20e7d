"""Collage: the four phases of the specification, and what makes their result trustworthy.

``compile`` is the whole story:

1. **gather**: the targets on the menu are asked for their fusion specs;
2. **collect**: the fusion rules propose candidate kernels on the dataflow graph;
3. **search**: a cheapest cover is found, measuring only candidates that may lie on it;
4. **partition**: the model is rewritten into one function per kernel;

and then the best partitionings race, end to end, against every toolchain alone. Phases 1 and 2 are here, phase 3 is
``compiler/partition_search.py``, phase 4 ``compiler/plans.py``, the race ``compiler/final_comparison.py``. Specification 003;
design section 4.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import NothingCanRun, TargetError, WrongAnswer
from collage.compiler.accuracy_budget import within_budget
from collage.compiler.additivity import correct_costs, with_additive_error
from collage.compiler.autotune import autotune, known_autotuned
from collage.compiler.device_placement import DevicePlacement, plan_devices, prepare_and_plan_devices
from collage.compiler.final_comparison import FinalComparison, choose, compare_again, lowered_again, unmeasured
from collage.compiler.partition_search import best_plans, in_one_process, search_until_stable, searched_again
from collage.compiler.plans import Plan, single_plans
from collage.compiler.preparation import (
    OPSET_CONVERSION,
    PreparationDiffers,
    Verdict,
    preparation_fact,
)
from collage.compiler.report import compile_report
from collage.compiler.result_store import CompileResult, ResultStore, SearchSummary
from collage.compiler.session import LIMITS, CompileSession
from collage.cost.cost import Cost
from collage.cost.outcome import Status
from collage.database.database import Database
from collage.frontend import (
    MIN_OPSET,
    as_onnx,
    check_given,
    fix_lengths,
    model_digest,
    read_model,
    with_lengths_of,
    write_original,
)
from collage.fusion import (
    CandidateKernel,
    CandidateKernelIndex,
    FusionOptions,
    FusionSpec,
    HostFusionRule,
    collect_candidates,
    gather_fusion_specs,
)
from collage.graph import DataflowGraph, KernelSpec, NameSupply, SubGraph, copy_model, is_view, kernels_of, partition
from collage.measure.estimator import CostEstimator
from collage.measure.kernel_factory import KernelMaker, kernel_attributes, kernel_name
from collage.measure.original_model import OriginalModel
from collage.options import CompileOptions
from collage.runtime import Executable, Recipe
from collage.search import (
    LazyResult,
    NoCover,
    Partitioning,
    placed_shortest_path,
    shortest_path,
)
from collage.system.scratch import make_scratch, scratch
from collage.target import HOST_TARGET, HOST_TOOLCHAIN, Target, TargetLike
from collage.toolchains import Registry, Support, registry, support_for
from collage.transform import ModulePass, PassContext, PassInfo, code_digest
from collage.workers.worker import Worker

__all__ = ["CollageFuseOps", "CompileOptions", "choose_menu", "compile"]

Say = Callable[[str], None]


def compile(
    source: Any,
    targets: Iterable[TargetLike] | None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    options: CompileOptions | None = None,
    toolchains: Registry | None = None,
    workers: dict[str, Worker] | None = None,
    say: Say = lambda _: None,
) -> Executable:
    """Compiles a model into the fastest measured mix of toolchains.

    Args:
        source: A path, bytes, ``onnx.ModelProto``, ``onnx_ir.Model``, ``torch.nn.Module``, ``torch.export.ExportedProgram``
            or ``torch.onnx.ONNXProgram``.
        targets: The menu: targets or aliases, preferred ones first. None is what ``choose_menu`` says.
        example_inputs: Positional inputs with which a ``torch.nn.Module`` is exported.
        example_kwargs: Its inputs by keyword.
        dynamic_shapes: Dimensions of these that stay symbolic, as ``torch.export.export`` takes them.
        options: See ``CompileOptions``.
        toolchains: Where toolchains are found; the installed ones by default.
        workers: Worker processes to use and to leave running, for callers that compile many models.
        say: Told what is going on, a line at a time.

    Returns:
        The executable. It is never slower than the fastest single target of the menu, beyond the noise that its
        ``report`` states, and its outputs were checked.

    Raises:
        UsageError: A path that does not exist, an unknown target, an option that makes no sense, inputs that do not fit.
        ModelError: The source is no valid, or no safe, model.
        NothingCanRun: An operator that no target and no fallback can run.
        WrongAnswer: Every way of running the model gives wrong outputs.
    """
    options = options or CompileOptions()
    toolchains = toolchains or registry()
    menu = choose_menu(targets, toolchains)
    started = time.monotonic()
    say("reading the model")
    source = as_onnx(source, example_inputs, example_kwargs, dynamic_shapes)
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(options.db))
        session, facts = _tuning(
            source, menu, options, toolchains, workspace, database, stack, workers=workers, say=say
        )
        options = session.options
        if session.reference_failure is None:
            result = _plan(session)
        else:
            result = CompileResult.of(session, unmeasured(session), SearchSummary())
        finals = result.finals
        if finals.recipe is None:
            raise _nothing_finished(finals)
        facts["nodes"] = len(session.graph)
        report = compile_report(session, facts, result, time.monotonic() - started)
        recipe = replace(finals.recipe, model=facts, report=report)
        return _settle(recipe, workspace, toolchains)


def _plan(session: CompileSession) -> CompileResult:
    """Return what the last compilation like this one ended with, if it holds, or the result of a search."""
    proposed = collect(session, gather_specs(session))
    store = ResultStore(session, proposed)
    known = None if session.options.remeasure or session.options.tune_s else store.load()
    if known is not None and (holds := _recalled(session, known, store)) is not None:
        return holds
    session.learn_costs()
    session.introduce(proposed)
    candidates = CandidateKernelIndex([*proposed, *known_autotuned(session, proposed)])
    if session.options.tune_s:
        candidates, _ = search_until_stable(session, candidates)
        candidates = autotune(session, candidates)
    found, finals = decide(session, candidates)
    result = CompileResult.of(session, finals, SearchSummary.of(session, candidates, found))
    if finals.recipe is not None and not _is_unfinished(session, result):
        store.keep(result)
    return result


def _recalled(session: CompileSession, known: CompileResult, store: ResultStore) -> CompileResult | None:
    """Build what an earlier compilation chose, and compare it again if it was chosen in doubt and the machine is calm.

    Returns:
        The result; None if what was chosen then cannot be built now, or is wrong.
    """
    finals = lowered_again(session, known.finals)
    if finals is None:
        return None
    if not finals.is_in_doubt or not session.measure_session.noise_monitor.is_known_quiet():
        return replace(known, finals=finals)
    again = compare_again(session, finals)
    if again is finals:
        return replace(known, finals=finals)
    result = replace(known, finals=again, is_remembered=False)
    store.keep(result)
    return result


def _is_unfinished(session: CompileSession, result: CompileResult) -> bool:
    """Return True if the user, or a budget of theirs, ended it early: the same command then goes on from there."""
    stopped_by, options = result.search.stopped_by, session.options
    has_budget = options.measure_budget is not None or options.time_budget_s is not None
    is_cut_short = has_budget and stopped_by in ("deadline", "max_measured")
    return result.finals.is_interrupted or stopped_by == "should_stop" or is_cut_short


def _tuning(
    source: Any,
    menu: Sequence[Target],
    options: CompileOptions,
    toolchains: Registry,
    workspace: Path,
    database: Database,
    stack: ExitStack,
    *,
    workers: dict[str, Worker] | None,
    say: Say,
) -> tuple[CompileSession, dict[str, Any]]:
    """Read, prepare and survey a model; passes that change what it computes are left out.

    Returns:
        What is known of the model, to be closed with ``stack``, and what the report says of its origin.
    """
    model = read_model(source)
    facts: dict[str, Any] = {
        "path": str(source) if isinstance(source, str | Path) else "",
        "sha256": model_digest(model),
    }
    original = OriginalModel(write_original(source, workspace), LIMITS, workers)
    stack.callback(original.close)
    model = fix_lengths(model, options.fixed)
    options = _on_given_inputs(options, model)
    fact = preparation_fact(facts["sha256"], options, code_digest())
    told = None if options.remeasure else database.local_fact(**fact)
    verdict = Verdict() if told is None else Verdict(tuple(told["left_out"]), tuple(told["reasons"]))
    while True:
        if OPSET_CONVERSION in verdict.left_out:
            model = fix_lengths(read_model(source, convert_opset=False), options.fixed)
        passes = [name for name in verdict.left_out if name != OPSET_CONVERSION]
        prepared, placement = prepare_and_plan_devices(copy_model(model), options.devices, passes)
        if placement is not None and not options.threads:
            options = replace(options, threads=placement.threads)
        session = CompileSession(
            prepared,
            menu,
            toolchains,
            database,
            workspace,
            options=options,
            placement=placement,
            workers=workers,
            original=original,
            verdict=verdict,
            is_compared=told is not None,
            reprepare=partial(_prepared_without, model, options),
            say=say,
        )
        try:
            stack.enter_context(session)
        except PreparationDiffers as found:
            verdict = _left_out(found, verdict, model)
            told = None
            say(f"preparing the model without {', '.join(verdict.left_out)}")
            continue
        if session.reference_failure is None and original.failure is None:
            database.keep_local_fact({"left_out": list(verdict.left_out), "reasons": list(verdict.reasons)}, **fact)
        return session, facts


def _prepared_without(model: ir.Model, options: CompileOptions, left_out: Sequence[str]) -> ir.Model:
    names = [name for name in left_out if name != OPSET_CONVERSION]
    return prepare_and_plan_devices(copy_model(model), options.devices, names)[0]


def _left_out(found: PreparationDiffers, verdict: Verdict, model: ir.Model) -> Verdict:
    """Return what to leave out of the next preparation.

    Raises:
        WrongAnswer: Nothing is left to leave out.
    """
    if found.guilty:
        return verdict.without(found.guilty, found.mismatch)
    if OPSET_CONVERSION in verdict.left_out or model.opset_imports.get("") != MIN_OPSET:
        raise WrongAnswer(f"reading the model changes what it computes: {found.mismatch}; please report it")
    # What the passes changed, they changed of a converted model: they get another chance.
    return Verdict().without((OPSET_CONVERSION,), found.mismatch)


def _on_given_inputs(options: CompileOptions, model: ir.Model) -> CompileOptions:
    """Options with their inputs as the model takes them, from which lengths follow."""
    given = check_given(model, options.inputs)
    return replace(options, inputs=given, dims=with_lengths_of(model, given, options.dims))


def choose_menu(targets: Iterable[TargetLike] | None, toolchains: Registry) -> tuple[Target, ...]:
    """The menu: what was asked for, or the CPU targets of every toolchain that wants to be on it unasked.

    Raises:
        TargetError: An unknown target, or an empty menu.
    """
    if targets is None:
        wanted = [toolchain for toolchain in toolchains if getattr(toolchain, "on_default_menu", True)]
        cpu = [stem for toolchain in wanted for stem in toolchain.targets if stem.split()[0] == "llvm"]
        targets = [stem for stem in cpu if toolchains.parse_target(stem).toolchain != HOST_TOOLCHAIN]
    menu = tuple(toolchains.parse_targets([targets] if isinstance(targets, str | Target) else targets))
    if not menu:
        raise TargetError("the menu is empty; name at least one target, such as 'onnxruntime'")
    return menu


def gather_specs(session: CompileSession) -> Sequence[FusionSpec]:
    """Phase 1: each target of the menu says how its candidates are found."""
    usable = [target for target in session.menu if session.baselines[target].availability.available]
    toolchain_of, placement = session.toolchains.for_target, session.placement
    if placement is None:
        return gather_fusion_specs(usable, toolchain_of, session.coverage_of, session.options.fusion)
    # Rules that look for the largest kernels find those within one device only if they see nothing else.
    return [
        spec
        for device in placement.devices
        for spec in gather_fusion_specs(
            usable, toolchain_of, partial(session.coverage_on, device), session.options.fusion
        )
    ]


def collect(session: CompileSession, specs: Sequence[FusionSpec]) -> CandidateKernelIndex:
    """Phase 2: the rules propose candidates; the host takes views, and what nobody else takes."""
    session.say("collecting candidate kernels")
    proposed = session.within_devices(collect_candidates(session.graph, specs, session.fusion))
    covered = 0
    for candidate in proposed:
        covered |= candidate.bits
    rule = HostFusionRule(lambda node: is_view(node) or not covered >> session.graph.index_of(node) & 1)
    host = FusionSpec("host", rule, (HOST_TARGET,))
    left_behind = session.within_devices(host.all_candidates(session.graph, session.fusion))
    index = CandidateKernelIndex([*proposed, *left_behind])
    _check_covered(session, index)
    return index


def _check_covered(session: CompileSession, index: CandidateKernelIndex) -> None:
    """Raises NothingCanRun where devices leave an operator to nobody."""
    covered = 0
    for candidate in index:
        covered |= candidate.bits
    for i, node in enumerate(session.graph.nodes):
        if session.placement is not None and not covered >> i & 1:
            raise NothingCanRun(
                f"{node.name!r} ({node.op_type}) is planned for {session.placement.scope_of(node)}, and no target of the "
                f"menu that takes it refines that: {', '.join(map(str, session.menu))}"
            )


def decide(
    session: CompileSession, index: CandidateKernelIndex
) -> tuple[LazyResult[CandidateKernel] | None, FinalComparison]:
    """Phase 3, then the finals; once more where these contradict the costs that were searched with."""
    singles = single_plans(session)
    if not session.has_choice:
        return None, with_additive_error(session, choose(session, singles))
    finals, raced = None, list[Plan]()
    while True:
        index, result = search_until_stable(session, index)
        plans = _finalists(session, index, result, singles)
        if finals is not None and all(_is_among(raced, plan) for plan in plans):
            break
        rejected = session.rejections
        finals, raced = choose(session, plans), plans
        if not correct_costs(session, finals) and session.rejections == rejected:
            break
    return result, with_additive_error(session, finals)


def _finalists(
    session: CompileSession,
    index: CandidateKernelIndex,
    result: LazyResult[CandidateKernel],
    singles: Sequence[Plan],
) -> list[Plan]:
    """Return the plans to compare: every single, and the best mixes."""
    covers = in_one_process(session, index, best_plans(session, index, result))
    if any(target.is_reduced for target in session.menu):
        covers = within_budget(session, covers, partial(searched_again, session, index))
    mixes = [plan for plan in covers if not _is_single_already(session, plan) and not _is_among(singles, plan)]
    mixes = [replace(plan, name=f"mix {i}") for i, plan in enumerate(mixes[: session.options.finalists], 1)]
    return [*singles, *mixes]


def _is_among(plans: Sequence[Plan], plan: Plan) -> bool:
    return any(plan.same_kernels(one) for one in plans)


def _is_single_already(session: CompileSession, plan: Plan) -> bool:
    """Whether a plan is the whole model on one target, as surveyed: neither tuned, nor with parts chosen by the search."""
    first = plan.kernels[0]
    return len(plan.kernels) == 1 and first.target in session.baselines and not first.sub_graph.nested


class CollageFuseOps(ModulePass):
    """The four phases as a pass: sub-graphs of the model become functions, each for the target that runs it best.

    Does nothing unless the context's ``collage.enable_collage`` is set, and nothing to a model that it was applied to
    before. Specification 003.

    Args:
        targets: The menu; None is what ``choose_menu`` says.
        estimator: Tells what kernels cost. None measures them, lazily; with one of your own every candidate is estimated,
            and what a toolchain takes is what its ``supports`` says.
        options: See ``CompileOptions``; nothing is raced here.
        toolchains: Where toolchains are found.
    """

    def __init__(
        self,
        targets: Iterable[TargetLike] | None = None,
        estimator: CostEstimator | None = None,
        *,
        options: CompileOptions | None = None,
        toolchains: Registry | None = None,
    ) -> None:
        super().__init__(PassInfo("CollageFuseOps", opt_level=0))
        self._toolchains = toolchains or registry()
        self._menu = choose_menu(targets, self._toolchains)
        self._estimator = estimator
        self._options = options or CompileOptions()

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Partitions the model; weights are shared with it.

        Raises:
            NothingCanRun: Some operator can be run by nothing.
            UsageError: Inputs or lengths in the options that do not fit the model.
        """
        if not context.get_config("collage.enable_collage") or kernels_of(model):
            return model
        options = self._options_within(context)
        model = fix_lengths(read_model(model), options.fixed)
        # Records of tuned kernels have no place in a partitioned module.
        options = replace(_on_given_inputs(options, model), use_tuned=False)
        placement = plan_devices(model, options.devices)
        graph = DataflowGraph(model)
        plan = (
            self._measured(model, options, placement)
            if self._estimator is None
            else self._estimated(graph, self._estimator, options, placement)
        )
        names = NameSupply("collage")
        specs = []
        for kernel in plan.kernels:
            # The plan's graph may be that of a copy; its nodes have the same indices.
            sub_graph = SubGraph(graph, kernel.sub_graph.inside, kernel.sub_graph.nested)
            name = names.fresh(kernel_name(sub_graph, kernel.target))
            scope = None if placement is None else placement.result_scope(sub_graph.nodes, kernel.target, kernel.device)
            specs.append(KernelSpec(sub_graph, name, kernel_attributes(kernel.target, name, scope)))
        return partition(model, specs)

    def _options_within(self, context: PassContext) -> CompileOptions:
        """The pass's options; where they leave it open, a context's configuration says how deep kernels may be."""
        if self._options.fusion is not None:
            return self._options
        native, other = (context.get_config(f"collage.{kind}_max_depth") for kind in ("tvm", "byoc"))
        return replace(self._options, fusion=FusionOptions(native_max_depth=native, max_depth=other))

    def _measured(self, model: ir.Model, options: CompileOptions, placement: DevicePlacement | None) -> Plan:
        with ExitStack() as stack:
            workspace = stack.enter_context(scratch())
            database = stack.enter_context(Database(options.db))
            session = stack.enter_context(
                CompileSession(
                    model, self._menu, self._toolchains, database, workspace, options=options, placement=placement
                )
            )
            if session.reference_failure is not None:
                raise NothingCanRun(session.reference_failure)
            candidates = collect(session, gather_specs(session))
            session.learn_costs()
            session.introduce(candidates)
            _, result = search_until_stable(session, candidates)
            if result.partitioning is None:
                raise NothingCanRun(result.missing.reason if result.missing else "no cover was found in time")
            return Plan.of(result.partitioning, "collage")

    def _estimated(
        self,
        graph: DataflowGraph,
        estimator: CostEstimator,
        options: CompileOptions,
        placement: DevicePlacement | None,
    ) -> Plan:
        def supports(target: Target) -> Callable[[ir.Node], Support]:
            toolchain = self._toolchains.for_target(target)
            return lambda node: support_for(toolchain, node, target)

        specs = gather_fusion_specs(
            self._menu, self._toolchains.for_target, supports, options.fusion, host_target=HOST_TARGET
        )
        kernels = KernelMaker(graph)

        def cost_of(candidate: CandidateKernel) -> Cost:
            if candidate.target == HOST_TARGET:
                # The host serves views for nothing, and the rest only where nobody else can.
                return Cost.ZERO if is_view(graph.node(candidate.first)) else Cost.unknown(len(self._menu) + 1)
            return estimator.estimate(kernels.model(candidate.sub_graph, candidate.target), candidate.target)

        priorities = {target: rank for rank, target in enumerate((*self._menu, HOST_TARGET))}
        candidates = list(collect_candidates(graph, specs))
        find: Callable[..., Partitioning[CandidateKernel] | NoCover] = shortest_path
        if placement is not None:
            candidates = list(placement.within(candidates))
            if placement.is_free:
                find = partial(placed_shortest_path, transfers=placement.transfers(graph))
        found = find(
            len(graph),
            candidates,
            cost_of,
            launch_penalty_of=lambda c: options.launch_penalties_s.get(c.target.toolchain, 0.0),
            priority_of=lambda c: priorities[c.target],
        )
        if isinstance(found, NoCover):
            raise NothingCanRun(found.reason)
        return Plan.of(found, "collage")


def _nothing_finished(finals: FinalComparison) -> Exception:
    """What to say where no way of running the model is left."""
    standings = finals.standings
    reasons = "; ".join(f"{name}: {s.reason}" for name, s in standings.items() if s.reason) or "no target took it"
    if any(s.status is Status.WRONG for s in standings.values()):
        return WrongAnswer(f"every way of running the model gives wrong outputs: {reasons}")
    return NothingCanRun(f"nothing can run the model: {reasons}")


def _settle(recipe: Recipe, workspace: Path, toolchains: Registry) -> Executable:
    """Moves an executable's files out of the workspace, which goes away with everything else in it."""
    home = make_scratch()
    for name in recipe.files_with_weights(workspace):
        shutil.move(workspace / name, home / name)
    model_file = "model.onnx"
    (home / recipe.model_file).rename(home / model_file)
    return Executable(replace(recipe, model_file=model_file), home, owns_workspace=True, toolchains=toolchains)
