"""Rules of two plain functions: one draws the pattern, the other builds the replacement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx_ir as ir

from collage._errors import PatternError
from collage.pattern._base import Pattern, PatternLike, flatten
from collage.pattern._builder import Builder
from collage.pattern._match import Match
from collage.pattern._nodes import wildcard
from collage.pattern._rewrite import RewriteRule
from collage.pattern._sequence import inner_patterns, together

__all__ = ["rule"]

_GIVEN = ("op", "match")
"""Parameters of a replacement that are not values."""


def rule(
    pattern: Callable[..., PatternLike | Sequence[PatternLike]],
    replacement: Callable[..., Any],
    *,
    name: str = "",
    fuzzy_ops: Iterable[str] = (),
) -> RewriteRule:
    """Make a rule of two functions.

    Args:
        pattern: Draws the pattern. Each of its parameters is a wildcard of that name. It returns the pattern, or several, each
            of whose values is replaced.
        replacement: Builds the replacement: one value, or one for each pattern that was returned; None for no change. It may
            take ``op``, the builder, ``match``, and the values of wildcards and of patterns with names, by their names.
        name: Name in messages; the replacement's own if empty.
        fuzzy_ops: Operator types that the match may skip.

    Raises:
        PatternError: The functions do not fit each other.
    """
    for given, does in ((pattern, "draws the pattern"), (replacement, "builds what replaces it")):
        if isinstance(given, PatternLike) or not callable(given):
            raise PatternError(
                f"rule() takes a function that {does}, such as lambda x: is_op('Relu')(x), not {given!r}"
            )
    # One name is one operator type, not its letters.
    skipped = (fuzzy_ops,) if isinstance(fuzzy_ops, str) else tuple(fuzzy_ops)
    return _FunctionRule(pattern, replacement, name, skipped)


class _FunctionRule(RewriteRule):
    def __init__(
        self,
        pattern: Callable[..., PatternLike | Sequence[PatternLike]],
        replacement: Callable[..., Any],
        name: str,
        fuzzy_ops: tuple[str, ...],
    ) -> None:
        self.name = name or getattr(replacement, "__name__", "rule")
        self.fuzzy_ops = fuzzy_ops
        drawn = pattern(**{parameter: wildcard(parameter) for parameter in inspect.signature(pattern).parameters})
        self._roots = flatten([drawn])
        self.pattern = self._roots[0] if len(self._roots) == 1 else together(*self._roots)
        self._replacement = replacement
        self._wanted = [name for name in inspect.signature(replacement).parameters if name not in _GIVEN]
        self._takes = [name for name in _GIVEN if name in inspect.signature(replacement).parameters]
        known = _names_in(self._roots)
        if unknown := [name for name in self._wanted if name not in known]:
            raise PatternError(
                f"rule {self.name!r}: nothing in the pattern is called {unknown[0]!r}; there are {', '.join(sorted(known))}"
            )

    def callback(self, match: Match, op: Builder) -> list[tuple[PatternLike, ir.Value]] | None:
        """Call the replacement with the values that it names."""
        given: dict[str, Any] = {"op": op, "match": match}
        # A match knows its names, and is not a mapping.
        values = {name: (match[name] if name in match else None) for name in self._wanted}  # noqa: SIM401
        made = self._replacement(**{name: given[name] for name in self._takes}, **values)
        if made is None:
            return None
        new = [made] if isinstance(made, ir.Value) else list(made)
        if len(new) != len(self._roots):
            raise PatternError(f"it returned {len(new)} values for {len(self._roots)} patterns")
        return list(zip(self._roots, new, strict=True))


def _names_in(roots: Iterable[PatternLike]) -> set[str]:
    names: set[str] = set()
    seen: set[Pattern] = set()
    pending = [element for root in roots for element in root.elements]
    while pending:
        pattern = pending.pop()
        if pattern in seen:
            continue
        seen.add(pattern)
        names.update({pattern.name} if pattern.name else ())
        pending += [*inner_patterns(pattern), *(p for c in pattern.constraints for p in getattr(c, "patterns", ()))]
    return names
