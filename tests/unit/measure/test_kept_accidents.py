"""An accident, such as a process that ran out of time, is not kept as a fact on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from collage._errors import CompileError, ToolchainError, WorkerTimeout
from collage.database.database import Database
from collage.measure.check_inputs import _first_taken, _Judge
from collage.measure.session import MeasureSession
from collage.toolchains import Registry

MODEL = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="model"), ir_version=10)
ERRORS = pytest.mark.parametrize(("error", "times"), [(CompileError("no"), 1), (WorkerTimeout("late"), 2)])


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(MeasureSession, "build_of", lambda *_: "1")
    with Database("sqlite:///:memory:") as database, MeasureSession(Registry(()), database, tmp_path) as found:
        found.reference_model = tmp_path / "model.onnx"
        yield found


@ERRORS
def test_lengths_that_the_original_did_not_take(error: ToolchainError, times: int, session: Any) -> None:
    asked: list[Any] = []

    class Original:
        failure = None

        def run(self, *_: Any) -> int:
            asked.append(_)
            raise error

    original: Any = Original()
    judge = _Judge(MODEL, original, 0.0, False)
    for _ in range(2):
        takes = lambda _, values: judge.run(values)  # noqa: E731
        assert _first_taken("other", [{"n": 2}], takes, MODEL, session, session.database) is None
    assert len(asked) == times


@ERRORS
def test_noise(error: ToolchainError, times: int, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def call(*_: Any, **more: Any) -> Any:
        asked.append(more)
        raise error

    monkeypatch.setattr(session.arbiter._worker, "call", call)
    assert [session.noise(MODEL) for _ in range(2)] == [None, None]
    assert len(asked) == times
