"""The first screen of a page: the gain, its cause, and its confidence interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from collage.page._charts import RatioScale
from collage.page._contents import PageContents
from collage.page._markup import Markup, join, tag
from collage.page._picture import colour_of, time_strip
from collage.page._share import share_section, time_bars
from collage.page._words import amount, number_of, percent
from collage.report import Gain, Ratio, Report, by_runs, objective_lines, short_name, title_of
from collage.system.texts import counted

__all__ = ["compared", "headline_of", "verdict_section"]

_OVER = {
    "baseline": "the original model",
    "best_single": "the best single toolchain",
    "best_of_menu": "the best single toolchain at any precision",
}
_MOST_TYPES = 4
_FALLS = {
    "top1": "Top-1 accuracy falls by",
    "top5": "Top-5 accuracy falls by",
    "max-error": "Largest error",
    "cosine": "Cosine similarity falls by",
    "snr": "Noise over signal",
}


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
    headline = headline_of(report)
    if not gains:
        return join(tag("p", tag("strong", headline), class_="headline"), _answers(contents))
    scale = RatioScale.of([gain.ratio for gain in gains])
    first = gains[0]
    accuracy = _accuracy(report)
    columns = ("compared with", "times as fast", "95 % interval", scale.axis())
    return join(
        tag("p", tag("strong", headline), class_="headline"),
        tag("p", tag("strong", accuracy), class_="headline second") if accuracy else "",
        _answers(contents, first),
        tag(
            "div",
            tag(
                "table",
                tag("caption", "Speed-up of the compiled model"),
                tag("thead", tag("tr", [tag("th", text, scope="col") for text in columns])),
                tag("tbody", [_gain_row(gain, report, scale) for gain in gains]),
                class_="gains",
            ),
            tag("figure", time_bars(contents)),
            class_="two",
        ),
        share_section(contents, headline, _facts(report, accuracy)),
    )


def _answers(contents: PageContents, gain: Gain | None = None) -> Markup:
    """Return three sentences: the gain, its cause, and its confidence interval."""
    report, numerics = contents.report, contents.report.numerics
    returned = report.returned
    time = None if returned is None else returned.measured_us
    gained = [] if gain is None else [_interval(gain, report)]
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


def headline_of(report: Report) -> str:
    """Return the gain in one sentence."""
    if not report.gains:
        return "No speed-up was measured: plans were not compared with each other."
    gain = report.gains[0]
    lines = objective_lines(report)
    if lines and report.objective.get("name") != "latency":
        return f"{lines[0][0].upper()}{lines[0][1:]}"
    if gain.row == report.winner:
        return f"{short_name(report.winner)} alone is returned: no plan was faster"
    return compared(gain.ratio, _other(gain, report))


def _other(gain: Gain, report: Report) -> str:
    """Return what a gain is over; a baseline that the user chose has its name."""
    row = report.row(gain.row)
    is_chosen = gain.over == "baseline" and row is not None and row.kernels is not None
    return f"the whole model on {short_name(row.target or row.name)}" if row and is_chosen else _OVER[gain.over]


def _accuracy(report: Report) -> str:
    """Return the effect of reduced precision on the answers in one sentence; empty if the plan keeps the model's own.

    The form of this section of a report is free, so nothing is taken for granted.
    """
    metrics, limits = report.precision.get("metrics"), report.precision.get("limits")
    if not isinstance(metrics, Mapping) or not metrics:
        return ""
    bounds = {
        each["metric"]: number_of(each.get("most"))
        for each in (limits if isinstance(limits, list | tuple) else ())
        if isinstance(each, Mapping) and isinstance(each.get("metric"), str)
    }
    name = next((name for name in bounds if name in metrics), next(iter(metrics)))
    found = metrics[name]
    drop = number_of(found.get("drop")) if isinstance(found, Mapping) else None
    if drop is None:
        return ""
    figure = _as_share if name in ("top1", "top5") else _as_number
    ends = found.get("interval")
    low, high = map(number_of, ends) if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
    interval = "" if low is None or high is None or low == high else f" ({figure(low)} to {figure(high)})"
    most = bounds.get(name)
    allowed = "" if most is None else f"; at most {figure(most)} is allowed"
    return f"{_FALLS.get(name, f'{name} falls by')} {figure(drop)}{interval}{allowed}"


def _as_share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def _as_number(value: float) -> str:
    return f"{value:.2g}"


def _facts(report: Report, accuracy: str) -> list[str]:
    """Return the sentences below a picture or a table that leaves the page: the error, the machine, versions and the day."""
    error = report.numerics.max_rel_error
    right = (
        f"Outputs agree with the original to {error:.0e} of their size" if error is not None and not accuracy else ""
    )
    machine = report.machine
    cores = f", {counted(machine.cores, 'processor')}" if machine.cores else ""
    day = f", {report.date}" if report.date else ""
    return [line for line in (accuracy, right, f"{machine.cpu}{cores}", f"Collage {machine.collage}{day}") if line]


def _interval(gain: Gain, report: Report) -> str:
    ratio = gain.ratio
    if gain.row == report.winner:
        return f"Nothing over {_other(gain, report)}, which is returned itself."
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
            _other(gain, report),
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
        lines.append(
            ("ok", f"Time: the rows ran in turns, up to {rounds} rounds, and every ratio is of rounds that both had.")
        )
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
