"""The arbiter: settles doubts on outputs with evidence, in a process of its own, which starts at the first doubt."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage._errors import ToolchainError
from collage.measure.checking import doubt_folders
from collage.workers.worker import Worker

__all__ = ["Arbiter"]

_SERVICE = "collage.measure._evidence_worker:EvidenceService"
_WORKER = "arbiter of outputs"
"""Its name among lent processes. No toolchain's name has spaces."""
_LIMIT_S = 180.0


class Arbiter:
    """Settles doubts.

    Args:
        memory_bytes: Memory limit of its process.
        workers: Worker processes lent by the caller, by name, which are left running; one for arbiters is among them, or is
            added.
    """

    def __init__(self, memory_bytes: int | None = None, workers: dict[str, Worker] | None = None) -> None:
        self._is_lent = workers is not None
        lent = {} if workers is None else workers
        self._worker = lent.setdefault(_WORKER, Worker(_SERVICE, memory_bytes=memory_bytes))

    def close(self) -> None:
        """End the process, unless it was lent."""
        if not self._is_lent:
            self._worker.kill()

    def interrupt(self) -> None:
        """End what its process does for another thread; see ``Worker.interrupt``."""
        self._worker.interrupt()

    def settle(self, findings: Mapping[str, Any], model: Path | None) -> dict[str, Any]:
        """Return the findings without doubts: some outputs are right, and the first that is not is the reason.

        Args:
            findings: See ``collage.measure.checking.Findings``.
            model: The file of the model, or kernel; None if there is none, so that each doubt is a fault.
        """
        found: dict[str, Any] = {"noise": None, "excused": {}, **findings}
        try:
            for doubt in findings["doubts"]:
                if found["wrong"]:
                    break
                told = self._settled(doubt, model)
                found["wrong"] = told["wrong"]
                found["max_rel"] = max(found["max_rel"], told["error"])
                if told["noise"] is not None:
                    found["noise"] = max(found["noise"] or 0.0, told["noise"])
                    found["excused"] = {**found["excused"], **told["excused"]}
        finally:
            for folder in doubt_folders(findings):
                shutil.rmtree(folder, ignore_errors=True)
        return {**found, "doubts": []}

    def _settled(self, doubt: Mapping[str, Any], model: Path | None) -> dict[str, Any]:
        name, why = next(iter(doubt["reasons"].items()))
        reason = f"{doubt['where']}output {name!r}: {why}"
        nothing: dict[str, Any] = {"error": 0.0, "noise": None, "excused": {}}
        if model is None:
            return {"wrong": reason, **nothing}
        try:
            return dict(self._worker.call("settle", _LIMIT_S, model=str(model), doubt=dict(doubt)))
        except ToolchainError as error:
            return {"wrong": f"{reason} (no evidence: {error})", **nothing}

    def differs_from_itself(self, model: Path, values: Path) -> str | None:
        """Return how two runs of a model on ONNX Runtime differ, or None if they are alike, or cannot be had."""
        try:
            told = self._worker.call("differs_from_itself", _LIMIT_S, model=str(model), values=str(values))
        except ToolchainError:
            return None
        return None if told is None else str(told)

    def noise(self, model: Path, values: Path, limit_s: float) -> Mapping[str, float] | None:
        """Return what float arithmetic errs on a model's outputs, relative to their sizes; None if an accident hides it."""
        try:
            told = self._worker.call("noise", _LIMIT_S, model=str(model), values=str(values), limit_s=limit_s)
        except ToolchainError as error:
            return None if error.is_accident else {}
        return dict(told)
