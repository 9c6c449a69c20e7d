"""Events, log records and lines while a model is compiled."""

from __future__ import annotations

import logging
import re

import pytest

from collage.cli._console import progress
from collage.system.progress import Progress, ProgressEvent, shown

PHASES = ("read", "search", "compare")


def test_an_event_tells_phase_kernels_best_and_time_left() -> None:
    events: list[ProgressEvent] = []
    told = Progress(events.append, PHASES, budget_s=60.0)
    told("reading")
    told.enter("search")
    told.counts, told.best = lambda: (3, 14), "best single 4.700 ms"
    told("measuring")
    assert (events[0].phase, events[0].kernels, events[0].best) == (0, 0, "")
    last = events[1]
    assert (last.phase, last.phases, last.title, last.kernels, last.most_kernels) == (2, 3, "search", 3, 14)
    assert last.left_s is not None and 50 < last.left_s <= 60
    said = r"2/3 search \| kernels: 3 of at most 14 \| best single 4.700 ms \| (59|60) s left \| measuring"
    assert re.fullmatch(said, str(last))


def test_phases_do_not_go_back() -> None:
    events: list[ProgressEvent] = []
    told = Progress(events.append, PHASES)
    told.enter("compare")
    told.enter("search")
    told("searching again")
    assert events[0].title == "compare" and events[0].left_s is None


def test_the_log_is_told_without_a_callback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="collage"):
        Progress(None, PHASES)("reading the model")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("collage.progress", "reading the model")
    ]


def test_without_a_terminal_lines_come_some_seconds_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with shown() as show:
        for number in range(50):
            show(f"step {number}")
    assert capsys.readouterr().err == "[    0 s] step 0\n"


def test_verbose_writes_every_step_and_quiet_none(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, verbose, lines in ((False, True, 3), (True, False, 0)):
        with progress(quiet, verbose) as show:
            told = Progress(show, PHASES)
            told("one\x1b[2J")
            told("two")
            show("three")
        said = capsys.readouterr().err
        assert said.count("\n") == lines and "\x1b" not in said
    assert not logging.getLogger("collage").handlers
