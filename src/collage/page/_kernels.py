"""The section of the partitioned model: its picture, and the details of each kernel."""

from __future__ import annotations

from collections.abc import Sequence

from collage.explain import TriedKernel
from collage.page._contents import KernelView, PageContents, Value
from collage.page._markup import Markup, join, tag
from collage.page._picture import colour_of, operator_graph, picture, told_operators
from collage.page._table import table
from collage.page._words import amount, percent
from collage.report import short_name
from collage.status import Status
from collage.system.texts import counted

__all__ = ["model_section"]

_MOST_RIVALS = 12


def model_section(contents: PageContents) -> Markup:
    """Return the picture beside the details of the kernel that is selected, and a table of all kernels."""
    if not contents.kernels:
        return join()
    hint = "Select a kernel for its operators, shapes and runner-ups: by a click, or with Tab and Enter."
    search = tag(
        "p",
        tag("label", "Find an operator or kernel ", for_="find"),
        tag("input", id="find", type="search", autocomplete="off", spellcheck="false"),
        " ",
        tag("output", id="found", for_="find"),
        class_="finder",
        hidden=True,
    )
    return tag(
        "section",
        tag("h2", "The partitioned model"),
        tag("p", hint, class_="screen"),
        search,
        tag(
            "div",
            tag("div", picture(contents), class_="scroll canvas", tabindex="0", role="region", aria_label="Picture"),
            tag("div", [_details(contents, kernel) for kernel in contents.kernels], class_="details", id="details"),
            class_="workbench",
        ),
        tag("div", tag("h3", "All kernels"), _overview(contents), id="kernels"),
        id="model",
    )


def _overview(contents: PageContents) -> Markup:
    are_placed = any(kernel.place is not None for kernel in contents.kernels)
    rows = [
        (
            tag("a", f"{kernel.number}  {kernel.name}", href=f"#kernel-{kernel.number}"),
            _named(contents, kernel.target),
            amount(kernel.time_us),
            percent(kernel.share),
            str(len(kernel.operators)),
            told_operators(kernel),
            *([kernel.place or ""] if are_placed else []),
        )
        for kernel in contents.kernels
    ]
    columns = ("kernel", "toolchain", "time", "share", "operators", "types", *(["runs in"] if are_placed else []))
    return table(
        "Kernels in the order of data; times are measured inside the run, and add up to it",
        columns,
        rows,
        numbers=(2, 3, 4),
        class_="stack",
    )


def _named(contents: PageContents, target: str) -> Markup:
    return join(tag("span", class_=f"swatch {colour_of(contents, target)}", aria_hidden="true"), short_name(target))


def _details(contents: PageContents, kernel: KernelView) -> Markup:
    facts = {
        "toolchain": _named(contents, kernel.target),
        "time": amount(kernel.time_us) + (f", {percent(kernel.share)} of the run" if kernel.share else ""),
        "fusion rule": kernel.rule or "not recorded",
        **({} if kernel.place is None else {"runs in": kernel.place}),
    }
    rows = [
        (operator.name or "(unnamed)", operator.op_type, ", ".join(value.type or "?" for value in operator.outputs))
        for operator in kernel.operators
    ]
    graph = operator_graph(contents, kernel)
    operators = tag(
        "details",
        tag("summary", f"{counted(len(rows), 'operator')}: {told_operators(kernel)}"),
        tag("div", graph, class_="scroll inner", tabindex="0", role="region", aria_label="Operators") if graph else "",
        table("Operators of this kernel", ("name", "type", "makes"), rows, class_="stack"),
        open=len(rows) <= 12 or (len(contents.kernels) == 1 and bool(graph)),
    )
    return tag(
        "article",
        tag("h3", f"{kernel.number}  {kernel.name}"),
        tag("dl", [join(tag("dt", name), tag("dd", text)) for name, text in facts.items()]),
        _values("Reads", kernel.reads),
        _values("Makes", kernel.makes),
        _runner_ups(contents, kernel),
        _bodies(kernel),
        operators,
        tag("p", tag("a", "Back to the picture", href="#model"), class_="jump-back"),
        id=f"kernel-{kernel.number}",
        class_="kernel-details",
        tabindex="-1",
    )


def _values(title: str, values: Sequence[Value]) -> Markup:
    items = [tag("li", tag("code", value.name), " ", value.type) for value in values]
    return join(tag("h4", title), tag("ul", items, class_="values")) if items else join()


def _bodies(kernel: KernelView) -> Markup:
    """Return the kernels of the bodies of an If, a Loop or a Scan."""
    rows = [(inner.name, short_name(inner.target), inner.operators) for inner in kernel.bodies]
    return table("Kernels in its bodies", ("kernel", "toolchain", "operators"), rows) if rows else join()


def _runner_ups(contents: PageContents, kernel: KernelView) -> Markup:
    """Return the other candidates for exactly these operators, the fastest first."""
    if contents.record is None:
        return tag("p", "This artefact has no record of other candidates.", class_="note")
    others = sorted(contents.tried.get(kernel.name, ()), key=_by_time)
    rows = [_rival(contents, row, kernel.time_us) for row in others[:_MOST_RIVALS]]
    if not rows:
        return tag("p", "No other toolchain was measured on exactly these operators.", class_="note")
    caption = "Runner-ups: the same operators as one kernel of another toolchain"
    return table(caption, ("toolchain", "time", "than this", ""), rows, numbers=(1, 2), class_="stack")


def _by_time(row: TriedKernel) -> tuple[bool, float]:
    return not row.is_measured, row.time_us if row.time_us is not None else float("inf")


def _rival(contents: PageContents, row: TriedKernel, time_us: float | None) -> tuple[str, str, str, str]:
    ratio = f"{row.time_us / time_us:.2f}x" if row.is_measured and row.time_us and time_us else ""
    time = amount(row.time_us) if row.time_us is not None else ""
    if row.status is Status.PREDICTED and time:
        time = f"about {time}"
    told = "" if row.is_measured else f"{row.status.value}{': ' if row.reason else ''}{row.reason}"
    return _named(contents, row.target), time, ratio, told
