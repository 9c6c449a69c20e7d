"""Passes by name, so that passes can require each other and users can switch them on and off."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from collage._errors import ConfigError

if TYPE_CHECKING:
    from collage.transform._pass import Pass

__all__ = ["ENTRY_POINT_GROUP", "check_pass_names", "get_pass", "list_passes", "note_name", "register_pass"]

ENTRY_POINT_GROUP = "collage.passes"
"""Entry points of this group are factories of passes, found without an import."""

_FACTORIES: dict[str, Callable[[], Pass]] = {}
_NAMES: set[str] = set()


def register_pass(name: str, factory: Pass | Callable[[], Pass], *, override: bool = False) -> None:
    """Makes a pass known by name.

    Args:
        name: The name under which other passes require it; the one that the pass gives itself.
        factory: The pass, or what makes it when called without arguments.
        override: Replace what has the name.

    Raises:
        ConfigError: The name is taken.
    """
    if name in _FACTORIES and not override:
        raise ConfigError(f"a pass called {name!r} is already registered; pass override=True to replace it")
    from collage.transform._pass import Pass

    made = factory
    _FACTORIES[name] = (lambda: made) if isinstance(made, Pass) else made
    note_name(name)


def get_pass(name: str) -> Pass:
    """Makes the pass that was registered under a name.

    Raises:
        ConfigError: There is none; near names are suggested. Or its package cannot be imported. Or it has another
            name, so that switching off the one that it was registered under would switch off nothing.
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        found = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == name]
        if not found:
            raise ConfigError(_unknown(name, list_passes()))
        factory = _load(found[0])
        register_pass(name, factory)
        factory = _FACTORIES[name]
    from collage.transform._pass import as_pass

    made = as_pass(factory())
    if made.info.name != name:
        raise ConfigError(f"the pass that was registered as {name!r} is called {made.info.name!r}; register it as that")
    return made


def _load(entry: EntryPoint) -> Callable[[], Pass]:
    try:
        factory: Callable[[], Pass] = entry.load()
    except Exception as error:
        raise ConfigError(f"pass {entry.name!r} cannot be loaded from {entry.value!r}: {error}") from error
    return factory


def list_passes() -> tuple[str, ...]:
    """Names of all passes that ``get_pass`` can make."""
    return tuple(sorted({*_FACTORIES, *entry_points(group=ENTRY_POINT_GROUP).names}))


def note_name(name: str) -> None:
    """Remembers that a pass of this name exists, registered or not, so that it may be required or disabled."""
    _NAMES.add(name)


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
    for name in sorted(checked - _NAMES):
        if name not in list_passes():
            raise ConfigError(f"{place}: {_unknown(name, {*_NAMES, *list_passes()})}")
    return checked


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; known: {', '.join(sorted(known))}"
    return f"there is no pass called {name!r}{hint}"
