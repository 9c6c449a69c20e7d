"""The four phases as a pass: what they choose stays a model, whose functions are the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from collage._errors import NothingCanRun
from collage.compiler.cost_table import CostTable
from collage.compiler.device_placement import DevicePlacement, plan_devices
from collage.compiler.opening import measure_session, on_given_inputs
from collage.compiler.partition_search import search_until_stable
from collage.compiler.pipeline import collect, gather_specs
from collage.compiler.plans import Plan
from collage.compiler.problem import Problem, with_reduced_precision
from collage.compiler.survey import survey_model
from collage.cost.cost import Cost
from collage.database.database import Database
from collage.frontend import fix_lengths, place_weights, read_model
from collage.fusion import CandidateKernel, FusionOptions, FusionReport, collect_candidates, gather_fusion_specs
from collage.graph import DataflowGraph, KernelSpec, NameSupply, SubGraph, is_view, kernels_of, partition
from collage.measure.estimator import CostEstimator
from collage.measure.kernel_factory import KernelMaker, kernel_attributes, kernel_name
from collage.measure.tuning_records import TuningRecords
from collage.options import CompileOptions
from collage.search import NoCover, Partitioning, placed_shortest_path, shortest_path
from collage.system.scratch import scratch
from collage.target import HOST_TARGET, Target, TargetLike
from collage.toolchains import Registry, Support, choose_menu, registry, support_for
from collage.transform import ModulePass, PassContext, PassInfo

__all__ = ["CollageFuseOps"]


class CollageFuseOps(ModulePass):
    """The four phases as a pass: sub-graphs of the model become functions, each for the target that runs it best.

    Does nothing unless the context's ``collage.enable_collage`` is set, and nothing to a model that it was applied to
    before.

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
        options = replace(on_given_inputs(options, model), use_tuned=False)
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
            session = stack.enter_context(measure_session(self._toolchains, database, workspace, options))
            menu = with_reduced_precision(self._menu, session) if options.accuracy_budget is not None else self._menu
            problem = Problem.of(place_weights(model, workspace), menu, self._toolchains, options, placement)
            survey = survey_model(problem, session, database)
            if survey.reference.failure is not None:
                raise NothingCanRun(survey.reference.failure)
            candidates = collect(problem, gather_specs(survey), FusionReport())
            costs = CostTable(problem, survey, session, database)
            costs.learn()
            costs.introduce(candidates)
            _, result = search_until_stable(problem, survey, costs, TuningRecords(session, database), candidates)
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
