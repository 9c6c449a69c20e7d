"""Run passes by name and report the effect of each, for ``collage inspect MODEL --passes``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from collage._errors import UsageError
from collage.transform._context import PassContext, PassInstrument
from collage.transform._info import PassInfo
from collage.transform._instruments import op_counts
from collage.transform._pass_names import check_pass_names
from collage.transform._pipeline import parse_pipeline
from collage.transform._print_ir import model_text
from collage.transform._verify import VerifyAfterEach

__all__ = ["inspect_passes"]

Show = Callable[[str, str, str], None]
"""Told a pass's name, ``before`` or ``after``, and the model's text there, as the pass runs."""


def inspect_passes(
    model: ir.Model,
    names: str | Sequence[str],
    *,
    print_before: Collection[str] = (),
    print_after: Collection[str] = (),
    verify: bool = False,
    context: PassContext | None = None,
    show: Show = lambda name, when, text: None,
) -> dict[str, Any]:
    """Run passes in order and describe the changes of each.

    Args:
        model: A model; it is not changed.
        names: Names of registered passes, or a pipeline as text, see ``parse_pipeline``. It runs as it does in ``compile``.
        print_before: Names of passes, also of members of sequences, before which the model is shown.
        print_after: The same, after them.
        verify: Check the model after each pass; see ``VerifyAfterEach``. Times contain the checks.
        context: The level, disabled passes and configuration; None is the current context.
        show: Called with the name of a pass, ``before`` or ``after``, and the text of the model.

    Returns:
        ``nodes``, ``operators``, ``diagnostics`` and ``passes`` of the result; values of JSON. Each pass has its ``name``,
        ``depth`` in sequences, ``nodes`` after it, ``change`` of the number of nodes per operator, ``time_us``, and why it was
        ``skipped``, or None.

    Raises:
        UsageError: No pass is named.
        ConfigError: A name is unknown.
        PassError: A pass failed, or broke the model.
    """
    if not names:
        raise UsageError("name at least one pass")
    pipeline = parse_pipeline(names if isinstance(names, str) else ",".join(names))
    for chosen in (print_before, print_after):
        check_pass_names(chosen, "passes to print")
    watcher = _Watcher(print_before, print_after, show)
    given = context or PassContext.current()
    instruments = [*given.instruments, *([VerifyAfterEach()] if verify else []), watcher]
    with PassContext(
        given.opt_level,
        given.fallback_device,
        given.required_pass,
        given.disabled_pass,
        given.config,
        instruments,
        given.trace,
    ):
        result = pipeline.run(model)
    model = result.model
    return {
        "nodes": sum(op_counts(model).values()),
        "operators": dict(op_counts(model).most_common()),
        "diagnostics": [{"pass": each.pass_name, "text": str(each)} for each in result.diagnostics],
        "passes": [
            {
                "name": run.name,
                "depth": run.depth - 1,
                "nodes": run.nodes,
                "change": run.change,
                "time_us": round(run.time_us, 1),
                "skipped": run.skipped,
            }
            for run in watcher.runs[1:]
        ],
    }


@dataclass(slots=True)
class _Run:
    """One pass that ran, or was skipped."""

    name: str
    depth: int
    before: Counter[str]
    start_s: float = 0.0
    time_us: float = 0.0
    nodes: int = 0
    change: dict[str, int] = field(default_factory=dict)
    skipped: str | None = None


class _Watcher(PassInstrument):
    def __init__(self, print_before: Collection[str], print_after: Collection[str], show: Show) -> None:
        self._print_before, self._print_after, self._show = print_before, print_after, show
        self._open: list[_Run] = []
        self.runs: list[_Run] = []

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        if info.name in self._print_before:
            self._show(info.name, "before", model_text(model))
        run = _Run(info.name, len(self._open), op_counts(model))
        self.runs.append(run)
        self._open.append(run)
        run.start_s = time.perf_counter()

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        run = self._open.pop()
        run.time_us = (time.perf_counter() - run.start_s) * 1e6
        after = op_counts(model)
        run.nodes = sum(after.values())
        run.change = {
            name: after[name] - run.before[name]
            for name in sorted({*run.before, *after})
            if after[name] != run.before[name]
        }
        if info.name in self._print_after:
            self._show(info.name, "after", model_text(model))

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        run = self._open.pop()
        run.time_us = (time.perf_counter() - run.start_s) * 1e6
        run.nodes, run.skipped = sum(run.before.values()), "it failed"

    def on_skip(self, model: ir.Model, info: PassInfo, reason: str) -> None:
        counts = op_counts(model)
        self.runs.append(_Run(info.name, len(self._open), counts, nodes=sum(counts.values()), skipped=reason))
