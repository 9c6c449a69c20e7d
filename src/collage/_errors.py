"""Every error that Collage raises on purpose, in one tree.

::

    CollageError
    ├── UsageError                 what was asked for makes no sense (exit code 2)
    │   ├── TargetError            a target string that names nothing, or contradicts itself
    │   ├── InputError             inputs of a wrong name, shape or type; also a ValueError
    │   └── ConfigError            an unknown pass or option
    │       └── DeviceConflict     demands on devices that contradict each other, and how they meet
    ├── ModelError                 a file that is not a valid or safe model (exit code 5)
    ├── ArtefactError              an artefact that was tampered with or does not fit (exit code 5)
    ├── NothingCanRun              an operator that no toolchain and no fallback takes (exit code 3)
    │   └── LimitNotMet            limits that no plan keeps, and the nearest plan
    ├── WrongAnswer                outputs outside the tolerance (exit code 4)
    ├── PassError                  a pass failed; names the pass and its place in the sequence
    ├── PatternError               a pattern that cannot be built as written
    └── ToolchainError             raised by toolchains; becomes an outcome, never ends a run
        ├── Unsupported            the toolchain cannot take this kernel, and says why
        ├── CompileError           it should have, and failed
        └── WorkerDied             its process crashed, hung or was killed

``collage compare --fail-below`` ends with exit code 6 where the second artefact is too slow; that is not an error.

Messages say what happened, where, why, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ArtefactError",
    "CollageError",
    "CompileError",
    "ConfigError",
    "DeviceConflict",
    "InputError",
    "LimitNotMet",
    "ModelError",
    "NothingCanRun",
    "PassError",
    "PatternError",
    "TargetError",
    "ToolchainError",
    "Unsupported",
    "UsageError",
    "WorkerCrash",
    "WorkerDied",
    "WorkerLost",
    "WorkerOutOfMemory",
    "WorkerTimeout",
    "WrongAnswer",
]


class CollageError(Exception):
    """Base of all errors that Collage raises on purpose.

    Args:
        message: The fault.
        hint: The way out. It is shown on a line of its own.
    """

    exit_code: int = 1

    def __init__(self, message: object = "", *, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)


class UsageError(CollageError):
    """A request that makes no sense: a missing path, an unknown option."""

    exit_code = 2


class TargetError(UsageError):
    """A target string that names nothing, or contradicts itself."""


class InputError(UsageError, ValueError):
    """Inputs of a wrong name, shape or type. Handlers of ``ValueError``, which runtimes raise, take it too."""


class ConfigError(UsageError):
    """An unknown pass name or configuration key, or a value of the wrong type."""


class DeviceConflict(ConfigError):
    """Two demands on devices or memories that contradict each other.

    Attributes:
        one: The one end: the demand, its object and its origin.
        other: The other end.
        chain: The steps between them, each a sentence.
        remedies: Ways to resolve the conflict, best first.
    """

    def __init__(self, one: str, other: str, chain: tuple[str, ...], remedies: tuple[str, ...]) -> None:
        lines = [f"two demands on devices contradict each other: {one}; {other}"]
        lines += [f"  because {step}" for step in chain]
        lines += [f"  to resolve it, {remedy}" for remedy in remedies]
        super().__init__("\n".join(lines))
        self.one, self.other, self.chain, self.remedies = one, other, chain, remedies


class ModelError(CollageError):
    """A file that is not a valid or safe ONNX model, or one that cannot be run."""

    exit_code = 5


class ArtefactError(CollageError):
    """An artefact that is incomplete, was tampered with, or does not fit this build."""

    exit_code = 5


class NothingCanRun(CollageError):
    """An operator that no toolchain of the menu and no fallback can run, or a menu that runs none of a model."""

    exit_code = 3


class LimitNotMet(NothingCanRun):
    """Limits of a compilation that no plan keeps. The message names the nearest plan, and its figures."""


class WrongAnswer(CollageError):
    """The compiled model's outputs lie outside the tolerance."""

    exit_code = 4


class PassError(CollageError):
    """A pass failed. The message names the pass and those that ran before it."""


class PatternError(CollageError):
    """A pattern that cannot be built as written."""


class ToolchainError(CollageError):
    """Base of the errors that toolchains raise. Becomes an outcome; never ends a run.

    Attributes:
        is_accident: True if the next try may end well: time, memory or processes were short, and no fault was seen.
    """

    is_accident: bool = False


class Unsupported(ToolchainError):
    """The toolchain cannot take this kernel, and says why."""


class CompileError(ToolchainError):
    """The toolchain should have taken this kernel, and failed."""


class WorkerDied(ToolchainError):
    """The toolchain's process crashed, hung, or was killed."""

    is_accident = True


class WorkerCrash(WorkerDied):
    """The process ended: a signal, or an unexpected exit."""

    is_accident = False


class WorkerLost(WorkerCrash):
    """The process could not be started, or something else ended it."""

    is_accident = True


class WorkerTimeout(WorkerDied):
    """The job took longer than it may; the process was killed."""


class WorkerOutOfMemory(WorkerDied):
    """The job asked for more memory than its limit, or it and its child processes held more."""
