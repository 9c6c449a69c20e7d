"""Executables whose kernels are chosen by hand: what the benchmarks and tests of the runtime are about is not the choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from collage.compiler.plans import kernel_attributes
from collage.frontend import place_weights, read_model
from collage.graph import DataflowGraph, IndexSet, KernelSpec, SubGraph, partition
from collage.measure.kernel_factory import KernelMaker
from collage.runtime import Executable, KernelRecord, Port, Recipe
from collage.system.scratch import make_scratch
from collage.target import Target
from collage.toolchains import Registry, compile_for, registry
from collage.transform import prepare

Part = tuple[Iterable[int], str]


def executable(
    model: Any,
    parts: Sequence[Part],
    *,
    threads: int = 0,
    contexts: int | None = None,
    toolchains: Registry | None = None,
) -> Executable:
    """Builds one kernel for each part: indices of operators in the prepared model, and a target."""
    available = toolchains or registry()
    workspace = make_scratch()
    placed = place_weights(prepare(read_model(model)), workspace)
    graph = DataflowGraph(placed)
    maker = KernelMaker(graph)
    specs, records = [], []
    for indices, alias in parts:
        target: Target = available.parse_target(alias)
        sub_graph = SubGraph(graph, IndexSet.from_indices(indices))
        kernel = maker.model(sub_graph, target)
        compiled = compile_for(available.for_target(target), kernel, target, workspace)
        name = str(kernel.graph.name)
        specs.append(KernelSpec(sub_graph, name, kernel_attributes(target, name)))
        records.append(KernelRecord(name, str(target), compiled.inputs, compiled.outputs, compiled))
    ir.save(partition(placed, specs), workspace / "model.onnx")
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


def whole(model: Any, target: str, **options: Any) -> Executable:
    """The whole model as one kernel."""
    return executable(model, [(range(len(DataflowGraph(prepare(read_model(model))))), target)], **options)
