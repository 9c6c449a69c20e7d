"""Executables whose bodies of If, Loop and Scan are kernels of their own, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import onnx_ir as ir

from collage.frontend import place_weights, read_model
from collage.graph import DataflowGraph, IndexSet, KernelSpec, SubGraph, bodies
from collage.measure.kernel_factory import KernelMaker, kernel_attributes
from collage.plan import Plan, PlannedKernel
from collage.runtime import BODIES_TARGET, Executable, KernelRecord, Port, Recipe, compile_bodies
from collage.system.scratch import make_scratch
from collage.target import HOST_TARGET, Target
from collage.toolchains import Compiled, Registry, compile_for, registry
from collage.transform import prepare

__all__ = ["build_with_bodies"]


def build_with_bodies(
    model: Any, aliases: Sequence[str] = ("host",), *, toolchains: Registry | None = None, largest: int = 1
) -> Executable:
    """Return an executable of which every operator is a kernel, those in bodies too.

    Args:
        model: The model.
        aliases: The targets that kernels in bodies are for, in turns. Other kernels are the host's.
        toolchains: The registry in which toolchains are looked up.
        largest: The most operators of a kernel in a body.
    """
    available = toolchains or registry()
    targets = [HOST_TARGET if alias == "host" else available.parse_target(alias) for alias in aliases]
    workspace = make_scratch()
    placed = place_weights(prepare(read_model(model)), workspace)
    graph = DataflowGraph(placed)
    maker = KernelMaker(graph)

    def plans_of(node: ir.Node) -> tuple[Plan, ...]:
        turns = cycle(targets)
        return tuple(Plan("", _kernels(DataflowGraph(body), turns)) for body in bodies(node))

    def _kernels(inner: DataflowGraph, turns: cycle[Target]) -> tuple[PlannedKernel, ...]:
        kernels, first = list[PlannedKernel](), 0
        while first < len(inner):
            last = first + 1
            is_holder = any(True for _ in bodies(inner.node(first)))
            while not is_holder and last < min(len(inner), first + largest):
                if any(True for _ in bodies(inner.node(last))):
                    break
                last += 1
            kernels.append(
                kernel_of(SubGraph(inner, IndexSet.range(first, last)), HOST_TARGET if is_holder else next(turns))
            )
            first = last
        return tuple(kernels)

    def kernel_of(sub_graph: SubGraph, target: Target) -> PlannedKernel:
        plans = plans_of(sub_graph.nodes[0]) if len(sub_graph) == 1 else ()
        return PlannedKernel(sub_graph, BODIES_TARGET if plans else target, bodies=plans)

    def build(kernel: ir.Model, target: Target) -> Compiled:
        if target == BODIES_TARGET:
            return compile_bodies(kernel, target, workspace, build)
        return compile_for(available.for_target(target), kernel, target, workspace)

    kernels = [kernel_of(SubGraph(graph, IndexSet.of(i)), HOST_TARGET) for i in range(len(graph))]
    specs, records = [], []
    for i, kernel in enumerate(kernels):
        name = f"kernel_{i}"
        compiled = build(maker.of(kernel), kernel.target)
        specs.append(KernelSpec(kernel.sub_graph, name, kernel_attributes(kernel.target, name)))
        records.append(KernelRecord(name, str(kernel.target), compiled.inputs, compiled.outputs, compiled))
    ir.save(maker.partitioned(kernels, specs), workspace / "model.onnx")
    owners = {leaf.toolchain for record in records for leaf in (record.compiled, *record.compiled.inner)}
    recipe = Recipe(
        inputs=tuple(Port.of(value) for value in placed.graph.inputs),
        outputs=tuple(Port.of(value) for value in placed.graph.outputs),
        kernels=tuple(records),
        threads=0,
        model_file="model.onnx",
        model={},
        builds={name: available.get(name).availability().build for name in owners},
    )
    return Executable(recipe, workspace, owns_workspace=True, toolchains=available)
