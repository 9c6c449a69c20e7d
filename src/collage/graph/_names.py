"""Unique names."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["NameSupply"]

_NOT_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]+")


class NameSupply:
    """Hands out names that were not handed out before.

    Names are C identifiers, since toolchains turn them into symbols and files.
    """

    def __init__(self, prefix: str = "", reserved: Iterable[str] = ()) -> None:
        """Start a supply.

        Args:
            prefix: Put in front of every name, followed by an underscore.
            reserved: Names that must not be handed out.
        """
        self._prefix = f"{prefix}_" if prefix else ""
        self._taken = set(reserved)
        self._next: dict[str, int] = {}

    def reserve(self, names: Iterable[str]) -> None:
        """Declare names as taken."""
        self._taken.update(names)

    def fresh(self, hint: str) -> str:
        """A new name made from ``hint``: the same where possible, else with ``_1``, ``_2`` … added."""
        stem = self._prefix + _NOT_IDENTIFIER.sub("_", hint).strip("_")
        stem = stem if stem and not stem[0].isdigit() else f"_{stem}"
        name = stem
        count = self._next.get(stem, 0)
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._next[stem] = count
        self._taken.add(name)
        return name
