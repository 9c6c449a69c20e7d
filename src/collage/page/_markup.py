"""Markup that is built, not pasted: every text is escaped unless it is markup already.

All texts of a page may come from an untrusted artefact. A text becomes part of a page only through ``tag`` and ``join``.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Markup", "clean", "join", "tag"]

_VOID = frozenset(("br", "col", "input", "link", "meta"))
_LONGEST_TEXT = 2000


class Markup(str):
    """A text that is markup: HTML or SVG that this package made."""

    __slots__ = ()


def clean(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return a text without control characters and marks of direction, shortened if it is long.

    A mark of direction makes a text look like another one, and control characters are not allowed in markup.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def join(*parts: str | Iterable[str]) -> Markup:
    """Return parts one after the other; those that are not markup are escaped."""
    flat: list[str] = []
    for part in parts:
        flat += [part] if isinstance(part, str) else part
    return Markup("".join(each if isinstance(each, Markup) else html.escape(clean(each)) for each in flat))


def tag(element: str, /, *parts: str | Iterable[str], **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    Args:
        element: Its name.
        parts: Its contents: texts, which are escaped, and markup.
        attributes: Its attributes. A trailing underscore is dropped, others become hyphens. None and False leave an
            attribute out, True gives it no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    opening = f"<{element}{written}>"
    return Markup(opening if element in _VOID else f"{opening}{join(*parts)}</{element}>")


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    text = value if isinstance(value, str) else f"{value:.6g}"
    return f' {name}="{html.escape(clean(text))}"'
