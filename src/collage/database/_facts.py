"""Facts: knowledge other than timings. A fact has a kind, which says the form of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from collage.database._rows import MOST_TEXT
from collage.system.codec import Share, from_json, to_json

__all__ = ["MACHINE", "QUARANTINED", "FactKind", "QuarantinedBuild"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FactKind(Generic[_T]):
    """One kind of fact.

    A database may have been damaged, or come from anywhere. So a value is handed out only if it has the form of its kind.

    Attributes:
        name: The name of the kind, which is a part of the name of each fact.
        form: The type of the values: a dataclass, or another that ``collage.system.codec`` knows.
    """

    name: str
    form: Any

    def write(self, value: _T) -> Any:
        """Return a value as JSON values."""
        return to_json(value)

    def read(self, data: Any) -> _T | None:
        """Return the value that ``write`` wrote, or None if it is damaged."""
        try:
            value: _T = from_json(self.form, data, longest_text=MOST_TEXT)
        except ValueError:
            return None
        return value


@dataclass(frozen=True, slots=True)
class QuarantinedBuild:
    """A build of a toolchain that is not used, since its processes died.

    Attributes:
        since_s: The time from which on, in seconds since 1970.
        reason: The reason.
    """

    since_s: Share
    reason: str


QUARANTINED: FactKind[QuarantinedBuild] = FactKind("quarantine", QuarantinedBuild)
MACHINE: FactKind[Mapping[str, Any]] = FactKind("machine", Mapping[str, Any])
