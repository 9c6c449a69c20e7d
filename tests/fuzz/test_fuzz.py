"""The hunt: a few models of each kind each time, and many new ones when there is time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.fuzz import children, compiled
from tests.fuzz.__main__ import jobs, kinds_of, seconds_of
from tests.fuzz.children import Child
from tests.fuzz.draft import Sample
from tests.fuzz.inputs import EDGES, OF_FLOATS, OF_INTEGERS, adversarial
from tests.fuzz.kinds import KINDS
from tests.fuzz.references import Original
from tests.fuzz.session import Session
from tests.fuzz.verdicts import BAD, CAUGHT, DIED, FAILED, HUNG, SKIPPED, Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("random", "single-op", "old-opsets", "adversarial-constants", "kernels", "mixes")


def command(*arguments: str, timeout: float = 600) -> tuple[int, list[dict[str, Any]]]:
    """Run the command as a process: it forks, which threads of other tests would not outlive."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def identity(op_type: str = "Identity") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {{y = {op_type} (x)}}'
    )


def test_a_model_of_each_kind_is_right() -> None:
    code, found = command("--kinds", ",".join(QUICK), "--targets", "onnxruntime", "--seed", "5", "--count", "1")
    assert [each["kind"] for each in found] == list(QUICK)
    bad = [each for each in found if any(v["how"] in BAD for v in each["verdicts"])]
    assert not bad and code == 0
    assert sum(v["how"] == "right" for each in found for v in each["verdicts"]) >= len(QUICK) - 2


@pytest.mark.slow
def test_fresh_models_of_each_kind_are_right() -> None:
    seed = int(time.time())
    code, found = command("--seed", str(seed), "--time-limit", "8m", timeout=900)
    bad = [each for each in found if any(v["how"] in BAD for v in each["verdicts"])]
    assert not bad and code == 0
    assert {each["kind"] for each in found} == set(KINDS)


def test_the_time_limit_holds() -> None:
    started = time.monotonic()
    command("--kinds", "adversarial-constants", "--targets", "onnxruntime", "--time-limit", "2s")
    assert time.monotonic() - started < 200


def test_cases_come_in_turns() -> None:
    assert list(jobs(["random", "mixes"], 2, 2)) == [
        ("random", 2_000_000),
        ("mixes", 2_000_000),
        ("random", 2_000_001),
        ("mixes", 2_000_001),
    ]


def test_arguments_are_read() -> None:
    assert [seconds_of(text) for text in ("90", "90s", "1.5m", "2h")] == [90, 90, 90, 7200]
    assert kinds_of("random,mixes") == ["random", "mixes"]
    for read, text in ((seconds_of, "soon"), (kinds_of, "random,unheard")):
        with pytest.raises(Exception, match=text.split(",")[-1]):
            read(text)


def test_inputs_are_of_the_types_and_shapes_that_models_take() -> None:
    feeds = {"x": np.float16([[1, -2], [3, 0.5]]), "i": np.int64([1, 2]), "b": np.array([True, False]), "s": ["a"]}
    found = dict(adversarial(feeds))
    assert set(OF_FLOATS) | set(OF_INTEGERS) <= set(found) | {"repeated values"}
    for made in found.values():
        assert all(made[name].shape == x.shape and made[name].dtype == x.dtype for name, x in list(feeds.items())[:3])
    assert np.isnan(found["some NaN"]["x"]).any() and not np.isnan(found["huge"]["x"]).any()
    assert found["integers beyond 32 bits"]["i"].min() > 2**32
    assert np.signbit(found["negative zeros"]["x"]).all()
    assert set(found) >= EDGES


class Made:
    """An executable that computes something else."""

    class recipe:
        kernels: Sequence[Any] = ()

    def __init__(self, run: Any, report: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self.report = report or {}


@pytest.mark.parametrize(
    ("run", "report", "how"),
    [
        (lambda feeds: {"y": feeds["x"].copy()}, {}, "right"),
        (lambda feeds: {"y": feeds["x"] + 1}, {}, "wrong"),
        (lambda feeds: {"y": feeds["x"] + 1}, {"numerics": {"unsettled": {"y": 0.5}}}, "named"),
        (lambda feeds: {"y": feeds["x"] + 1}, {"warnings": ["50% of output 'y' is NaN"]}, "named"),
        (lambda feeds: {"y": feeds["x"].astype(np.float64)}, {}, "wrong"),
        (lambda feeds: {"y": np.nan_to_num(feeds["x"])}, {}, "edge"),
        (lambda feeds: {"y": feeds["x"] * np.float32(1 + 1e-6)}, {}, "right"),
        (lambda feeds: feeds["x"].fill(7) or {"y": feeds["x"]}, {}, "wrong"),
        (lambda feeds: {}["y"], {}, "failed"),
    ],
)
def test_what_differs_from_the_original_is_told(tmp_path: Path, run: Any, report: Any, how: str) -> None:
    given = Sample(identity(), {"x": np.float32([1.5, -2])})
    original = Original(given.model)
    cases = [*compiled.cases_of(given, original)]
    assert len(cases) == len(OF_FLOATS) + 1
    told = compiled.Comparison(given.model, original, cases, "onnxruntime", Session([], tmp_path))
    assert told.of(lambda: Made(run, report), "compiled").how == how  # type: ignore[arg-type, return-value]


def test_what_rounding_decides_is_disputed(tmp_path: Path) -> None:
    given = Sample(identity("Floor"), {"x": np.float32([2, 3])})
    original = Original(given.model)
    cases = [("its own inputs", next(case for _, case in compiled.cases_of(given, original)))]
    told = compiled.Comparison(given.model, original, cases, "onnxruntime", Session([], tmp_path))
    off = Made(lambda feeds: {"y": np.float32([1, 3])})
    assert told.of(lambda: off, "compiled").how == "disputed"  # type: ignore[arg-type, return-value]


def in_a_child(monkeypatch: pytest.MonkeyPatch, folder: Path, judge: Any, timeout_s: float = 20) -> Outcome:
    """Judge one model in a child, which is forked and so knows what is replaced here."""
    given = Sample(identity(), {"x": np.float32([1, 2])})
    monkeypatch.setitem(KINDS, "random", replace(KINDS["random"], judge=judge, draw=lambda _: given))  # type: ignore[arg-type]
    child = Child(["onnxruntime"], folder / "child")
    try:
        return child.judge("random", 1, timeout_s)
    finally:
        child.close()


def test_a_child_that_dies_or_hangs_costs_one_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def dies(number: int, given: Sample, session: Any) -> list[Verdict]:
        session.stage(FAILED, "the run")
        os._exit(3)

    def hangs(number: int, given: Sample, session: Any) -> list[Verdict]:
        time.sleep(60)
        return []

    def dies_of_the_reference(number: int, given: Sample, session: Any) -> list[Verdict]:
        session.stage(SKIPPED, "the reference")
        os._exit(3)

    def dies_unchecked(number: int, given: Sample, session: Any) -> list[Verdict]:
        session.stage(CAUGHT, "a kernel")
        os._exit(3)

    for judge, how, seconds in (
        (dies, DIED, 120),
        (hangs, HUNG, 1),
        (dies_of_the_reference, SKIPPED, 120),
        (dies_unchecked, CAUGHT, 120),
    ):
        folder = tmp_path / judge.__name__
        folder.mkdir()
        assert in_a_child(monkeypatch, folder, judge, seconds).worst.how == how


def test_what_ends_an_unchecked_kernel_is_judged_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def judge(number: int, given: Sample, session: Any) -> list[Verdict]:
        if not session.compiles_only:
            session.stage(CAUGHT, "a kernel")
            os._exit(3)
        return [Verdict("wrong" if number else "right", target="onnxruntime")]

    given = Sample(identity(), {"x": np.float32([1, 2])})
    monkeypatch.setitem(KINDS, "random", replace(KINDS["random"], judge=judge, draw=lambda _: given))  # type: ignore[arg-type]
    pairs = iter([("random", 0), ("random", 1)])
    found = list(children.outcomes(pairs, ["onnxruntime"], tmp_path, 120.0, time.monotonic() + 240))
    assert [outcome.worst.how for outcome in found] == ["caught", "wrong"]
