"""Dimensions that are written as expressions of others, as exporters do: ``s0 - 1``, ``2*s0``, ``floor(seq/2) + 1``."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

__all__ = ["evaluate", "length_of_symbol", "polynomial", "substituted", "symbols_of"]

_MOST_CHARACTERS = 512
_MOST_DEPTH = 32
_LARGEST_POWER = 8
_LARGEST_BASE = 1 << 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)(?![\w.])"
    r"|(?P<operator>\*\*|//|[+*/(),])"
    r"|(?P<minus>-)"
    r"|(?P<name>[^\s+*/(),-](?:[^\s+*/(),-]|-(?!\s|$))*))"
)
"""One token. A minus between two other characters is a part of a name, such as ``batch-size``."""

_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "floor": lambda value: Fraction(math.floor(value)),
    "ceiling": lambda value: Fraction(math.ceil(value)),
    "max": max,
    "min": min,
}

_Values = Callable[[str], Any]
_Term = Callable[[_Values], Any]


def symbols_of(dim: str) -> tuple[str, ...]:
    """Return the symbols in a dimension, each once; the dimension itself if it is not an expression."""
    parsed = _parsed(dim)
    return (dim,) if parsed is None else tuple(dict.fromkeys(parsed.names))


def evaluate(dim: str, value_of: _Values) -> int | None:
    """Return the length that a dimension has where its symbols have others; None if that is not a natural number."""
    parsed = _parsed(dim)
    if parsed is None:
        return int(value_of(dim))
    try:
        value = Fraction(parsed.term(value_of))
    except (ArithmeticError, TypeError, ValueError):
        return None
    return int(value) if value.denominator == 1 and value >= 0 else None


def polynomial(dim: str, symbols: Mapping[str, Any]) -> Any | None:
    """Return a dimension as a polynomial of given symbols; None if it is none, or has others.

    Args:
        dim: The dimension.
        symbols: For each name an object that can be added, multiplied, and divided by fractions.
    """
    parsed = _parsed(dim)
    if parsed is None:
        return symbols.get(dim)
    try:
        return parsed.term(symbols.__getitem__)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def length_of_symbol(dim: str, length: int) -> tuple[str, int] | None:
    """Return the symbol of a linear expression, and its length at which the expression is ``length``; None if there is none."""
    names = symbols_of(dim)
    if len(names) != 1 or (parsed := _parsed(dim)) is None:
        return None
    try:
        at_0, at_1 = (Fraction(parsed.term({names[0]: n}.__getitem__)) for n in (0, 1))
        found = (length - at_0) / (at_1 - at_0)
    except (ArithmeticError, TypeError, ValueError):
        return None
    if found.denominator != 1 or found < 0 or evaluate(dim, lambda _: int(found)) != length:
        return None
    return names[0], int(found)


def substituted(dim: str, lengths: Mapping[str, int]) -> int | str:
    """Return a dimension with some symbols replaced by lengths: a length, or an expression of the other symbols.

    An expression whose symbols are all known, and which has no length with these, stays.
    """
    if dim in lengths:
        return lengths[dim]
    names = symbols_of(dim)
    if lengths.keys() >= set(names):
        found = evaluate(dim, lengths.__getitem__)
        return dim if found is None else found
    if lengths.keys().isdisjoint(names):
        return dim
    return "".join(
        f"{text[: len(text) - len(token)]}{lengths.get(token, token) if kind == 'name' else token}"
        for kind, token, text in _tokens(dim)
    )


def _tokens(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the token, and the token with the spaces before it; raises ValueError where none is."""
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(text)
        kind = str(found.lastgroup)
        yield kind, found[kind], found[0]
        position = found.end()


class _Parser:
    """A parser by recursive descent: sums of products of powers of numbers, symbols, functions and brackets.

    Args:
        text: The expression.

    Raises:
        ValueError: It is none.

    Attributes:
        names: The symbols, in the order in which they occur.
        term: Computes the expression, given the lengths of symbols.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError("too long")
        self._rest = [(kind, token) for kind, token, _ in _tokens(text)][::-1]
        self._depth = 0
        self.names: list[str] = []
        self.term = self._sum()
        if self._rest:
            raise ValueError(text)

    def _peek(self) -> str:
        kind, token = self._rest[-1] if self._rest else ("", "")
        return token if kind in ("operator", "minus") else ""

    def _take(self, token: str) -> None:
        if self._peek() != token:
            raise ValueError(token)
        self._rest.pop()

    def _sum(self) -> _Term:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ValueError("too deep")
        terms = [self._product(-1 if self._took("-") else 1)]
        while (sign := self._peek()) in ("+", "-"):
            self._take(sign)
            terms.append(self._product(-1 if sign == "-" else 1))
        self._depth -= 1
        return lambda values: sum((term(values) for term in terms), Fraction(0))

    def _took(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._take(token)
        return True

    def _product(self, sign: int) -> _Term:
        product = self._power()
        while (operator := self._peek()) in ("*", "/", "//"):
            self._take(operator)
            if operator != "*" and (not self._rest or self._rest[-1][0] != "number"):
                raise ValueError(operator)  # What is divided by a name, such as N/A, is one itself.
            product = _combined(operator, product, self._power())
        return lambda values: sign * product(values)

    def _power(self) -> _Term:
        base = self._factor()
        if not self._took("**"):
            return base
        kind, token = self._rest.pop() if self._rest else ("", "")
        if kind != "number" or len(token) > 1 or int(token) > _LARGEST_POWER:
            raise ValueError(token)
        power = int(token)
        return lambda values: _raised(base(values), power)

    def _factor(self) -> _Term:
        kind, token = self._rest.pop() if self._rest else ("", "")
        if kind == "number":
            number = Fraction(int(token))
            return lambda _: number
        if kind == "operator" and token == "(":
            inner = self._sum()
            self._take(")")
            return inner
        if kind != "name":
            raise ValueError(token)
        if self._took("("):
            return self._call(token)
        self.names.append(token)
        return lambda values: values(token)

    def _call(self, name: str) -> _Term:
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise ValueError(name)
        arguments = [self._sum()]
        while self._took(","):
            arguments.append(self._sum())
        self._take(")")
        if (len(arguments) == 1) != (name.lower() in ("floor", "ceiling")):
            raise ValueError(name)
        return lambda values: function(*(argument(values) for argument in arguments))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> _Parser | None:
    """Return the parsed expression, or None if the text is a name of its own."""
    try:
        return _Parser(text)
    except ValueError:
        return None


def _raised(base: Any, power: int) -> Any:
    if abs(base) > _LARGEST_BASE:
        raise OverflowError(base)
    return base**power


def _combined(operator: str, left: _Term, right: _Term) -> _Term:
    if operator == "*":
        return lambda values: left(values) * right(values)
    if operator == "/":
        return lambda values: left(values) * Fraction(1, right(values))
    return lambda values: Fraction(left(values) // right(values))
