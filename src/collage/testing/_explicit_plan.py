"""Executables whose kernels a test or a benchmark chooses by hand, without a search and without a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from collage.compiler.tried import record_of_build
from collage.explain import write_record
from collage.frontend import place_weights, read_model
from collage.graph import DataflowGraph, IndexSet, KernelSpec, SubGraph, partition
from collage.measure.kernel_factory import KernelMaker, kernel_attributes, plan_kernel_name
from collage.runtime import Executable, KernelRecord, Port, Recipe
from collage.system.scratch import make_scratch
from collage.toolchains import Registry, compile_for, registry
from collage.transform import parse_pipeline

__all__ = ["Part", "executable_of"]

Part = tuple[Iterable[int], str]
"""Indices of operators of the prepared model, and the target that runs them."""


def executable_of(
    model: Any,
    parts: Sequence[Part] | str,
    *,
    threads: int = 0,
    contexts: int | None = None,
    passes: str = "prepare",
    toolchains: Registry | None = None,
) -> Executable:
    """Build an executable from an explicit plan: one kernel for each part.

    Args:
        model: Anything that ``read_model`` reads.
        parts: Disjoint parts that cover the prepared model. A target alone gets the whole model as one kernel.
        threads: Threads of each kernel, 0 for as many as there are processors.
        contexts: Runs that may go on at the same time, None for the default of ``Executable``.
        passes: The passes that prepare the model, see ``parse_pipeline``.
        toolchains: Registry in which the targets are looked up, the installed toolchains by default.

    Returns:
        An executable that owns its workspace. Nothing is measured, and nothing is compared with a reference.

    Raises:
        ModelError: The model is not valid, or not safe.
        TargetError: A target is unknown, or cannot be used.
        PassError: A node is in two parts, or parts feed each other in a circle.
        ToolchainError: A kernel cannot be compiled.
    """
    available = toolchains or registry()
    workspace = make_scratch()
    placed = place_weights(parse_pipeline(passes)(read_model(model)), workspace)
    graph = DataflowGraph(placed)
    maker = KernelMaker(graph)
    specs, records = [], []
    given = [(range(len(graph)), parts)] if isinstance(parts, str) else list(parts)
    for number, (indices, alias) in enumerate(given, 1):
        target = available.parse_target(alias)
        sub_graph = SubGraph(graph, IndexSet.from_indices(indices))
        kernel = maker.model(sub_graph, target)
        compiled = compile_for(available.for_target(target), kernel, target, workspace)
        name = plan_kernel_name(number, len(given), sub_graph, target)
        specs.append(KernelSpec(sub_graph, name, kernel_attributes(target, name)))
        records.append(KernelRecord(name, str(target), compiled.inputs, compiled.outputs, compiled))
    partitioned = partition(placed, specs)
    ir.save(partitioned, workspace / "model.onnx")
    write_record(record_of_build(partitioned, records, "the kernels were given"), workspace)
    recipe = Recipe(
        inputs=tuple(Port.of(value) for value in placed.graph.inputs),
        outputs=tuple(Port.of(value) for value in placed.graph.outputs),
        kernels=tuple(records),
        threads=threads,
        model_file="model.onnx",
        model={},
        builds={
            record.compiled.toolchain: available.get(record.compiled.toolchain).availability().build
            for record in records
        },
    )
    return Executable(recipe, workspace, owns_workspace=True, toolchains=available, contexts=contexts)
