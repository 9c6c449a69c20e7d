"""The section of toolchains against operator types, with measured times from the record of what was tried."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.explain import NodeRanges, Record, TriedKernel
from collage.graph import main_op_type
from collage.page._contents import PageContents
from collage.page._markup import Markup, join, tag
from collage.page._table import table
from collage.page._words import amount
from collage.report import short_name
from collage.status import Status
from collage.system.texts import counted

__all__ = ["toolchains_section"]

_MOST_SETS = 20
_MOST_TYPES = 40


def toolchains_section(contents: PageContents) -> Markup:
    """Return a table: the operators of each type that each toolchain takes, with measured times."""
    if not contents.kernels:
        return join()
    record = contents.record
    parts = (
        [_used(contents)] if record is None else [_matrix(contents, record), _same_operators(record), _answers(record)]
    )
    return tag("section", tag("h2", "Toolchains and operators"), *parts, id="toolchains")


def _used(contents: PageContents) -> Markup:
    """Return the operators that each toolchain runs in the returned plan, for artefacts without a record."""
    targets = tuple(dict.fromkeys(kernel.target for kernel in contents.kernels))
    by_target = {target: Counter[str]() for target in targets}
    for kernel in contents.kernels:
        by_target[kernel.target].update(kernel.op_counts)
    total = sum(by_target.values(), Counter[str]())
    rows = [
        (op_type, *(str(by_target[target][op_type] or "") for target in targets))
        for op_type, _ in total.most_common(_MOST_TYPES)
    ]
    columns = ("operator type", *map(short_name, targets))
    note = "This artefact has no record of the search, so only the returned plan is shown."
    return join(
        tag("p", note, class_="note"),
        table("Operators of the returned plan by toolchain", columns, rows, numbers=range(1, len(columns))),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """Measured kernels of one main operator type on one target.

    Attributes:
        times_us: Their times.
        ratios: Each time over the least one of any target for the same operators, where several were measured.
    """

    times_us: tuple[float, ...]
    ratios: tuple[float, ...]


def _matrix(contents: PageContents, record: Record) -> Markup:
    targets = [answer.target for answer in record.targets]
    cells, taken, refused = _cells(record), _counted_types(record, takes=True), _counted_types(record, takes=False)
    used: Mapping[str, Counter[str]] = defaultdict(Counter)
    for kernel in contents.kernels:
        used[kernel.target].update(kernel.op_counts)
    rows = []
    for op_type, count in Counter(record.op_types).most_common(_MOST_TYPES):
        row: list[str] = [f"{op_type} ({count})"]
        for target in targets:
            lines = []
            if number := used[target][op_type]:
                lines.append(tag("b", f"{number} in the plan"))
            if (cell := cells.get((op_type, target))) is not None:
                lines.append(tag("span", _told(cell)))
            yes, no = taken[target][op_type], refused[target][op_type]
            if no:
                lines.append(tag("span", f"takes {yes} of {yes + no}", class_="warn"))
            row.append(join(*([line, tag("br")][: 1 + (i < len(lines) - 1)] for i, line in enumerate(lines))))
        rows.append(row)
    note = (
        "Times are medians of the measured kernels whose main operator is of this type. Such kernels differ in size between "
        "cells. The factor does not: it compares kernels of the same operators with the fastest toolchain for them."
    )
    return join(
        tag("p", note),
        table("Operator types by toolchain", ("operator type", *map(short_name, targets)), rows, class_="matrix"),
    )


def _told(cell: _Cell) -> str:
    kernels = counted(len(cell.times_us), "kernel")
    factor = f", {statistics.median(cell.ratios):.2f}x the fastest" if cell.ratios else ""
    return f"{amount(statistics.median(cell.times_us))} ({kernels}{factor})"


def _cells(record: Record) -> dict[tuple[str, str], _Cell]:
    measured = _measured(record)
    by_nodes: dict[NodeRanges, list[TriedKernel]] = defaultdict(list)
    for row in measured:
        by_nodes[row.nodes].append(row)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for nodes, rows in by_nodes.items():
        main = main_op_type(record.op_types[i] for i in nodes)
        least = min(_time(row) for row in rows)
        for row in rows:
            times[main, row.target].append(_time(row))
            if len(rows) > 1 and least > 0:
                ratios[main, row.target].append(_time(row) / least)
    return {key: _Cell(tuple(found), tuple(ratios[key])) for key, found in times.items()}


def _measured(record: Record) -> list[TriedKernel]:
    """Return the measured kernels, each once: one with bodies of its own may stand beside one without."""
    rows = {(row.nodes, row.target): row for row in record.tried if row.is_measured and row.time_us is not None}
    return list(rows.values())


def _time(row: TriedKernel) -> float:
    assert row.time_us is not None
    return row.time_us


def _counted_types(record: Record, *, takes: bool) -> Mapping[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for answer in record.targets:
        sets = [answer.takes] if takes else list(answer.refuses.values())
        found[answer.target] = Counter(record.op_types[i] for nodes in sets for i in nodes)
    return found


def _same_operators(record: Record) -> Markup:
    """Return the times of all toolchains that were measured on the same operators, the longest kernels first."""
    by_nodes: dict[NodeRanges, dict[str, TriedKernel]] = defaultdict(dict)
    for row in _measured(record):
        by_nodes[row.nodes][row.target] = row
    several = [(nodes, rows) for nodes, rows in by_nodes.items() if len(rows) > 1]
    if not several:
        return tag("p", "No operators were measured on more than one toolchain.", class_="note")
    several.sort(key=lambda item: -min(map(_time, item[1].values())))
    targets = [answer.target for answer in record.targets if any(answer.target in rows for _, rows in several)]
    cells = []
    for nodes, rows in several[:_MOST_SETS]:
        least = min(map(_time, rows.values()))
        times: Sequence[str] = [_fastest(rows.get(target), least) for target in targets]
        cells.append((_named(record, nodes), *times))
    left = len(several) - len(cells)
    more = f", and {left} more that took less" if left else ""
    caption = f"The same operators on several toolchains, each as one kernel measured alone{more}"
    columns = ("operators", *map(short_name, targets))
    return table(caption, columns, cells, numbers=range(1, len(columns)), class_="stack")


def _fastest(row: TriedKernel | None, least: float) -> str:
    if row is None:
        return ""
    time = amount(row.time_us)
    return tag("b", time) if _time(row) <= least else time


def _named(record: Record, nodes: NodeRanges) -> str:
    if len(nodes) == 1:
        return f"{record.op_types[nodes.first]} {record.names[nodes.first]}"
    main = main_op_type(record.op_types[i] for i in nodes)
    return f"{len(nodes)} operators ({main}), {record.names[nodes.first]} to {record.names[nodes.last]}"


def _answers(record: Record) -> Markup:
    """Return the answer of each target about the whole model, with the operators that it refuses."""
    rows = []
    for answer in record.targets:
        refused = sum(len(nodes) for nodes in answer.refuses.values())
        reasons = "; ".join(f"{reason} ({len(nodes)})" for reason, nodes in list(answer.refuses.items())[:3])
        whole = "not tried" if answer.whole is None else answer.whole.value
        if answer.whole is Status.OK:
            whole = amount(answer.whole_us)
        takes = f"{len(answer.takes)} of {len(answer.takes) + refused}" if answer.takes or refused else ""
        told = reasons if answer.reason in answer.refuses else "; ".join(filter(None, (answer.reason, reasons)))
        rows.append((short_name(answer.target), whole, takes, told))
    columns = ("toolchain", "whole model, alone", "operators it takes", "what it says")
    return table("The answers of the toolchains of the menu", columns, rows, numbers=(1, 2), class_="stack")
