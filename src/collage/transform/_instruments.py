"""Instruments that record the work of passes: time, sizes, dumps and a log."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.graph import copy_model
from collage.transform._context import PassInstrument
from collage.transform._info import PassInfo
from collage.transform._print_ir import model_text

__all__ = ["CrashReproducer", "DumpIR", "JsonLog", "OpCountDiff", "PassTimer", "op_counts"]


@dataclass(slots=True)
class _Span:
    name: str
    start_s: float
    seconds: float = 0.0
    inner: list[_Span] = field(default_factory=list)


class PassTimer(PassInstrument):
    """Measures passes; sequences contain their members."""

    def __init__(self) -> None:
        self._root = _Span("total", 0.0)
        self._open = [self._root]

    def enter_pass_ctx(self, context: Any) -> None:
        """Forgets passes of an earlier block that another instrument kept from ending."""
        self._open = [self._root]

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Start the clock."""
        span = _Span(info.name, time.perf_counter())
        self._open[-1].inner.append(span)
        self._open.append(span)

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Stop it."""
        span = self._open.pop()
        span.seconds = time.perf_counter() - span.start_s

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        """Stop it, too."""
        self.run_after_pass(model, info)

    def render(self) -> str:
        """One line per pass: milliseconds, those outside its members, and its share of the whole."""
        total = sum(span.seconds for span in self._root.inner)
        lines: list[str] = []

        def add(span: _Span, depth: int) -> None:
            own = span.seconds - sum(inner.seconds for inner in span.inner)
            share = span.seconds / total if total else 0.0
            lines.append(
                f"{'  ' * depth}{span.name}: {span.seconds * 1e3:.3f} ms [self {own * 1e3:.3f} ms] ({share:.1%})"
            )
            for inner in span.inner:
                add(inner, depth + 1)

        for span in self._root.inner:
            add(span, 0)
        return "\n".join(lines)


class OpCountDiff(PassInstrument):
    """Records how each pass changed the number of nodes per operator.

    Attributes:
        changes: Pairs of a pass's name and its changes, such as ``{"Conv": -1}``; unchanged models are left out.
    """

    def __init__(self) -> None:
        self.changes: list[tuple[str, dict[str, int]]] = []
        self._before: list[Counter[str]] = []

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Count."""
        self._before.append(op_counts(model))

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Count again."""
        before, after = self._before.pop(), op_counts(model)
        change = {name: after[name] - before[name] for name in sorted({*before, *after}) if after[name] != before[name]}
        if change:
            self.changes.append((info.name, change))

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        """Forgets the pass."""
        self._before.pop()


class DumpIR(PassInstrument):
    """Writes the model's text after each pass to a numbered file, such as ``003_FoldConstant.txt``."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._number = 0

    def enter_pass_ctx(self, context: Any) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Write the next file."""
        name = re.sub(r"[^\w.-]", "_", info.name)[:80]
        (self._folder / f"{self._number:03}_{name}.txt").write_text(model_text(model) + "\n")
        self._number += 1


class JsonLog(PassInstrument):
    """Appends one JSON object per event to a file."""

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._start_s = time.monotonic()

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Log."""
        self._log("before", info)

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Log, with the number of nodes."""
        self._log("after", info, nodes=sum(op_counts(model).values()))

    def on_skip(self, model: ir.Model, info: PassInfo, reason: str) -> None:
        """Log why."""
        self._log("skip", info, reason=reason)

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        """Log the message."""
        self._log("error", info, error=str(error) or type(error).__name__)

    def _log(self, event: str, info: PassInfo, **details: Any) -> None:
        seconds = round(time.monotonic() - self._start_s, 6)
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "pass": info.name, "time_s": seconds, **details}) + "\n")


class CrashReproducer(PassInstrument):
    """Writes the input of a failing pass, so that the failure can be reproduced: ``model.onnx`` and ``pipeline.txt``.

    Args:
        folder: The folder to write to; made when something fails.

    Attributes:
        written: The folder, once something was written there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.written: Path | None = None
        self._folder = Path(folder)
        self._context: Any = None
        self._open: list[tuple[PassInfo, ir.Model]] = []

    def enter_pass_ctx(self, context: Any) -> None:
        """Note the context, and drop the state of an earlier block."""
        self._context, self._open, self.written = context, [], None

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Keep the model; its weights are shared."""
        self._open.append((info, copy_model(model)))

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Forgets it."""
        self._open.pop()

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        """Write the input model of the innermost pass, and the command that runs that pass."""
        _, given = self._open.pop()
        if self.written is not None or not isinstance(error, Exception):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        ir.save(given, self._folder / "model.onnx")
        level, disabled = self._context.opt_level, sorted(self._context.disabled_pass)
        text, lost = _as_text(info)
        lines = [
            f"collage inspect model.onnx --passes {shlex.quote(text)} --opt-level {level}"
            + "".join(f" --disable-pass {name}" for name in disabled)
            + "".join(f" --pass-config {key}={value}" for key, value in self._context.config.items()),
            f"failed with {type(error).__name__}: {error}",
            *(f"the option {name} of {info.name} cannot be written as text" for name in lost),
        ]
        (self._folder / "pipeline.txt").write_text("\n".join(lines) + "\n")
        self.written = self._folder


def _as_text(info: PassInfo) -> tuple[str, list[str]]:
    """Return a pass with its options as `parse_pipeline` reads it, and the options that cannot be written so."""
    texts = {name: str(value) for name, value in info.options.items() if isinstance(value, str | int | float)}
    texts = {name: text for name, text in texts.items() if not set(text) & set(",{}=")}
    options = ",".join(f"{name}={text}" for name, text in texts.items())
    return info.name + (f"{{{options}}}" if options else ""), [name for name in info.options if name not in texts]


def op_counts(model: ir.Model) -> Counter[str]:
    """Number of nodes per operator, bodies and functions included."""
    graphs = [*model.graphs(), *(function.graph for function in model.functions.values())]
    return Counter(f"{node.domain}.{node.op_type}".lstrip(".") for graph in graphs for node in graph)
