"""Executables of partitioned models: a partition from a pass, ``partition_for``, a user or a plan file is built unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import NothingCanRun, ToolchainError, UsageError, WrongAnswer
from collage.compiler.opening import measure_session
from collage.compiler.partitioned_model import read_partitioned
from collage.compiler.pipeline import compile, settle
from collage.compiler.tried import record_of_build
from collage.database.database import Database
from collage.explain import write_record
from collage.frontend import check_given, listed_outputs, place_weights, with_lengths_of
from collage.graph import (
    DataflowGraph,
    IndexSet,
    KernelSpec,
    NameSupply,
    SubGraph,
    kernel_model,
    kernels_of,
    partition,
)
from collage.measure.estimator import model_tolerance
from collage.measure.finalist import Finalist
from collage.measure.guessed_lengths import capture_at_some_lengths
from collage.measure.kernel_factory import kernel_attributes
from collage.measure.session import MeasureSession
from collage.measure.track import why_wrong
from collage.numerics.judge import REDUCED_TOLERANCE
from collage.options import CompileOptions, compile_options
from collage.plan_file import PlanFile
from collage.runtime import Executable, KernelRecord, Port, Recipe, output_ports
from collage.system.scratch import scratch
from collage.target import HOST_TARGET, HOST_TOOLCHAIN, Target
from collage.toolchains import TUNED, Registry, registry
from collage.workers.worker import Worker

__all__ = ["build"]

Say = Callable[[str], None]
_MODEL_FILE = "partitioned.onnx"
_AS_GIVEN = "the partitioning was built as it was given: no other kernels were looked at, and none was timed"
_SERVICE = "collage.measure._executable_worker:ExecutableWorker"


def build(
    model: Any,
    plan: str | Path | PlanFile | None = None,
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
    toolchains: Registry | None = None,
    workers: dict[str, Worker] | None = None,
    say: Say = lambda _: None,
) -> Executable:
    """Build a partitioned model without a search: its functions become kernels, and the host runs all other operators.

    Nothing is searched and nothing is compared with other plans. Outputs are compared with those of the same model without
    its partitioning, on the inputs of the options or on generated ones.

    Args:
        model: A result of ``CollageFuseOps`` or ``partition_for``, or the path, bytes or ``ModelProto`` of such a model. With
            a plan: any model that ``compile`` takes.
        plan: A plan file, or its path. It lists the kernels of the prepared model.
        options: See ``CompileOptions``. Only threads, inputs, lengths and the database are used.
        toolchains: The registry of toolchains; the installed ones by default.
        workers: Worker processes to use and to leave running.
        say: Called with a line for each step.

    Raises:
        UsageError: The model has no kernels, one is for an unknown target, or the plan does not fit.
        NothingCanRun: A kernel cannot be built, or the executable does not run.
        WrongAnswer: The outputs of the executable differ from those of the model without its partitioning.
    """
    options = compile_options(options)
    if plan is not None:
        given = replace(options, plan=plan)
        return compile(
            model, options=given, toolchains=toolchains, workers=workers, progress=lambda event: say(event.text)
        )
    toolchains = toolchains or registry()
    partitioned, whole = read_partitioned(model)
    if not kernels_of(partitioned):
        raise UsageError(
            "the model has no kernels, so there is nothing to build: collage.compile finds kernels, "
            "CollageFuseOps and partition_for make them, and a plan file names them (plan=...)"
        )
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        database = stack.enter_context(Database(options.db))
        session = stack.enter_context(
            measure_session(toolchains, database, workspace, options, workers=workers, say=say)
        )
        placed = _with_host_kernels(place_weights(partitioned, workspace))
        recipe = _built(placed, session, toolchains, options)
        reason, notes = _checked(whole, recipe, session, toolchains, options, database, workers)
        if reason is not None:
            raise WrongAnswer(f"the partitioned model is wrong: {reason}")
        write_record(record_of_build(placed, recipe.kernels, _AS_GIVEN), workspace)
        executable = settle(recipe, workspace, toolchains)
    executable.notes += notes
    return executable


def _with_host_kernels(model: ir.Model) -> ir.Model:
    """Return the model with every range of operators that are in no kernel as a kernel of the host."""
    graph = DataflowGraph(model)
    names = NameSupply(reserved=[str(call.node.name) for call in kernels_of(model)])
    specs = []
    for bits in _free_ranges(graph):
        name = names.fresh("host_left_behind")
        specs.append(KernelSpec(SubGraph(graph, IndexSet(bits)), name, kernel_attributes(HOST_TARGET, name)))
    return partition(model, specs) if specs else model


def _free_ranges(graph: DataflowGraph) -> Iterator[int]:
    bits = 0
    for i in range(len(graph)):
        if not graph.is_kernel_call(i):
            bits |= 1 << i
        elif bits:
            yield bits
            bits = 0
    if bits:
        yield bits


def _built(model: ir.Model, session: MeasureSession, toolchains: Registry, options: CompileOptions) -> Recipe:
    """Build every kernel of a partitioned model.

    Raises:
        NothingCanRun: A kernel cannot be built.
    """
    records, builds = [], {}
    for call in kernels_of(model):
        name, target = str(call.node.name), _target_of(call.metadata, toolchains)
        found = session.availability(target)
        if not found.available:
            raise NothingCanRun(f"kernel {name} is for {target.short}, which is not usable here: {found.reason}")
        kernel = kernel_model(model, call.node, name)
        kernel.metadata_props.update({key: text for key, text in call.metadata.items() if key == TUNED})
        session.say(f"building {name} on {target.short}")
        try:
            compiled = session.build(kernel, target)
        except ToolchainError as error:
            raise NothingCanRun(f"kernel {name} cannot be built on {target.short}: {error}") from error
        inputs, outputs = ([str(v.name) for v in values] for values in (kernel.graph.inputs, kernel.graph.outputs))
        records.append(KernelRecord(name, str(target), tuple(inputs), tuple(outputs), compiled))
        builds[target.build_name] = found.build
    ir.save(model, session.workspace / _MODEL_FILE)
    return Recipe(
        inputs=tuple(Port.of(value) for value in model.graph.inputs),
        outputs=output_ports(model),
        listed=listed_outputs(model),
        kernels=tuple(records),
        threads=options.threads,
        model_file=_MODEL_FILE,
        model={},
        builds=builds,
    )


def _target_of(metadata: Mapping[str, str], toolchains: Registry) -> Target:
    """Return the target of a kernel: its ``target``, or else the toolchain that its ``Compiler`` names, or the native one."""
    text = metadata.get("target") or metadata.get("Compiler") or "llvm"
    return HOST_TARGET if text in (str(HOST_TARGET), HOST_TARGET.toolchain) else toolchains.parse_target(text)


def _checked(
    whole: ir.Model,
    recipe: Recipe,
    session: MeasureSession,
    toolchains: Registry,
    options: CompileOptions,
    database: Database,
    workers: dict[str, Worker] | None,
) -> tuple[str | None, list[str]]:
    """Return why the executable is wrong, or None; and notes on what could not be checked.

    The model without its partitioning runs in a folder of its own, with weights of its own.
    """
    session.say("running the model once for reference")
    folder = session.workspace / "reference"
    folder.mkdir()
    whole = place_weights(whole, folder)
    with measure_session(toolchains, database, folder, options, workers=workers) as reference:
        given = check_given(whole, options.inputs)
        try:
            dims = with_lengths_of(whole, given, options.dims)
            capture_at_some_lengths(whole, reference, dims, given, seed=options.seed)
        except NothingCanRun as error:
            return None, [f"outputs were not checked: {error}"]
        arguments = {
            "recipe": recipe.as_json(),
            "workspace": str(session.workspace),
            "values": reference.value_folders,
            "weights": reference.weights,
            "lengths": [],
            "factories": {name: toolchains.factory(name) for name in {*recipe.toolchains, HOST_TOOLCHAIN}},
        }
    session.say("checking the outputs")
    tolerance = max(model_tolerance(whole), options.accuracy_budget or 0.0)
    if any(Target.parse(kernel.target).is_reduced for kernel in recipe.kernels) and not options.accuracy_budget:
        tolerance = max(tolerance, REDUCED_TOLERANCE)
    finalist = Finalist("partitioned", _SERVICE, arguments, len(recipe.kernels), model=str(reference.written(whole)))
    return why_wrong(finalist, tolerance), []
