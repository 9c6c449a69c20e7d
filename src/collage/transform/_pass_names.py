"""Names of passes: those that exist, and those that packages offer without being imported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.metadata import entry_points

from collage._errors import ConfigError

__all__ = ["ENTRY_POINT_GROUP", "check_pass_names", "installed_names", "note_name", "unknown_pass"]

ENTRY_POINT_GROUP = "collage.passes"
"""Entry points of this group are factories of passes, found without an import."""

_NAMES: set[str] = set()


def note_name(name: str) -> None:
    """Remembers that a pass of this name exists, registered or not, so that it may be required or disabled."""
    _NAMES.add(name)


def installed_names() -> frozenset[str]:
    """Names of the passes that installed packages offer as entry points."""
    return frozenset(entry_points(group=ENTRY_POINT_GROUP).names)


def check_pass_names(names: Iterable[str], place: str) -> frozenset[str]:
    """The names as a set.

    Raises:
        ConfigError: No pass of a name was ever made or registered; near names are suggested.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"{place} is a list of names, not {names!r}")
    checked = frozenset(names)
    if not all(isinstance(name, str) for name in checked):
        raise ConfigError(f"{place} is a list of names, not of passes: {sorted(map(repr, checked))}")
    if new := checked - _NAMES:
        known = _NAMES | installed_names()
        for name in sorted(new - known):
            raise ConfigError(f"{place}: {unknown_pass(name, known)}")
    return checked


def unknown_pass(name: str, known: Iterable[str]) -> str:
    """A message for a name that no pass has, with the names that are most like it."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; known: {', '.join(sorted(known))}"
    return f"there is no pass called {name!r}{hint}"
