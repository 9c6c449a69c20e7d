"""The four phases as a pass: the result is a model whose functions are the chosen kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.compiler.device_placement import prepare_and_plan_devices
from collage.compiler.effective_options import check_estimator_options, effective_options, refuse
from collage.compiler.estimated_search import EstimatedCosts, estimated_cover, estimated_plan, unrun_bodies
from collage.compiler.lab import Lab
from collage.compiler.opening import on_given_inputs, open_model, with_lengths
from collage.compiler.partitioned_model import read_partitioned
from collage.compiler.pipeline import find_plan
from collage.compiler.plans import kernel_spec
from collage.compiler.preparation import Verdict
from collage.compiler.problem import Problem
from collage.compiler.survey import Reference, Survey, supported_baselines
from collage.database.database import Database
from collage.frontend import read_model
from collage.fusion import FusionReport
from collage.graph import copy_model, kernels_of
from collage.measure.check_inputs import CheckingSets
from collage.measure.estimator import CostEstimator
from collage.options import CompileOptions, compile_options
from collage.plan import Plan
from collage.system.scratch import scratch
from collage.target import HOST_TARGET, TargetLike
from collage.toolchains import Availability, Registry, choose_menu, registry
from collage.transform import ModulePass, PassContext, PassInfo

__all__ = ["CollageFuseOps"]

_ABOUT_ARTEFACTS = ("objective", "limits", "front", "baseline", "plan", "plan_out")
_ABOUT_ERRORS = ("data", "metric", "max_drop")


class CollageFuseOps(ModulePass):
    """The four phases as a pass: sub-graphs of the model become functions, each for the target that runs it best.

    It works as ``compile`` does: the best plans, among them those of ``partition_for``, are timed end to end, and the
    fastest is taken. With ``finals=False`` it is the plan of the least predicted cost. The model is prepared first.
    Operators of the host stay outside of kernels. Nothing is done unless the context's ``collage.enable_collage`` is
    set. Kernels that the model has already stay as they are, and its other operators are partitioned around them. Such
    a model is not prepared.

    Args:
        targets: The menu; None is the result of ``choose_menu``.
        estimator: Returns the cost of a kernel; None measures it. With an estimator nothing is built or run, so targets
            need not be usable here. A toolchain then takes the operators that its ``supports`` accepts.
        options: See ``CompileOptions``. Options without a meaning for a pass are refused.
        toolchains: The registry of toolchains.

    Raises:
        UsageError: An option has no meaning for a pass, or a name is unknown.
    """

    def __init__(
        self,
        targets: Iterable[TargetLike] | None = None,
        estimator: CostEstimator | None = None,
        *,
        options: CompileOptions | Mapping[str, Any] | None = None,
        toolchains: Registry | None = None,
    ) -> None:
        super().__init__(PassInfo("CollageFuseOps", opt_level=0))
        self._toolchains = toolchains or registry()
        self._menu = choose_menu(targets, self._toolchains)
        self._estimator = estimator
        self._options = compile_options(options)
        refuse(self._options, _ABOUT_ARTEFACTS, "the pass makes no artefact")
        if estimator is not None:
            check_estimator_options(self._options)
            refuse(self._options, _ABOUT_ERRORS, "with an estimator the pass runs nothing")

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Prepare and partition the model.

        Raises:
            ModelError: The model cannot be run.
            NothingCanRun: No target, and not even the host, can run some operator.
            UsageError: Inputs or lengths in the options that do not fit the model.
            WrongAnswer: Every way of running the model gives wrong outputs.
        """
        if not context.get_config("collage.enable_collage"):
            context.warn("nothing is done, since collage.enable_collage is not set in the pass context")
            return model
        options = effective_options(self._options, self._menu, self._toolchains)
        if self._estimator is not None:
            return self._estimated(model, self._estimator, options)
        with ExitStack() as stack:
            workspace = stack.enter_context(scratch())
            return self._measured(model, replace(options, baseline="none"), workspace, stack)

    def _measured(self, model: ir.Model, options: CompileOptions, workspace: Path, stack: ExitStack) -> ir.Model:
        database = stack.enter_context(Database(options.db))
        keeps_kernels = bool(kernels_of(model))
        survey, session, _ = open_model(
            model,
            self._menu,
            replace(options, passes="InferType") if keeps_kernels else options,
            self._toolchains,
            workspace,
            database,
            stack,
            workers=None,
            say=lambda _: None,
            keeps_kernels=keeps_kernels,
        )
        lab, result = find_plan(Lab(survey, session))
        plan = result.finals.plan
        assert plan is not None
        partitioned = _partitioned(lab.problem, plan)
        _take_into_memory(partitioned)
        return partitioned

    def _estimated(self, model: ir.Model, estimator: CostEstimator, options: CompileOptions) -> ir.Model:
        if kernels_of(model):
            prepared, whole = read_partitioned(model)
            options, placement = on_given_inputs(options, whole), None
        else:
            model = with_lengths(read_model(model), options)
            options = on_given_inputs(options, model)
            prepared, placement = prepare_and_plan_devices(copy_model(model), options.devices, (), options.passes)
        problem = Problem.of(prepared, self._menu, self._toolchains, options, placement)
        baselines = supported_baselines(problem, lambda _: Availability(True))
        survey = Survey(problem, Reference(CheckingSets(), None, Verdict()), baselines)
        known = unrun_bodies(survey, estimator)
        costs = EstimatedCosts(problem, estimator, known)
        _, _, cover = estimated_cover(survey, costs, FusionReport(), [each for each, _ in known])
        return _partitioned(problem, estimated_plan(problem, costs, cover.candidates))


def _partitioned(problem: Problem, plan: Plan) -> ir.Model:
    """Return the prepared model with a function for each kernel; operators of the host stay as they are."""
    kernels = [kernel for kernel in plan.kernels if kernel.target != HOST_TARGET]
    return problem.kernels.partitioned(kernels, [kernel_spec(problem, kernel) for kernel in kernels])


def _take_into_memory(model: ir.Model) -> None:
    """Hold weights that lie in a file which is about to go; they are mapped, not copied."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(
                tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name
            )
