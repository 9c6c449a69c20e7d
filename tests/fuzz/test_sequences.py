"""Random sequences of calls, and how one that fails becomes short."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from collage.testing import executable_of
from tests.fuzz.draft import Sample
from tests.fuzz.references import Case
from tests.fuzz.sequence_steps import STEPS
from tests.fuzz.sequence_world import Made
from tests.fuzz.sequences import draw, played, script_of
from tests.fuzz.shrink import shrunk
from tests.fuzz.test_fuzz import command

X = np.array([1.0, -2.0], np.float32)
MODEL = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {y = Neg (x)}')


def test_executables_go_through_random_sequences_of_calls() -> None:
    code, found = command("--kinds", "sequences", "--targets", "onnxruntime,openvino", "--seed", "4", "--count", "4")
    hows = [verdict["how"] for each in found for verdict in each["verdicts"]]
    assert code == 0 and set(hows) <= {"right", "skipped"}, found
    assert hows.count("right") >= 2


def test_sequences_hold_every_step_and_are_the_same_every_time() -> None:
    assert draw(7).steps == draw(7).steps != draw(8).steps
    assert {step[0] for number in range(40) for step in draw(number).steps} == {*STEPS}


class Careless:
    """An executable that returns the same memory each time, or fails in another way."""

    def __init__(self, real: Any, fault: str) -> None:
        self._real = real
        self._fault = fault
        self._y = np.empty(2, np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def run(self, inputs: Any, out: Any = None) -> Mapping[str, Any]:
        if self._fault == "takes all":
            inputs = {"x": X} if not isinstance(inputs, dict) or inputs.keys() != {"x"} else inputs
        found = self._real.run(inputs, out=out)
        if self._fault == "same memory" and out is None:
            self._y[...] = found["y"]
            return {"y": self._y}
        return {"y": found["y"].copy()} if self._fault == "elsewhere" and out else found


@pytest.mark.parametrize(
    ("fault", "steps", "said"),
    [
        ("same memory", ["keep", "run"], "has changed"),
        ("takes all", ["wrong"], "no error"),
        ("elsewhere", ["into"], "not the caller's arrays"),
    ],
)
def test_a_sequence_that_fails_is_shrunk(fault: str, steps: list[str], said: str, tmp_path: Path) -> None:
    real = executable_of(MODEL, "onnxruntime")
    cases = [Case({"x": X}, [-X]), Case({"x": -X}, [X])]
    names = ["run", "write", *steps, "collect", "run"]
    long = Sample(MODEL, {"x": X}, tuple((name, 0, number, 56) for number, name in enumerate(names)))

    def reason_of(candidate: Sample) -> str:
        made = Made(MODEL, cases, tmp_path / "m.collage", Careless(real, fault), 1e-4, "one kernel")  # type: ignore[arg-type]
        return played(made, candidate.steps, lambda what: None).reason

    def is_as_bad(candidate: Sample) -> bool:
        return bool(candidate.steps) and said in reason_of(candidate)

    assert said in reason_of(long)
    short = shrunk(long, is_as_bad, time.monotonic() + 60)
    assert len(short.steps) <= len(steps)
    assert is_as_bad(short)
    assert repr(short.steps[0]) in script_of(7, short.steps, "onnxruntime")
    assert shrunk(long, is_as_bad, time.monotonic() - 1) is long
    assert not is_as_bad(replace(long, steps=(("collect", 0, 0, 0),)))
