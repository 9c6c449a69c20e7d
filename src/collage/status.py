"""``Status``: the one word on what became of a kernel, of a target or of a plan."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["OUTCOMES", "Status"]


class Status(StrEnum):
    """The end of a candidate kernel, of a whole model on a target, or of a plan in the comparison."""

    OK = "ok"
    """Built, right, and timed."""
    REFUSED = "refused"
    """The toolchain does not take it."""
    FAILED = "failed"
    """The toolchain took it, and could not build or run it."""
    CRASHED = "crashed"
    TIMEOUT = "time-out"
    OUT_OF_MEMORY = "out of memory"
    WRONG = "wrong"
    """Built and run, and its outputs are not right."""

    PREDICTED = "predicted only"
    """Neither built nor timed: its expected time promised no gain, or the search ended before."""
    NOT_MEASURED = "not measured"
    """Never considered: left out before the search, with the reason."""

    RETURNED = "returned"
    """The plan of the executable."""
    BASELINE = "baseline"
    """The original model on ONNX Runtime, which plans are compared with."""
    SLOWER = "slower"
    """Slower than the returned plan beyond doubt."""
    TIE = "tie"
    """As fast as the returned plan within doubt."""
    UNDECIDED = "undecided"
    """Faster than the returned plan, but not than every single toolchain beyond doubt."""
    OVER_BUDGET = "over budget"
    """Of a reduced precision that the accuracy budget does not admit."""
    OVER_LIMIT = "over limit"
    """Outside a limit that the user set."""
    TOO_SLOW = "too slow"
    """Left out of the comparison after two samples."""
    UNAVAILABLE = "unavailable"
    """Of a toolchain that cannot be used here."""
    NOT_RACED = "not raced"
    """Not compared: the time was too short, or another plan was expected to be clearly faster."""

    @property
    def is_fault(self) -> bool:
        """True if the toolchain took the kernel, and did not compute it rightly."""
        return self in (Status.FAILED, Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.WRONG)


OUTCOMES = (
    Status.OK,
    Status.REFUSED,
    Status.FAILED,
    Status.CRASHED,
    Status.TIMEOUT,
    Status.OUT_OF_MEMORY,
    Status.WRONG,
)
"""The ends of building and measuring one kernel, which the database keeps."""
