"""The contents of a page: all facts about a compilation that an artefact holds, read without running its code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from collage._errors import ArtefactError
from collage.explain import Record, TriedKernel, chosen_kernels, read_record
from collage.graph import kernels_of, operators_of
from collage.report import BodyKernelRow, Report
from collage.runtime import Port, Recipe, verify

__all__ = ["KernelView", "Operator", "PageContents", "Value", "read_contents"]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that crosses a border.

    Attributes:
        name: Its name.
        type: Its type and shape, such as ``float32[1, 3, 64, 64]``.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a kernel.

    Attributes:
        name: The node's name.
        op_type: Its type, with its domain if that is not ONNX's own.
        outputs: The values that it makes.
        reads: Numbers of the operators of the same kernel whose values it reads, from 0.
    """

    name: str
    op_type: str
    outputs: tuple[Value, ...]
    reads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelView:
    """One kernel of the returned plan.

    Attributes:
        number: Its place in the order of data, from 1.
        name: Its name.
        target: Printed form of its target.
        time_us: Its share of the end-to-end time, measured inside the executable; None if it was not measured.
        share: The same as a share of the run, 0 to 1.
        rule: The fusion rules that proposed it.
        place: The device that it runs on, or the branch in which it runs beside others; None if neither was planned.
        operators: Its operators.
        reads: The values that it reads; weights are not among them.
        makes: The values that it makes.
        bodies: The kernels of its bodies, if it is an If, a Loop or a Scan whose bodies are kernels of their own.
    """

    number: int
    name: str
    target: str
    time_us: float | None
    share: float | None
    rule: str
    place: str | None
    operators: tuple[Operator, ...]
    reads: tuple[Value, ...]
    makes: tuple[Value, ...]
    bodies: tuple[BodyKernelRow, ...] = ()

    @property
    def op_counts(self) -> Mapping[str, int]:
        """The number of operators of each type, most frequent first."""
        return dict(Counter(operator.op_type for operator in self.operators).most_common())


@dataclass(frozen=True)
class PageContents:
    """All that a page shows.

    Attributes:
        title: Name of the model's file, or of the artefact.
        report: The report of the compilation.
        kernels: The returned plan's kernels, in the order of data.
        inputs: The model's inputs.
        outputs: Its outputs.
        wires: Values from kernel to kernel: the makers' and the readers' numbers, 0 for an input of the model, and the
            value. Outputs of the model have the number after the last kernel as their reader.
        threads: Threads that each kernel may use; 0 is the toolchains' default.
        builds: Build of each toolchain that is used.
        record: The record of what was tried; None for artefacts without one.
        has_weights: True if the artefact holds weights in a file of their own. The page never does.
        is_redacted: True if names are replaced.
        notes: Sentences about parts that could not be read.
        artefact: Name of the artefact; empty if it is not told.
    """

    title: str
    report: Report
    kernels: tuple[KernelView, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    wires: tuple[tuple[int, int, Value], ...]
    threads: int = 0
    builds: Mapping[str, str] = field(default_factory=dict)
    record: Record | None = None
    is_redacted: bool = False
    notes: tuple[str, ...] = ()
    artefact: str = ""

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Targets of the menu and of the kernels, each once. Their order decides colours."""
        return tuple(dict.fromkeys((*self.report.menu, *(kernel.target for kernel in self.kernels))))

    @cached_property
    def heaviest(self) -> int:
        """Number of the kernel that takes the longest; 0 if there is none."""
        return max(self.kernels, key=lambda kernel: kernel.time_us or 0.0).number if self.kernels else 0

    @cached_property
    def tried(self) -> Mapping[str, tuple[TriedKernel, ...]]:
        """Candidates of exactly the operators of a kernel on other targets, by name of the kernel."""
        if self.record is None:
            return {}
        by_nodes = self.record.by_nodes()
        return {
            name: tuple(row for row in by_nodes.get(own.kernel.nodes, ()) if row.target != own.kernel.target)
            for name, own in chosen_kernels(self.record, self.report.kernels).items()
        }


def read_contents(folder: Path, name: str, notes: Sequence[str] = ()) -> PageContents:
    """Verify an artefact's folder and read its facts.

    Args:
        folder: The folder.
        name: Name of the artefact.
        notes: Sentences that the page is to show.

    Raises:
        ArtefactError: The artefact is damaged.
    """
    recipe, _ = verify(folder)
    report, told = recipe.report, list(notes)
    try:
        record = read_record(folder)
    except ArtefactError as error:
        record = None
        told.append(f"its record of the search cannot be read: {error}")
    kernels = _kernels(recipe, report, folder)
    inputs = tuple(_value_of(port) for port in recipe.inputs)
    outputs = tuple(_value_of(port) for port in recipe.outputs)
    return PageContents(
        title=Path(report.model.path).name or name,
        report=report,
        kernels=kernels,
        inputs=inputs,
        outputs=outputs,
        wires=_wires(recipe, kernels, inputs, outputs),
        threads=recipe.threads,
        builds=recipe.builds,
        record=record,
        notes=tuple(told),
        artefact=name,
    )


def _kernels(recipe: Recipe, report: Report, folder: Path) -> tuple[KernelView, ...]:
    model = ir.load(folder / recipe.model_file)
    calls = {str(call.node.name): call for call in kernels_of(model)}
    rows = {row.name: row for row in report.kernels}
    views = []
    for number, record in enumerate(recipe.kernels, 1):
        row, call = rows.get(record.name), calls.get(record.name)
        nodes = [] if call is None else operators_of(model, call.function)
        names = [str(node.name or "") for node in nodes]
        if row is not None and len(row.nodes) == len(nodes):
            names = list(row.nodes)  # Kernels that are alike share a function, whose names are those of the first.
        known = (
            {}
            if call is None
            else {str(value.name): value for value in (*call.node.inputs, *call.node.outputs) if value}
        )
        views.append(
            KernelView(
                number=number,
                name=record.name,
                target=record.target,
                time_us=None if row is None else row.time_us,
                share=None if row is None else row.share,
                rule="" if row is None else row.rule,
                place=record.device if record.branch is None else f"branch {record.branch}",
                operators=_operators(nodes, names),
                reads=tuple(_value(name, known.get(name)) for name in record.inputs),
                makes=tuple(_value(name, known.get(name)) for name in record.outputs),
                bodies=() if row is None else row.bodies,
            )
        )
    return tuple(views)


def _operators(nodes: Sequence[ir.Node], names: Sequence[str]) -> tuple[Operator, ...]:
    makers = {id(value): number for number, node in enumerate(nodes) for value in node.outputs}
    found = []
    for node, name in zip(nodes, names, strict=True):
        op_type = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        outputs = tuple(_value(str(value.name), value) for value in node.outputs if value.name)
        reads = dict.fromkeys(makers[id(value)] for value in node.inputs if id(value) in makers)
        found.append(Operator(name, op_type, outputs, tuple(reads)))
    return tuple(found)


def _value(name: str, value: ir.Value | None) -> Value:
    return Value(name, "") if value is None else Value(name, _value_of(Port.of(value)).type)


def _value_of(port: Port) -> Value:
    if port.kind is not None or (port.dtype is None and port.shape is None):
        return Value(port.name, port.kind or "")
    axes = "?" if port.shape is None else ", ".join("?" if axis is None else str(axis) for axis in port.shape)
    return Value(port.name, f"{port.dtype or 'any'}[{axes}]")


def _wires(
    recipe: Recipe, kernels: Sequence[KernelView], inputs: Sequence[Value], outputs: Sequence[Value]
) -> tuple[tuple[int, int, Value], ...]:
    maker = {value.name: 0 for value in inputs}
    copies = [] if recipe.devices is None else list(recipe.devices.copies)
    wires: list[tuple[int, int, Value]] = []
    for kernel in kernels:
        for copy in [copy for copy in copies if copy.source in maker]:
            maker[copy.result] = maker[copy.source]
            copies.remove(copy)
        wires += [(maker[value.name], kernel.number, value) for value in kernel.reads if value.name in maker]
        maker.update((value.name, kernel.number) for value in kernel.makes)
    for copy in copies:
        maker[copy.result] = maker.get(copy.source, 0)
    end = len(kernels) + 1
    return (*wires, *((maker[value.name], end, value) for value in outputs if value.name in maker))
