"""Diagnostics: errors, warnings and remarks that passes report, several of one run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from collage._errors import PassError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Diagnostic", "Severity", "collecting", "name_of", "report", "reporting_for"]

_logger = logging.getLogger(__name__)


class Severity(Enum):
    """The weight of a diagnostic."""

    REMARK = "remark"
    """A note on a thing that a pass did, or did not do, and the reason."""
    WARNING = "warning"
    """The pass went on, and the user should know of this."""
    ERROR = "error"
    """The pass goes on to look for more, and fails when it ends."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that a pass reports.

    Attributes:
        severity: Severity of the finding.
        message: A sentence.
        pass_name: The pass that reported it.
        node: Name of the node that it is about, or of its first output; None if it is about the model.
        op_type: Operator of that node.
    """

    severity: Severity
    message: str
    pass_name: str
    node: str | None = None
    op_type: str | None = None

    def __str__(self) -> str:
        place = "" if self.node is None else f"node {self.node!r} ({self.op_type}): "
        return f"{self.severity.value}: {place}{self.message}"


_PASS: ContextVar[tuple[str, list[Diagnostic]] | None] = ContextVar("collage_reporting_pass", default=None)
_COLLECTED: ContextVar[list[Diagnostic] | None] = ContextVar("collage_diagnostics", default=None)


def name_of(node: ir.Node) -> str:
    """Return the name of a node in messages: its own, or that of its first output."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def report(severity: Severity, message: str, node: ir.Node | None) -> None:
    """Report something of the pass that is running; outside of any pass it is only logged."""
    running = _PASS.get()
    name = None if node is None else name_of(node)
    diagnostic = Diagnostic(
        severity, message, "" if running is None else running[0], name, None if node is None else node.op_type
    )
    if running is not None:
        running[1].append(diagnostic)
    if (collected := _COLLECTED.get()) is not None:
        collected.append(diagnostic)
    elif severity is not Severity.REMARK:
        _logger.log(logging.WARNING, "%s: %s", diagnostic.pass_name or "no pass", diagnostic)


@contextmanager
def collecting() -> Iterator[list[Diagnostic]]:
    """Collect the findings that passes report inside the block, instead of logging them."""
    collected: list[Diagnostic] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


@contextmanager
def reporting_for(pass_name: str) -> Iterator[None]:
    """Attribute findings inside the block to a pass, and fail at its end if there were errors.

    Raises:
        PassError: Errors were reported; the message has all of them.
    """
    reported: list[Diagnostic] = []
    token = _PASS.set((pass_name, reported))
    try:
        yield
    finally:
        _PASS.reset(token)
    errors = [diagnostic for diagnostic in reported if diagnostic.severity is Severity.ERROR]
    if errors:
        raise PassError("; ".join(str(error).removeprefix("error: ") for error in errors))
