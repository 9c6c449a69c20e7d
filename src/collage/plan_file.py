"""Plans as files: which operators become which kernels on which target, for people to read, edit and keep.

A plan file is JSON. It names the operators of the prepared model, so it fits every model that is prepared to the same
operators. It is checked when it is read, and again when a model is built by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage._errors import UsageError

__all__ = ["MOST_BRANCHES", "LabelledPart", "PlanFile", "PlanFileKernel", "read_plan"]

_SCHEMA = 2
"""The newest version: in it, kernels have bodies. A plan without any is written as version 1."""

_MAX_BYTES = 64 << 20
_MAX_DEPTH = 20
MOST_BRANCHES = 64
"""The largest number of a branch. Each branch of a plan takes a processor."""


@dataclass(frozen=True, slots=True)
class LabelledPart:
    """A labelled part of a kernel, for toolchains that are given patterns.

    Attributes:
        label: Its label, such as ``cutlass.dense``.
        nodes: Names of its operators.
        parts: Labelled parts of this part.
    """

    label: str
    nodes: tuple[str, ...]
    parts: tuple[LabelledPart, ...] = ()


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
    """

    target: str
    nodes: tuple[str, ...]
    parts: tuple[LabelledPart, ...] = ()
    device: str | None = None
    branch: int | None = None
    bodies: tuple[tuple[PlanFileKernel, ...], ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the kernel and of those in its bodies, each once."""
        inner = [target for body in self.bodies for kernel in body for target in kernel.targets]
        return tuple(dict.fromkeys([self.target, *inner]))

    def to_json(self) -> dict[str, Any]:
        """Return the kernel as JSON values."""
        return {
            "target": self.target,
            "nodes": list(self.nodes),
            **({"parts": [_part_to_json(part) for part in self.parts]} if self.parts else {}),
            **({"device": self.device} if self.device is not None else {}),
            **({"branch": self.branch} if self.branch is not None else {}),
            **({"bodies": [[kernel.to_json() for kernel in body] for body in self.bodies]} if self.bodies else {}),
        }


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
        return {
            "schema": _SCHEMA if any(kernel.bodies for kernel in self.kernels) else 1,
            "model": self.model,
            "kernels": [kernel.to_json() for kernel in self.kernels],
        }

    @classmethod
    def from_json(cls, data: Any) -> PlanFile:
        """Parse the output of ``to_json``.

        Raises:
            UsageError: It is not a plan; the message names the fault.
        """
        _check_keys(data, "the plan", {"schema", "kernels"}, {"model"})
        if type(data["schema"]) is not int or not 1 <= data["schema"] <= _SCHEMA:
            raise UsageError(f"the plan has schema {str(data['schema'])[:40]}, this version reads 1 to {_SCHEMA}")
        kernels = data["kernels"]
        if not isinstance(kernels, list):
            raise UsageError("'kernels' of the plan is not a list")
        return cls(
            tuple(_kernel(each, f"kernel {number} of the plan") for number, each in enumerate(kernels, 1)),
            _text(data.get("model", ""), "'model' of the plan"),
        )

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
        data = json.loads(text.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a plan: it is not JSON: {str(error)[:200]}") from error
    try:
        return PlanFile.from_json(data)
    except UsageError as error:
        raise UsageError(f"{path} cannot be used: {error}") from error


def _kernel(data: Any, where: str, depth: int = 0) -> PlanFileKernel:
    _check_keys(data, where, {"target", "nodes"}, {"parts", "device", "branch", "bodies"})
    device, branch, bodies = data.get("device"), data.get("branch"), data.get("bodies", [])
    if branch is not None and (type(branch) is not int or not 1 <= branch <= MOST_BRANCHES):
        raise UsageError(f"'branch' of {where} is not a number from 1 to {MOST_BRANCHES}")
    if not isinstance(bodies, list) or not all(isinstance(body, list) for body in bodies) or depth > _MAX_DEPTH:
        raise UsageError(f"'bodies' of {where} is not a list of lists, or nested too deeply")
    return PlanFileKernel(
        _text(data["target"], f"'target' of {where}"),
        _names(data["nodes"], where),
        _parts(data.get("parts", []), where, 0),
        None if device is None else _text(device, f"'device' of {where}"),
        branch,
        tuple(tuple(_kernel(each, f"a body of {where}", depth + 1) for each in body) for body in bodies),
    )


def _parts(data: Any, where: str, depth: int) -> tuple[LabelledPart, ...]:
    if not isinstance(data, list) or depth > _MAX_DEPTH:
        raise UsageError(f"'parts' of {where} is not a list, or nested too deeply")
    parts = []
    for each in data:
        _check_keys(each, f"a part of {where}", {"label", "nodes"}, {"parts"})
        label = _text(each["label"], f"'label' of a part of {where}")
        parts.append(LabelledPart(label, _names(each["nodes"], where), _parts(each.get("parts", []), where, depth + 1)))
    return tuple(parts)


def _part_to_json(part: LabelledPart) -> dict[str, Any]:
    more = {"parts": [_part_to_json(each) for each in part.parts]} if part.parts else {}
    return {"label": part.label, "nodes": list(part.nodes), **more}


def _names(data: Any, where: str) -> tuple[str, ...]:
    if not isinstance(data, list) or not data or not all(isinstance(name, str) for name in data):
        raise UsageError(f"'nodes' of {where} is not a list of names of operators")
    return tuple(data)


def _text(data: Any, what: str) -> str:
    if not isinstance(data, str):
        raise UsageError(f"{what} is not a text")
    return data


def _check_keys(data: Any, where: str, needed: set[str], optional: set[str]) -> None:
    if not isinstance(data, Mapping):
        raise UsageError(f"{where} is not a JSON object")
    if missing := sorted(needed - set(data)):
        raise UsageError(f"{where} has no {missing[0]!r}")
    if unknown := sorted(set(map(str, data)) - needed - optional):
        known = ", ".join(sorted(needed | optional))
        raise UsageError(f"{where} has {unknown[0][:80]!r}, which is not known; known are {known}")
