"""`docs/verdict.md` says what the program says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.report.reports import sample

from collage.measure import race
from collage.measure.track import ComparisonPlan
from collage.report import Report, Row, gain_lines, verdict_of
from collage.status import Status

PAGE = (Path(__file__).parents[3] / "docs" / "verdict.md").read_text()


def test_the_page_explains_every_word_of_the_table() -> None:
    explained = set(re.findall(r"`([^`]+)`", PAGE.partition("## The table")[2].partition("Three rules")[0]))
    of_candidates = {Status.OK, Status.PREDICTED, Status.NOT_MEASURED}
    for verdict in set(Status) - of_candidates:
        row = Row("llvm", "single", verdict, "llvm")
        assert verdict_of(Report(rows=(row,)), row) in explained, verdict


def test_the_sentences_of_the_example_have_the_form_of_the_program() -> None:
    said = gain_lines(sample())
    shape = [re.sub(r"[\d.]+ \([\d.]+ to [\d.]+\)", "R", line) for line in said]
    example = [re.sub(r"[\d.]+ \([\d.]+ to [\d.]+\)", "R", line) for line in PAGE.splitlines()]
    assert shape[0] in example
    assert shape[1].replace(" at the model's own precision", "") in example


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    class Executable:
        report = sample()

    for line in code.splitlines():
        expression = line.partition("#")[0].strip()
        if expression.startswith("report = "):
            continue
        assert expression in (
            'report.gain("baseline").ratio.low',
            "[row.verdict for row in report.rows]",
            "report.as_json()",
        )
    report = Executable.report
    gain = report.gain("baseline")
    assert gain is not None and gain.ratio.low == 1.9
    assert report.gain("best_single").ratio.value == 1.5


def test_the_page_on_measuring_has_the_numbers_of_the_comparison() -> None:
    page = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text()
    section = page.partition("## The final comparison")[2][:2600]
    plan = ComparisonPlan()
    for words in (
        f"run {plan.rounds} turns of {plan.block_s} s each",
        f"{race._CLEAR - 1:.0%} slower in each of the first {race._FIRST_LOOK} runs".replace("%", " %"),
        f"within doubt after {plan.rounds} runs up to {plan.deciding_rounds}",
        f", and up to {plan.most_rounds} while a lead of 1 % is open",
        f"run {plan.reporting_rounds} rounds in new processes",
        f"a mix that leads up to {plan.most_rounds}.",
        f"slower by less than {race._CLOSE - 1:.0%}, ".replace("%", " %"),
        f"what the choice beats beyond doubt now, run {plan.rounds}.",
        f"If a round takes {race._LONG_ROUND_S} s, all but the choice, the baseline and the best target run {plan.rounds}.",
        f"If a run takes {race.SHORT_S * 1e3:.0f} ms or more, only mixes take part",
        f"No plan below {race.SHORT_S * 1e3:.0f} ms is left out",
        f"If a run takes less than {race.SHORT_S * 1e3:.0f} ms, all plans run the {plan.rounds} turns",
        f"{plan.abandon_ratio} times",
    ):
        assert words in " ".join(section.split()), words
