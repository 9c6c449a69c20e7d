"""Profiling of a session in ONNX Runtime's way: runs are recorded from the session's making on, and written at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage.runtime import Executable

__all__ = ["SessionProfiler"]

_MOST_EVENTS = 1_000_000
"""Most events, the same number as in ONNX Runtime; later ones are dropped."""


class SessionProfiler:
    """Records the kernels of every run, as events of Chrome's trace viewer.

    Args:
        options: ONNX Runtime's ``SessionOptions``, or None.

    Attributes:
        is_on: Runs are recorded.
        began_ns: The time at which recording began, by ``time.monotonic_ns``.
    """

    def __init__(self, options: Any) -> None:
        self.is_on = bool(getattr(options, "enable_profiling", False))
        self.began_ns = time.monotonic_ns()
        self._origin_ns = time.perf_counter_ns()
        self._prefix = getattr(options, "profile_file_prefix", None) or "onnxruntime_profile_"
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def run(self, executable: Executable, feeds: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        """Run an executable, and record when each of its kernels began and ended."""
        began = time.perf_counter_ns()
        outputs, spans = executable.trace(feeds, out=out)
        events = [self._event("Session", "model_run", (began, time.perf_counter_ns()), {})]
        for record, span in zip(executable.recipe.kernels, spans, strict=True):
            what = {"op_name": record.name, "provider": record.target}
            events.append(self._event("Node", f"{record.name}_kernel_time", span, what))
        with self._lock:
            self._events += events[: max(0, _MOST_EVENTS - len(self._events))]
        return outputs

    def end(self) -> str:
        """Stop recording, write the events to a file in ONNX Runtime's way, and return its name.

        Raises:
            UsageError: Nothing is recorded.
        """
        if not self.is_on:
            raise UsageError("nothing was recorded: set SessionOptions.enable_profiling before the session is made")
        self.is_on = False
        path = Path(f"{self._prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S}.json")
        with self._lock:
            path.write_text(json.dumps(self._events), encoding="utf-8")
        return str(path)

    def _event(self, category: str, name: str, span: tuple[int, int], what: Mapping[str, str]) -> dict[str, Any]:
        began, ended = span
        times = {"ts": (began - self._origin_ns) // 1000, "dur": (ended - began) // 1000, "ph": "X"}
        return {"cat": category, "name": name, "pid": 0, "tid": threading.get_ident(), **times, "args": dict(what)}
