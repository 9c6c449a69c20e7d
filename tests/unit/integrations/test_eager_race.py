"""A compiled graph runs where it is not slower than PyTorch itself."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import collage.compiler.pipeline
from collage.cost.statistics import Interval
from collage.integrations import _compiled_graph, _eager_race
from collage.integrations._eager_race import EagerRace, lengths_alike, race_with_eager
from collage.testing import executable_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed, and a clock that shows them."""
    now = [0.0]
    monkeypatch.setattr(_eager_race.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("ours_s", "eager_s", "wins"), [(0.003, 0.001, True), (0.001, 0.003, False)])
def test_the_faster_one_wins_after_few_rounds(clock: list[float], ours_s: float, eager_s: float, wins: bool) -> None:
    calls = []

    def side(name: str, seconds: float) -> Callable[[Any], None]:
        def call(_: Any) -> None:
            calls.append(name)
            clock[0] += seconds

        return call

    race = race_with_eager(side("ours", ours_s), side("eager", eager_s), list)
    assert race.eager_wins is wins
    assert (race.compiled_s, race.eager_s) == pytest.approx((ours_s, eager_s))
    assert race.ratio == pytest.approx(ours_s / eager_s)
    assert clock[0] < 1.0
    changes = sum(a != b for a, b in itertools.pairwise(calls))
    assert changes >= 6, "they run in turns"


def test_a_race_of_slow_graphs_is_short(clock: list[float]) -> None:
    calls = []

    def slow(_: Any) -> None:
        calls.append(1)
        clock[0] += 5.0

    race_with_eager(slow, slow, list)
    assert len(calls) == 12


def test_drift_and_single_slow_runs_do_not_decide(clock: list[float]) -> None:
    calls = [0]

    def side(seconds: float) -> Callable[[Any], None]:
        def call(_: Any) -> None:
            calls[0] += 1
            clock[0] += seconds * (1 + calls[0] / 200) * (20 if calls[0] % 17 == 0 else 1)

        return call

    assert not race_with_eager(side(0.0009), side(0.001), list).eager_wins
    assert race_with_eager(side(0.001), side(0.0009), list).eager_wins


def test_arguments_are_made_anew_and_are_not_timed(clock: list[float]) -> None:
    seen = []

    def arguments() -> list[int]:
        clock[0] += 100.0
        return [0]

    def side(given: Any) -> None:
        seen.append(given[0])
        given[0] += 1
        clock[0] += 0.004

    assert race_with_eager(side, side, arguments).ratio == 1.0
    assert set(seen) == {0}


def test_lengths_are_alike_within_a_factor_of_two() -> None:
    assert lengths_alike((4, 100)) == lengths_alike((7, 64))
    assert lengths_alike((4,)) != lengths_alike((8,))


BUFFER = 8


class Step(torch.nn.Module):
    """Writes to a buffer that is full after eight calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("kept", torch.zeros(BUFFER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.index_copy_(0, self.calls.reshape(1), x.sum().reshape(1))
        self.calls += 1
        return x * self.kept.sum()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each model that was compiled and each run of one."""
    lines: list[str] = []

    def compile(model: Any, *_: Any, **__: Any) -> Any:
        lines.append("compiled")
        return executable_of(model, "onnxruntime")

    computed = _compiled_graph.CompiledGraph._computed

    def counted(*arguments: Any) -> Any:
        lines.append("run")
        return computed(*arguments)

    monkeypatch.setattr(collage.compiler.pipeline, "compile", compile)
    monkeypatch.setattr(_compiled_graph.CompiledGraph, "_computed", counted)
    torch._dynamo.reset()
    return lines


def outcome(monkeypatch: pytest.MonkeyPatch, eager_wins: Callable[[int], bool]) -> list[int]:
    """Have races end by the number of the first argument's rows; return these numbers."""
    raced = []

    def race(compiled: Any, eager: Any, arguments: Any) -> EagerRace:
        for side in (compiled, eager) * 5:
            assert side(arguments()) is not None
        (rows,) = (len(x) for x in arguments() if type(x) is torch.Tensor and x.ndim and len(x) != BUFFER)
        raced.append(rows)
        ratio = 2.0 if eager_wins(rows) else 0.5
        return EagerRace(ratio, 1.0, ratio, Interval(ratio, ratio))

    monkeypatch.setattr(_compiled_graph, "race_with_eager", race)
    return raced


def test_a_race_leaves_no_traces_and_its_loser_runs_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ran: list[str]
) -> None:
    raced = outcome(monkeypatch, lambda _: True)
    plain, inner = Step(), Step()
    compiled = torch.compile(inner, backend="collage", options={"targets": ["onnxruntime"], "wait": True})
    with torch.no_grad(), caplog.at_level(logging.INFO, "collage"):
        for n in range(8):
            if n == 1:
                ran.clear()
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), plain(x))
            torch.testing.assert_close(inner.state_dict(), plain.state_dict())
    assert raced == [3]
    assert ran == []
    assert ["eager PyTorch is kept" in message for message in caplog.messages if "eager" in message] == [True]
    assert any("compiled in" in message for message in caplog.messages)


def test_each_order_of_lengths_races_once_and_another_process_does_not(
    monkeypatch: pytest.MonkeyPatch, ran: list[str], own_cache: Path
) -> None:
    raced = outcome(monkeypatch, lambda rows: rows >= 8)
    module = torch.nn.Linear(4, 4).eval()
    for expected in ([2, 4, 9], []):
        torch._dynamo.reset()
        _compiled_graph._SEEN.clear()
        compiled = torch.compile(
            module, backend="collage", options={"targets": ["onnxruntime"], "wait": True}, dynamic=True
        )
        raced.clear()
        with torch.no_grad():
            for rows in (2, 3, 4, 5, 9, 12):
                ran.clear()
                x = torch.randn(rows, 4)
                torch.testing.assert_close(compiled(x), module(x))
                is_eager = rows >= 8 and (rows == 12 or not expected)
                assert ("run" not in ran) is is_eager, rows
        assert raced == expected
    assert list(own_cache.glob("*.json"))


def test_another_number_of_threads_races_again(monkeypatch: pytest.MonkeyPatch, ran: list[str]) -> None:
    raced = outcome(monkeypatch, lambda _: True)
    module = torch.nn.Linear(4, 4).eval()
    for where in ("one", "one", "other"):
        monkeypatch.setattr(_compiled_graph, "_here", lambda where=where: where)
        torch._dynamo.reset()
        _compiled_graph._SEEN.clear()
        with torch.no_grad():
            torch.compile(module, backend="collage", options={"targets": ["onnxruntime"], "wait": True})(
                torch.ones(3, 4)
            )
    assert raced == [3, 3]
    assert ran.count("compiled") == 1


def test_without_finals_and_after_a_failure_of_the_race_what_was_compiled_runs(
    monkeypatch: pytest.MonkeyPatch, ran: list[str]
) -> None:
    def fails(*_: Any) -> EagerRace:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(_compiled_graph, "race_with_eager", fails)
    said: list[str] = []
    module = torch.nn.Linear(4, 4).eval()
    for options in ({"finals": False}, {"say": said.append}):
        torch._dynamo.reset()
        _compiled_graph._SEEN.clear()
        given = {"targets": ["onnxruntime"], "wait": True, "cache_dir": None, **options}
        compiled = torch.compile(module, backend="collage", options=given)
        ran.clear()
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(torch.ones(3, 4)), module(torch.ones(3, 4)))
        assert ran == ["compiled", "run", "run"]
    assert "cannot be compared with eager PyTorch: out of memory" in said[-1]


def test_a_real_race_ends(ran: list[str]) -> None:
    module = torch.nn.Linear(4, 4).eval()
    compiled = torch.compile(
        module, backend="collage", options={"targets": ["onnxruntime"], "wait": True, "cache_dir": None}
    )
    began = time.monotonic()
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(3, 4)), module(torch.ones(3, 4)))
    assert ran.count("run") > 5
    assert time.monotonic() - began < 240
