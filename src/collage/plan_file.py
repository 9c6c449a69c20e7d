"""Plans as files: which operators become which kernels on which target, for people to read, edit and keep.

A plan file is JSON. It names the operators of the prepared model, so it fits every model that is prepared to the same
operators. It is checked when it is read, and again when a model is built by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from collage._errors import UsageError
from collage.system.codec import RARE, Within, from_json, read_text, to_json

__all__ = ["MOST_BRANCHES", "LabelledPart", "PlanFile", "PlanFileKernel", "read_plan"]

SCHEMA = 1
"""Version of the file."""

# A plan of a hundred thousand operators with long names has half of that.
_MAX_BYTES = 64 << 20
# Records of a tuner, which a tuned kernel is built from.
_LONGEST_TEXT = 16 << 20
MOST_BRANCHES = 64
"""The largest number of a branch. Each branch of a plan takes a processor."""

Names = Annotated[tuple[str, ...], Within(1)]
"""Names of operators, one at least."""


@dataclass(frozen=True, slots=True)
class LabelledPart:
    """A labelled part of a kernel, for toolchains that are given patterns.

    Attributes:
        label: Its label, such as ``cutlass.dense``.
        nodes: Names of its operators.
        parts: Labelled parts of this part.
    """

    label: str
    nodes: Names
    parts: tuple[LabelledPart, ...] = field(default=(), metadata=RARE)


@dataclass(frozen=True, slots=True)
class PlanFileKernel:
    """One kernel of a plan.

    Attributes:
        target: The target, as printed or by its alias.
        nodes: Names of its operators in the prepared model.
        parts: Labelled parts.
        device: The device that it runs on; None if no devices are planned.
        branch: The branch that it belongs to, from 1. Kernels of different branches run at the same time. None if it is
            in none.
        bodies: For an If, a Loop or a Scan with kernels in its bodies: the kernels of each body, by the name of its
            attribute. The target is then the host, which runs the operator.
        rule: The fusion rule that proposed it; nothing depends on it.
        tuned: The records of a tuned kernel.
    """

    target: str
    nodes: Names
    parts: tuple[LabelledPart, ...] = field(default=(), metadata=RARE)
    device: str | None = field(default=None, metadata=RARE)
    branch: Annotated[int, Within(1, MOST_BRANCHES)] | None = field(default=None, metadata=RARE)
    bodies: tuple[tuple[PlanFileKernel, ...], ...] = field(default=(), metadata=RARE)
    rule: str = field(default="", metadata=RARE)
    tuned: str | None = field(default=None, metadata=RARE)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the kernel and of those in its bodies, each once."""
        inner = [target for body in self.bodies for kernel in body for target in kernel.targets]
        return tuple(dict.fromkeys([self.target, *inner]))


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan.

    Attributes:
        kernels: Its kernels, in any order.
        model: SHA-256 of the model that it was made for; empty if it is for any model with these operators.
    """

    kernels: tuple[PlanFileKernel, ...]
    model: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of its kernels, each once."""
        return tuple(dict.fromkeys(target for kernel in self.kernels for target in kernel.targets))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {"schema": SCHEMA, **to_json(self)}

    @classmethod
    def from_json(cls, data: Any) -> PlanFile:
        """Parse the output of ``to_json``.

        Raises:
            UsageError: It is not a plan; the message names the fault.
        """
        fields = dict(data) if isinstance(data, Mapping) else {}
        schema = fields.pop("schema", None)
        if type(schema) is not int or schema != SCHEMA:
            raise UsageError(f"the plan has schema {str(schema)[:40]}, this version reads {SCHEMA}")
        try:
            return from_json(cls, fields, what="the plan", is_strict=True, longest_text=_LONGEST_TEXT)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Raises:
            UsageError: The file cannot be written.
        """
        try:
            Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error


def read_plan(path: str | Path) -> PlanFile:
    """Return the plan that a file holds.

    Raises:
        UsageError: The file cannot be read, or is not a plan.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"{path} is too large to be a plan")
        data = read_text(text)
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a plan: it is not JSON: {str(error)[:200]}") from error
    try:
        return PlanFile.from_json(data)
    except UsageError as error:
        raise UsageError(f"{path} cannot be used: {error}") from error
