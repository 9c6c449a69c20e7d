"""SEScope: the device and memory of a value, or the device and target of an operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collage._errors import TargetError
from collage.target import DEVICE_TYPES, Target

__all__ = ["ANYWHERE", "SEScope", "ScopeLike", "VirtualDevice", "as_scope", "kind_of"]

_TEXT = re.compile(r"(?P<device>[^:/\[\]\s]+)(:(?P<id>[^/\[\]\s]+))?(\[(?P<target>.*)\])?(/(?P<memory>[^\[\]\s]+))?")
_MEMORY = re.compile(r"[A-Za-z0-9_.\-]+")
_FREE = "?"


@dataclass(frozen=True, slots=True)
class SEScope:
    """A storage or execution scope; a field that is None is free.

    Written ``cuda:0[cuda -libs=cudnn]/global.texture``; free fields are left out, or ``?`` for the device.

    Attributes:
        device_type: ``cpu``, ``cuda``, or one that a toolchain registered. Follows from the target where that is given.
        virtual_device_id: Number of the device among those of that type. The runtime says what it stands for: a GPU,
            or a set of cores.
        target: The target that code is compiled for.
        memory_scope: A memory of the device, by name; the names are not interpreted.
    """

    device_type: str | None = None
    virtual_device_id: int | None = None
    target: Target | None = None
    memory_scope: str | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            implied = DEVICE_TYPES[self.target.kind]
            if self.device_type not in (None, implied):
                raise TargetError(f"target {str(self.target)!r} is for device {implied!r}, not {self.device_type!r}")
            object.__setattr__(self, "device_type", implied)
        if self.device_type is not None and self.device_type not in DEVICE_TYPES.values():
            raise TargetError(_unknown_device(self.device_type))
        number = self.virtual_device_id
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise TargetError(f"a virtual device id is a number from 0, not {number!r}")
        if self.memory_scope is not None and not _MEMORY.fullmatch(self.memory_scope):
            raise TargetError(
                f"{self.memory_scope!r} is not a name of a memory scope; use letters, digits, '.', '_', '-'"
            )

    @classmethod
    def parse(cls, text: str) -> SEScope:
        """Parse the printed form of a scope; also a plain device (``cpu``, ``cuda:1``) and a target string.

        Raises:
            TargetError: The text is none of these, or its target is for another device.
        """
        text = text.strip()
        head = text.split(maxsplit=1)[0] if text else ""
        if head in DEVICE_TYPES and (head not in DEVICE_TYPES.values() or " " in text):
            return cls(target=Target.parse(text))
        found = _TEXT.fullmatch(text)
        if found is None:
            raise TargetError(f"cannot read scope {text!r}; write for example 'cpu:1', 'cuda' or 'cuda:0/global'")
        number = found["id"]
        if number not in (None, _FREE) and not (number.isascii() and number.isdigit()):
            raise TargetError(f"cannot read scope {text!r}: {number!r} is not a device number")
        return cls(
            None if found["device"] == _FREE else found["device"],
            None if number in (None, _FREE) else int(number),
            None if found["target"] is None else Target.parse(found["target"]),
            found["memory"],
        )

    @property
    def is_free(self) -> bool:
        """True if nothing is known: no field is constrained."""
        return self == ANYWHERE

    @property
    def device(self) -> SEScope:
        """Its device alone: type and id."""
        return SEScope(self.device_type, self.virtual_device_id)

    @property
    def storage(self) -> SEScope:
        """The place of data: device and memory, whatever code computes it."""
        return SEScope(self.device_type, self.virtual_device_id, None, self.memory_scope)

    def join(self, other: SEScope) -> SEScope | None:
        """The scope with the constraints of both, or None if they contradict each other.

        Of two targets one may refine the other (a toolchain for a device's plain target); then the finer one counts.
        """
        if self.conflict(other) is not None:
            return None
        target = self.target or other.target
        if self.target is not None and other.target is not None:
            target = self.target if self.target.refines(other.target) else other.target
        return SEScope(
            self.device_type or other.device_type,
            other.virtual_device_id if self.virtual_device_id is None else self.virtual_device_id,
            target,
            self.memory_scope or other.memory_scope,
        )

    def conflict(self, other: SEScope) -> str | None:
        """Name of the first field in which two scopes contradict each other, or None."""
        for name in ("device_type", "virtual_device_id", "target", "memory_scope"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None or theirs is None or mine == theirs:
                continue
            if name == "target" and (mine.refines(theirs) or theirs.refines(mine)):
                continue
            return name
        return None

    def default(self, other: SEScope) -> SEScope:
        """This scope with its free fields taken from another.

        The other's id, target and memory are those of its device: they are taken only if the device agrees.
        """
        device_type = self.device_type or other.device_type
        number = self.virtual_device_id
        if device_type != other.device_type:
            return SEScope(device_type, number, self.target, self.memory_scope)
        if number is None:
            number = other.virtual_device_id
        if number != other.virtual_device_id:
            return SEScope(device_type, number, self.target, self.memory_scope)
        return SEScope(device_type, number, self.target or other.target, self.memory_scope or other.memory_scope)

    def __str__(self) -> str:
        text = self.device_type or _FREE
        if self.virtual_device_id is not None:
            text += f":{self.virtual_device_id}"
        if self.target is not None:
            text += f"[{self.target}]"
        return text if self.memory_scope is None else f"{text}/{self.memory_scope}"


VirtualDevice = SEScope
"""The name that the field later gave to ``SEScope``."""

ScopeLike = SEScope | Target | str
"""Anything that stands for a scope: a scope, a target, a device name such as ``cpu:1``, or their texts."""

ANYWHERE = SEScope()
"""The scope of which nothing is known."""


def as_scope(scope: ScopeLike) -> SEScope:
    """The scope that is meant.

    Raises:
        TargetError: A text that cannot be read.
    """
    if isinstance(scope, SEScope):
        return scope
    if isinstance(scope, Target):
        return SEScope(target=scope)
    if isinstance(scope, str):
        return SEScope.parse(scope)
    raise TargetError(f"a scope is an SEScope, a Target or a text such as 'cpu:1', not {scope!r}")


def kind_of(device_type: str) -> str:
    """Return the target kind whose native code generator serves a device type: the one that was registered first."""
    return next(kind for kind, served in DEVICE_TYPES.items() if served == device_type)


def _unknown_device(name: str) -> str:
    return f"there is no device type {name!r}; known: {', '.join(dict.fromkeys(DEVICE_TYPES.values()))}"
