"""Results as text: tables for people."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from collage.report import (
    Numerics,
    Report,
    Row,
    columns_of,
    gain_lines,
    milliseconds,
    ratio_text,
    short_name,
    table_rows,
)
from collage.status import Status
from collage.system.texts import counted, printable

__all__ = [
    "print_bench",
    "print_env",
    "print_inspection",
    "print_outputs",
    "print_report",
    "print_table",
    "print_targets",
]

_SHOWN_WAISTS = 8
"""Waists that are named; ``--json`` has all."""
_MOST_ROWS = 6
"""Rows of the comparison that are shown: what is returned, what the user has, and four more fit a screen with the kernels."""
_QUOTED = re.compile(r"\(?'[^']*'\)?|\d+")
"""Names and numbers in a reason."""
_SHOWN_INPUTS = 4
"""Inputs whose other lengths are shown; ``--json`` has all."""


def print_report(report: Report, artefact: str | None = None) -> None:
    """Print the gains, the comparison, the kernels, and the checks of correctness."""
    console = _console()
    console.print(_escape("\n".join(gain_lines(report))), highlight=False)
    kept, left = _most_telling(report)
    has_precision = any(report.rows[place].precision for place in kept)
    columns, cells = columns_of(report), list(table_rows(report))
    shown = [place for place, name in enumerate(columns) if name != "precision" or has_precision]
    rows = [[cells[row][place] for place in shown] for row in kept]
    right = [i for i, place in enumerate(shown) if place in (1, 3, 4)]
    console.print(_table("end to end (* is returned)", [columns[place] for place in shown], rows, right=right))
    if left:
        console.print(_escape(f"not shown: {', '.join(left)}; `collage explain` shows all"), highlight=False)
    in_branches = any(kernel.branch is not None for kernel in report.kernels)
    kernels = (
        row
        for kernel in report.kernels
        for row in (
            (
                kernel.name,
                short_name(kernel.target),
                kernel.operators,
                milliseconds(kernel.time_us),
                "" if kernel.share is None else f"{kernel.share:.0%}",
                *([str(kernel.branch or "")] if in_branches else []),
            ),
            *(
                (f"  {inner.name}", short_name(inner.target), inner.operators, "", "", *([""] if in_branches else []))
                for inner in kernel.bodies
            ),
        )
    )
    heads = ("kernel", "target", "operators", "ms of the run", "share", *(["branch"] if in_branches else []))
    console.print(_table("kernels", heads, kernels, right=(3, 4, 5)))
    if report.specialised:
        console.print(_specialised(report))
    again: list[str] = []
    if points := report.front.get("points"):
        console.print(_front(points))
        if command := _without(report.command, "--front", "--accuracy-budget"):
            again = [f"to get a row, add its option: {command}"]
    told = [*again, *_summary(report), *([] if artefact is None else [f"written to {artefact}"])]
    console.print(_escape("\n".join(told)), highlight=False)


def _specialised(report: Report) -> Table:
    rows = (
        (
            row.title,
            ", ".join(map(short_name, row.targets)),
            milliseconds(row.general_us),
            milliseconds(row.time_us),
            "" if row.ratio is None else ratio_text(row.ratio),
            "kept" if row.is_kept else f"not kept: {row.reason}",
        )
        for row in report.specialised
    )
    title = "plans for lengths, beside the plan for all lengths in a race of their own"
    return _table(title, ("lengths", "targets", "ms, all lengths", "ms", "ratio", ""), rows, right=(2, 3))


def _most_telling(report: Report) -> tuple[list[int], list[str]]:
    """Return the places of the rows that a verdict needs, in their order, and the counts of the others in words.

    The returned row, the baseline and the single toolchains that took part come first, the fastest first; then mixes.
    """

    def took_part(row: Row) -> bool:
        return row.time_us is not None or row.verdict == Status.TOO_SLOW

    def rank(place: int) -> tuple[bool, bool, bool, float]:
        row = report.rows[place]
        is_head = row.name == report.winner or row.kind == "baseline"
        return not is_head, not took_part(row), row.kind == "mix", row.time_us or row.estimate_us or 0.0

    ranked = sorted(range(len(report.rows)), key=rank)
    kept, left = sorted(ranked[:_MOST_ROWS]), [report.rows[place] for place in ranked[_MOST_ROWS:]]
    mixes = sum(row.kind == "mix" for row in left)
    refused = sum(row.kind != "mix" and not took_part(row) for row in left)
    slower = len(left) - mixes - refused
    words = ((mixes, "mix", "mixes"), (refused, "refusal", "refusals"), (slower, "slower target", "slower targets"))
    return kept, [f"{count} {one if count == 1 else many}" for count, one, many in words if count]


def _front(points: Sequence[Mapping[str, Any]]) -> Any:
    rows = [
        (
            f"{p['budget']:.0e}" if p["budget"] else "exact",
            f"{p['error']:.1e}",
            f"{p['time_ms']:.3f}",
            p["plan"],
            f"--accuracy-budget {p['budget']:g}" if p["budget"] else "(no option)",
        )
        for p in points
    ]
    return _table("time against error", ("budget", "largest error", "ms", "kernels", "to get it"), rows, right=(1, 2))


def _without(command: str, flag: str, option: str) -> str:
    """Return a command without a flag and without an option and its value."""
    words = shlex.split(command)
    kept = [word for i, word in enumerate(words) if word not in (flag, option) and words[i - 1 : i] != [option]]
    return shlex.join(kept)


def _summary(report: Report) -> list[str]:
    search, numerics, lines = report.search, report.numerics, [*report.precision.get("summary", ())]
    if numerics.max_rel_error is not None and numerics.tolerance is not None:
        lines.append(
            f"largest error {numerics.max_rel_error:.1e} of the output's size{_noise(numerics)} "
            f"(tolerance {numerics.tolerance:.0e})"
        )
        lines += _unsettled(numerics)
        lines += _lengths(report)
    lines.append(
        f"{counted(search.candidates, 'candidate')}, {search.keys} distinct; {search.built} built, {search.measured} "
        f"measured, {search.cache_hits} known; {search.wall_s:.1f} s"
    )
    if search.tuning:
        lines.append(search.tuning)
    if not (search.measured or search.raced):
        lines.append("nothing was measured: every timing was known")
    return lines + [f"warning: {warning}" for warning in report.warnings]


def _noise(numerics: Numerics) -> str:
    return "" if numerics.noise is None else f"; float arithmetic itself errs {numerics.noise:.1e} here"


def _unsettled(numerics: Numerics) -> list[str]:
    """Return which outputs are right only within the noise of float arithmetic; nothing if none are."""
    told = [f"{share * 100:.2g} % of {name}" for name, share in numerics.unsettled.items()]
    return [f"right within the noise of float arithmetic: {', '.join(told)}"] if told else []


def _lengths(report: Report) -> list[str]:
    """Return the lengths that kernels were timed at, if several, and others that were checked; nothing if all are fixed."""
    lines = []
    if len(report.occasions) > 1:
        told = [f"{_shapes(occasion.inputs)} ({occasion.weight:.0%})" for occasion in report.occasions]
        lines.append(f"all times are the mean of {', '.join(told)}")
    lengths = report.numerics.other_lengths
    if lengths is None:
        return lines
    if not report.specialised and not report.dims:
        lines.append(
            "with open lengths some toolchains stand aside: --dim NAME=LENGTH adds a plan for lengths that you name"
        )
    if not lengths:
        return [*lines, "checked at these lengths only: the model rejects the other lengths that were tried"]
    return [*lines, f"checked at other lengths too: {'; '.join(map(_shapes, lengths))}"]


def _shapes(inputs: Mapping[str, Sequence[int]]) -> str:
    """Inputs with their shapes, the first few of them."""
    shown = [f"{name}{list(shape)}" for name, shape in inputs.items()]
    more = f" and {len(shown) - _SHOWN_INPUTS} more" if len(shown) > _SHOWN_INPUTS else ""
    return ", ".join(shown[:_SHOWN_INPUTS]) + more


def print_outputs(outputs: Sequence[Mapping[str, Any]]) -> None:
    """Print the outputs of ``run``."""
    rows = (
        (row["name"], row["dtype"], str(row["shape"]), _number(row["min"]), _number(row["max"]), row["file"] or "")
        for row in outputs
    )
    _console().print(_table("outputs", ("output", "type", "shape", "min", "max", "file"), rows, right=(3, 4)))


def print_bench(table: Mapping[str, Any]) -> None:
    """Print the result of ``bench``."""
    # A row with a reason is wrong, or coarser than the model: no measure for the others.
    right = [row["median_us"] for row in table["rows"] if row["median_us"] and not row["reason"]]
    best = min(right, default=None)
    rows = (
        (
            row["name"],
            _ms(row["median_us"]),
            _ms(row["p10_us"]),
            _ms(row["p90_us"]),
            row.get("precision") or "",
            f"{row['median_us'] / best:.3f}" if row["median_us"] and best else "",
            row["reason"] or "",
        )
        for row in table["rows"]
    )
    console = _console()
    console.print(_table("", ("", "ms", "p10", "p90", "precision", "ratio", ""), rows, right=(1, 2, 3, 5)))
    if table["neighbour"] != "none":
        console.print(f"beside a busy process of {table['neighbour']} priority")
    if table["speedup_vs_best_single"] is not None:
        low, high = table["speedup_interval"]
        console.print(
            f"{table['speedup_vs_best_single']:.3f}x the best single toolchain (95 % interval {low:.3f} to {high:.3f})",
            highlight=False,
        )
    if (call := table.get("call")) is not None:
        console.print(
            _escape(
                f"the artefact runs {call['target']} whole: a call takes {call['beyond_us']:.1f} µs more than that alone"
            ),
            highlight=False,
        )
    if (decoding := table.get("decoding")) is not None:
        share = decoding["read_share"]
        rate = f" of the {decoding['read_bytes_per_s'] / 1e9:.1f} GB/s that this machine reads"
        console.print(
            f"collage: first token of {decoding['prompt']} after {decoding['first_token_ms']:.1f} ms, then "
            f"{decoding['tokens_per_s']:.0f} tokens/s"
            + ("" if share is None else f", reading weights at {share:.0%}{rate}"),
            highlight=False,
        )
    for row in table["faster"]:
        console.print(
            _escape(f"{row['name']} is faster beyond doubt. The next compilation of the model races it again.")
        )
        console.print(_escape(f"to use it now: {row['command']}"))


def print_targets(targets: Sequence[Mapping[str, Any]], *, verbose: bool = False) -> None:
    """Print the toolchains: what to type after ``-t``, a line for each, and one line for all other devices.

    Args:
        targets: The rows of ``describe_targets``.
        verbose: Print each target with its options and its hardware, and where broken toolchains fail.
    """
    console = _console()
    if verbose:
        console.print(_all_targets(targets))
        for row in targets:
            if row["traceback"] is not None:
                console.print(_escape(f"{row['name']}:\n{row['traceback']}"), highlight=False)
        return
    rows, others = [], []
    for row in targets:
        ours = [target for target in row["by_target"] if target["target"].split()[0] == "llvm"]
        others += [(row["alias"], target) for target in row["by_target"] if target not in ours]
        if ours or not row["by_target"]:
            state = _state(ours[0] if ours else row, first=True)
            rows.append((row["alias"], row["version"] or "", "yes" if row.get("default") else "", state))
    rows.sort(key=lambda row: (not row[2], row[0]))
    if others:
        usable = [alias for alias, target in others if target["available"]]
        state = f"usable: {', '.join(usable)}" if usable else _state(others[-1][1], first=True)
        rows.append(("cuda", "", "", f"{state} ({counted(len(others), 'toolchain')}: collage targets -v)"))
    console.print(_table("", ("-t", "version", "default", ""), rows))


def _all_targets(targets: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for row in targets:
        options = ", ".join(f"-{name}" for name in row["options"])
        for target in row["by_target"] or [{**row, "target": row["alias"], "ever_ran_on": None}]:
            ran_on = target["ever_ran_on"] or "no hardware yet"
            rows.append((target["target"], row["version"] or "", _state(target), ran_on, options))
    return _table("", ("target", "version", "", "tests passed on", "options"), rows)


def _state(target: Mapping[str, Any], *, first: bool = False) -> str:
    """Return if a target is usable, and the reason if not; only the first of several, if asked for."""
    if target["available"]:
        return "usable"
    if target.get("broken"):
        return f"broken: {str(target['reason']).removeprefix('broken: ')}"
    reason, remedy = ((target[key] or "").split("; ")[0 if first else slice(None)] for key in ("reason", "remedy"))
    reason, remedy = (text if isinstance(text, str) else "; ".join(text) for text in (reason, remedy))
    return f"not usable: {reason}" + (f"; {remedy}" if remedy else "")


def print_env(env: Mapping[str, Any]) -> None:
    """This machine and installation."""
    console = _console()
    for section, facts in env.items():
        console.print(f"[bold]{_escape(section)}[/bold]")
        for name, value in facts.items():
            console.print(_escape(f"  {name}: {value}"), highlight=False)


def print_inspection(found: Mapping[str, Any]) -> None:
    """Print the contents of a model."""
    console = _console()
    model = found["model"]
    console.print(
        _escape(
            f"{model['path']}: {counted(model['nodes'], 'operator')} after preparation, "
            f"{model['weights_bytes'] / 1e6:.1f} MB of weights"
        ),
        highlight=False,
    )
    for kind in ("inputs", "outputs"):
        console.print(_escape(f"{kind}: " + "; ".join(found[kind])), highlight=False)
    waists = found["waists"]
    shown = ", ".join(waist["after"] for waist in waists[:_SHOWN_WAISTS]) + (
        " …" if len(waists) > _SHOWN_WAISTS else ""
    )
    console.print(_escape(f"waists, which one value crosses: {len(waists)}" + (f", after {shown}" if waists else "")))
    columns = ("operator", "count", *(row["target"] for row in found["coverage"]))
    rows = [
        (op_type, str(count), *(f"{row['operators'].get(op_type, 0)}" for row in found["coverage"]))
        for op_type, count in found["operators"].items()
    ]
    title = "operators, and the number of them that each target takes" if found["coverage"] else "operators"
    console.print(_table(title, columns, rows, right=range(1, len(columns))))
    for row in found["coverage"]:
        for line in _refusals(row):
            console.print(_escape(line), highlight=False)
    if found["coverage"]:
        console.print("as toolchains state it: nothing was built, and a kernel may still be refused")


def _refusals(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each reason of a target, whatever values it names, with the operators and the first of them."""
    if row["reason"] and not row["taken"]:
        yield f"{row['target']}: {row['reason']}"
    alike: dict[str, list[Mapping[str, str]]] = {}
    for refusal in row["refused"]:
        alike.setdefault(_QUOTED.sub("", refusal["reason"]), []).append(refusal)
    for group in alike.values():
        first, kinds = group[0], ", ".join(dict.fromkeys(refusal["operator"] for refusal in group))
        told = f"{first['node']} ({kinds})" if len(group) == 1 else f"{counted(len(group), 'operator')} ({kinds})"
        yield f"{row['target']} refuses {told}: {first['reason']}"


def _escape(text: str) -> str:
    return escape_markup(printable(text))


def _console() -> Console:
    # A pipe has no width of its own, and tables are no prose: give them room.
    return Console(width=None if sys.stdout.isatty() else 140)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
    """A table; columns whose places are in ``right`` are aligned there."""
    _console().print(_table(title, columns, rows, right))


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> Table:
    table = Table(title=_escape(title) or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    right = set(right)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_escape(str(cell)) for cell in row))
    return table


def _ms(us: float | None) -> str:
    return "" if not us else f"{us / 1e3:.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
