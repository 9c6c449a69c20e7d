"""The first screen of a page: the gain, its cause, and its confidence interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from collage.page._charts import RatioScale
from collage.page._contents import PageContents
from collage.page._markup import Markup, join, tag
from collage.page._picture import colour_of, time_strip
from collage.page._words import amount, percent
from collage.report import Gain, Ratio, Report, by_runs, objective_lines, short_name, title_of
from collage.system.texts import counted

__all__ = ["compared", "verdict_section"]

_OVER = {
    "baseline": "the original model",
    "best_single": "the best single toolchain",
    "best_of_menu": "the best single toolchain at any precision",
}
_MOST_TYPES = 4


def verdict_section(contents: PageContents) -> Markup:
    """Return the section on the gain, its cause and its confidence interval."""
    return tag(
        "section",
        _gained(contents),
        tag("div", _by_what(contents), _how_sure(contents), class_="two"),
        id="verdict",
        aria_label="Verdict",
    )


def compared(ratio: Ratio, other: str) -> str:
    """Return a ratio as a comparison with something, which claims no more than its interval."""
    if ratio.low <= 1.0 <= ratio.high:
        return f"As fast as {other}, within doubt"
    return (
        f"{ratio.value:.2f} times as fast as {other}"
        if ratio.low > 1.0
        else f"{1 / ratio.value:.2f} times as slow as {other}"
    )


def _gained(contents: PageContents) -> Markup:
    report = contents.report
    gains = report.gains
    if not gains:
        text = "No speed-up was measured: plans were not compared with each other."
        return join(tag("p", tag("strong", text), class_="headline"), _answers(contents))
    scale = RatioScale.of([gain.ratio for gain in gains])
    first = gains[0]
    columns = ("compared with", "times as fast", "95 % interval", "")
    return join(
        tag("p", tag("strong", _headline(first, report)), class_="headline"),
        _answers(contents, first),
        tag(
            "table",
            tag("caption", "Speed-up of the compiled model"),
            tag("thead", tag("tr", [tag("th", text, scope="col") for text in columns])),
            tag("tbody", [_gain_row(gain, report, scale) for gain in gains]),
            class_="gains",
        ),
    )


def _answers(contents: PageContents, gain: Gain | None = None) -> Markup:
    """Return three sentences: the gain, its cause, and its confidence interval."""
    report, numerics = contents.report, contents.report.numerics
    returned = report.returned
    time = None if returned is None else returned.measured_us
    gained = [] if gain is None else [_interval(gain, report.winner)]
    gained += [f"{line[0].upper()}{line[1:]}." for line in objective_lines(report)]
    if time is not None and not by_runs(report):
        gained.append(f"One run takes {amount(time.median)}.")
    shares: dict[str, float | None] = {}
    for kernel in contents.kernels:
        before = shares.get(kernel.target, 0.0)
        shares[kernel.target] = None if before is None or kernel.share is None else before + kernel.share
    told = [
        short_name(target) + (f" ({percent(share)} of the time)" if share else "") for target, share in shares.items()
    ]
    by_what = f"{counted(len(contents.kernels), 'kernel')} on {', '.join(told)}." if told else "Nothing is left to run."
    error = numerics.max_rel_error
    checked = {
        True: "Outputs agree with the reference" + ("." if error is None else f" to {error:.0e} of their size."),
        False: "Outputs differ from the reference by more than is allowed.",
        None: "Outputs were not checked.",
    }[numerics.ok]
    warned = f" {counted(len(report.warnings), 'warning')}." if report.warnings else ""
    return tag(
        "dl",
        tag("dt", "Gained"),
        tag("dd", " ".join(gained) or "Not measured."),
        tag("dt", "By"),
        tag("dd", by_what),
        tag("dt", "Sure?"),
        tag("dd", checked, warned),
        class_="answers",
    )


def _headline(gain: Gain, report: Report) -> str:
    lines = objective_lines(report)
    if lines and report.objective.get("name") != "latency":
        return f"{lines[0][0].upper()}{lines[0][1:]}"
    if gain.row == report.winner:
        return f"{short_name(report.winner)} alone is returned: no plan was faster"
    return compared(gain.ratio, _OVER[gain.over])


def _interval(gain: Gain, winner: str) -> str:
    ratio = gain.ratio
    if gain.row == winner:
        return f"Nothing over {_OVER[gain.over]}, which is returned itself."
    lost = "Nothing, it is slower: " if ratio.high < 1.0 else ""
    told = f"{lost}{ratio.value:.2f} times, with 95 % confidence {ratio.low:.2f} to {ratio.high:.2f}."
    return f"{told} A difference is not proven." if ratio.low <= 1.0 <= ratio.high else told


def _gain_row(gain: Gain, report: Report, scale: RatioScale) -> Markup:
    ratio, row = gain.ratio, report.row(gain.row)
    is_returned = gain.row == report.winner
    told = f"{ratio.value:.2f} times, from {ratio.low:.2f} to {ratio.high:.2f}"
    return tag(
        "tr",
        tag(
            "th",
            _OVER[gain.over],
            tag("br"),
            tag("small", short_name(gain.row) if row is None else title_of(row)),
            scope="row",
        ),
        tag("td", f"{ratio.value:.2f}", class_="number big"),
        tag("td", "returned" if is_returned else f"{ratio.low:.2f} to {ratio.high:.2f}", class_="number"),
        tag("td", "" if is_returned else scale.bar(ratio, told), class_="bars"),
    )


def _by_what(contents: PageContents) -> Markup:
    kernels = contents.kernels
    if not kernels:
        return tag("div", tag("h2", "By what"), tag("p", "The model has no operators left after preparation."))
    by_target: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        by_target.setdefault(kernel.target, []).append(place)
    operators = sum(len(kernel.operators) for kernel in kernels)
    intro = f"{counted(operators, 'operator')} in {counted(len(kernels), 'kernel')} on {counted(len(by_target), 'toolchain')}"
    rest = "; each part is one kernel, as wide as its share of the time:" if kernels[0].share is not None else "."
    return tag(
        "div",
        tag("h2", "By what"),
        tag("p", intro, rest),
        time_strip(contents),
        tag("ul", [_target_line(contents, target, places) for target, places in by_target.items()], class_="legend"),
        tag("p", tag("a", "See the partitioned model", href="#model"), class_="jump"),
    )


def _target_line(contents: PageContents, target: str, places: Sequence[int]) -> Markup:
    kernels = [contents.kernels[place] for place in places]
    counts = Counter(operator.op_type for kernel in kernels for operator in kernel.operators)
    types = ", ".join(f"{count} {op_type}" for op_type, count in counts.most_common(_MOST_TYPES))
    more = "" if len(counts) <= _MOST_TYPES else ", …"
    shares = [kernel.share for kernel in kernels]
    share = f"{percent(sum(s for s in shares if s is not None))} of the time, " if None not in shares else ""
    return tag(
        "li",
        tag("span", class_=f"swatch {colour_of(contents, target)}", aria_hidden="true"),
        tag("b", short_name(target)),
        f": {share}{counted(len(kernels), 'kernel')}, {counted(counts.total(), 'operator')} ({types}{more})",
    )


def _how_sure(contents: PageContents) -> Markup:
    report = contents.report
    numerics, machine, returned = report.numerics, report.machine, report.returned
    lines: list[tuple[str, str]] = []
    rounds = 0 if returned is None else len(returned.rounds_us)
    if report.gains and rounds:
        lines.append(("ok", f"Time: all rows ran in turns, {rounds} rounds, and every ratio is of the same rounds."))
    elif report.gains:
        lines.append(("ok", "Time: the rows ran in turns. Single rounds are not kept in this artefact."))
    else:
        lines.append(("warn", "Time: plans were not compared end to end."))
    if numerics.max_rel_error is not None:
        judged = {True: "agree with", False: "differ from", None: "were compared with"}[numerics.ok]
        model = f"the {numerics.reference.model} model" if numerics.reference.model else "the reference"
        error = f"largest error {numerics.max_rel_error:.1e} of the output's size"
        error += "" if numerics.noise is None else f"; float arithmetic itself errs {numerics.noise:.1e} here"
        allowed = "" if numerics.tolerance is None else f", allowed {numerics.tolerance:.0e}"
        lines.append(("ok" if numerics.ok else "warn", f"Outputs {judged} {model}: {error}{allowed}."))
    else:
        lines.append(("warn", "Outputs: no difference from a reference is recorded."))
    if machine.cpu:
        cores = f", {counted(machine.cores, 'processor')}" if machine.cores else ""
        lines.append(
            ("ok", f"Valid for this machine: {machine.cpu}{cores}. Other machines need a compilation of their own.")
        )
    lines += [("warn", warning[:1].upper() + warning[1:]) for warning in (*report.warnings, *contents.notes)]
    words = {"ok": ("✓", "Good: "), "warn": ("!", "Warning: ")}
    items = [
        tag(
            "li",
            tag("span", words[kind][0], class_="sign", aria_hidden="true"),
            _hidden(words[kind][1]),
            text,
            class_=kind,
        )
        for kind, text in lines
    ]
    return tag("div", tag("h2", "How sure"), tag("ul", items, class_="sure"))


def _hidden(text: str) -> Markup:
    """Return a text for screen readers only."""
    return tag("span", text, class_="unseen")
