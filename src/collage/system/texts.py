"""Texts for people: counts with their nouns, and texts that command no terminal."""

from __future__ import annotations

__all__ = ["counted", "printable"]


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 kernel``, ``2,000 kernels``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    """Return text without control characters. Models, artefacts and databases may come from anywhere."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
