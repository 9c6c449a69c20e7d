"""Several callers of one model, each in a thread of its own."""

from __future__ import annotations

import threading
import time

import pytest

from collage.measure import _concurrent_worker
from collage.measure._concurrent_worker import _Streams

PERCENTILES = ("p10_s", "p50_s", "p90_s", "p95_s", "p99_s")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_streams_run_at_once(count: int) -> None:
    together = threading.Barrier(count)  # A call ends only when every stream is inside one.
    streams = _Streams([[lambda: together.wait(30)]] * count, [1.0])
    assert streams.run(3) > 0.0


def test_figures_of_a_time_under_load() -> None:
    streams = _Streams([[lambda: time.sleep(0.01)]] * 2, [1.0])
    began = time.perf_counter()
    found = streams.serve(0.2)
    took_s = time.perf_counter() - began
    assert found["runs"] / took_s <= found["runs_per_s"] <= 200.0  # Two streams, each at most a hundred runs.
    latencies = [found[name] for name in PERCENTILES]
    assert latencies == sorted(latencies) and latencies[0] >= 0.01
    assert 2 <= found["runs"] <= 42


def test_percentiles_are_of_the_calls_before_too_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, seconds = [0.0], [0.05]
    monkeypatch.setattr(_concurrent_worker.time, "perf_counter", lambda: now_s[0])

    def call() -> None:
        now_s[0] += seconds[0]

    streams = _Streams([[call]], [1.0])
    streams.serve(0.0)
    seconds[0] = 0.001
    assert streams.serve(0.0, more=True)["p99_s"] > 0.04
    assert streams.serve(0.0)["p99_s"] < 0.04


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_an_error_in_one_stream_is_raised_and_hangs_nothing(broken: int) -> None:
    def fails() -> None:
        raise ValueError("broken")

    calls = [[fails if number == broken else lambda: None] for number in range(3)]
    with pytest.raises(ValueError, match="broken"):
        _Streams(calls, [1.0]).run(2)


def test_each_set_of_inputs_is_met_as_often_as_it_weighs() -> None:
    met = [0, 0]

    def call(number: int) -> None:
        met[number] += 1

    streams = _Streams([[lambda: call(0), lambda: call(1)]], [0.75, 0.25])
    streams.run(1024)
    assert sum(met) == 1024 and 0.70 < met[0] / 1024 < 0.80
