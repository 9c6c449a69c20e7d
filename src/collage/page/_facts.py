"""The sections of plain facts: numerics, the search, the machine, and the parts of the model on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collage.page._contents import PageContents
from collage.page._markup import Markup, join, tag
from collage.page._table import table
from collage.report import SearchFacts, short_name, title_of
from collage.system.texts import counted

__all__ = ["machine_section", "numerics_section", "privacy_section", "search_section"]


def numerics_section(contents: PageContents) -> Markup:
    """Return the section on checks of the outputs: the method and the inputs."""
    numerics = contents.report.numerics
    reference = numerics.reference
    judged = {True: "right", False: "wrong", None: "not judged"}[numerics.ok]
    evaluator = f" run by {reference.evaluator}" if reference.evaluator else ""
    facts = [
        ("outputs", judged),
        ("largest difference", _number(numerics.max_rel_error, " of the output's size")),
        ("largest absolute difference", _number(numerics.max_abs_error)),
        ("float arithmetic itself errs", _number(numerics.noise, " of the output's size")),
        ("allowed in any case", _number(numerics.tolerance, " of the output's size")),
        ("compared with", f"the {reference.model} model{evaluator}" if reference.model else ""),
        ("reason for that", reference.reason or ""),
        ("further inputs", ", ".join(reference.probes)),
        ("preparation left out", ", ".join(reference.left_out)),
        ("random outputs, not compared", ", ".join(reference.random)),
        ("right within that noise", _shares(numerics.unsettled.items())),
        ("NaN in the model itself", _shares(numerics.nan.items())),
        ("timed on", "; ".join(f"{_shapes(o.inputs.items())} ({o.weight:.0%})" for o in contents.report.occasions)),
        ("checked at other lengths", "; ".join(_shapes(each.items()) for each in numerics.other_lengths or ())),
    ]
    rows = [(title_of(row), row.max_rel_error) for row in contents.report.rows if row.max_rel_error is not None]
    errors = table(
        "Largest difference of each row of the comparison, relative to the output's size",
        ("row", "difference"),
        [(title, f"{error:.1e}") for title, error in rows],
        numbers=(1,),
    )
    return _section(
        "numerics", "Numerics", join(_list(facts), errors if rows else "", _precision(contents.report.precision))
    )


def _precision(section: Mapping[str, Any]) -> Markup:
    """Return the report's facts about reduced precision. The form of this section is free, so only texts are taken."""
    told = section.get("summary")
    told = told if isinstance(told, list | tuple) else [told]
    lines = [each for each in told if isinstance(each, str)]
    rows = []
    kernels = section.get("kernels")
    for each in kernels if isinstance(kernels, list | tuple) else ():
        if not isinstance(each, Mapping):
            continue
        error = each.get("own_error")
        known = f"{error:.1e}" if isinstance(error, float) and math.isfinite(error) else ""
        rows.append((str(each.get("name", "")), str(each.get("precision", "")), known))
    if not lines and not rows:
        return join()
    return join(
        tag("h3", "Reduced precision"),
        tag("ul", [tag("li", line) for line in lines]) if lines else "",
        table("Precision of each kernel", ("kernel", "precision", "its own error"), rows, numbers=(2,)) if rows else "",
    )


def search_section(contents: PageContents) -> Markup:
    """Return the section on the search: its measurements, and the candidates that it did not measure."""
    search, record = contents.report.search, contents.record
    facts = [
        ("strategy", f"{search.algorithm}, {search.mode}" if search.mode else search.algorithm),
        ("ended by", search.stopped_by.replace("_", " ")),
        ("candidates", f"{search.candidates:,}, of which {search.keys:,} distinct" if search.candidates else ""),
        ("built", f"{search.built:,}"),
        ("measured", f"{search.measured:,}; {search.cache_hits:,} were known"),
        ("proof", _proof(search)),
        ("time in all", f"{search.wall_s:.0f} s" if search.wall_s else ""),
    ]
    if record is not None and record.dropped:
        left = ", ".join(f"{number:,} {status}" for status, number in record.dropped.items())
        facts.append(("not in the record for lack of room", left))
    notes = () if record is None else record.notes
    return _section(
        "search", "The search", join(_list(facts), tag("ul", [tag("li", n) for n in notes]) if notes else "")
    )


def _proof(search: SearchFacts) -> str:
    """Return what is known of plans that were not tried."""
    if search.optimal:
        return "no plan of these candidates can be cheaper"
    if search.gap is None:
        return "none; see docs/fusion.md"
    return f"a plan of these candidates can be cheaper by {search.gap:.0%} at most"


def machine_section(contents: PageContents) -> Markup:
    """Return the machine and the versions."""
    machine = contents.report.machine
    builds = {**contents.builds, **{short_name(target): build for target, build in machine.toolchains.items()}}
    facts = [
        ("processor", machine.cpu),
        ("processors used", str(machine.cores or "")),
        ("memory", f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes else ""),
        ("system", machine.system),
        ("threads of a kernel", str(contents.threads) if contents.threads else "each toolchain's own default"),
        ("Collage", machine.collage),
        *builds.items(),
    ]
    note = "" if machine.cpu else tag("p", "This artefact does not name its machine.", class_="note")
    return _section("machine", "Machine and versions", join(_list(facts), note))


def privacy_section(contents: PageContents) -> Markup:
    """Return the section that lists the parts of the user's model on the page."""
    operators = sum(len(kernel.operators) for kernel in contents.kernels)
    holds = [
        f"names, types and shapes of {counted(len(contents.inputs) + len(contents.outputs), 'input and output')}",
        f"names, types and output shapes of {counted(operators, 'operator')}",
        "names and shapes of the tensors between kernels",
        "the name of the model's file and the digest of its contents",
        "messages of toolchains, which may quote names",
    ]
    if contents.is_redacted:
        text = "Names of this page are replaced. Types, shapes and times are real. It holds no weights and no inputs."
        return _section("privacy", "Data of the model on this page", tag("p", text))
    return _section(
        "privacy",
        "Data of the model on this page",
        join(
            tag("p", "It holds no weights and no inputs. It loads nothing and sends nothing. It holds:"),
            tag("ul", [tag("li", each) for each in holds]),
            tag("p", tag("code", "collage report --redact"), " replaces names, file and digest."),
        ),
    )


def _section(anchor: str, title: str, body: Markup) -> Markup:
    return tag("section", tag("h2", title), body, id=anchor)


def _list(facts: Sequence[tuple[str, str]]) -> Markup:
    return tag("dl", [join(tag("dt", name), tag("dd", text)) for name, text in facts if text], class_="facts")


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.1e}{unit}"


def _shares(items: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{share * 100:.2g} % of {name}" for name, share in items)


def _shapes(items: Iterable[tuple[str, Sequence[int]]]) -> str:
    return ", ".join(f"{name}[{', '.join(map(str, shape))}]" for name, shape in items)
