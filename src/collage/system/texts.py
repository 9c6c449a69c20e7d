"""Texts for people and by people: counts with their nouns, texts that command no terminal, and whole numbers."""

from __future__ import annotations

__all__ = ["counted", "is_whole_number", "printable"]

# Of the longest numbers that 63 bits hold in any case. Python refuses to read thousands of digits.
_MOST_DIGITS = 18


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 kernel``, ``2,000 kernels``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def is_whole_number(text: str) -> bool:
    """Return True for the digits of a number from 0 up that 63 bits hold."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def printable(text: str) -> str:
    """Return text without control characters. Models, artefacts and databases may come from anywhere."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
