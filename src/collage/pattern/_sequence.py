"""Sequences of patterns, copies of them, and what is said about several at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from collage._errors import PatternError
from collage.pattern import _constraints
from collage.pattern._base import Pattern, PatternLike, _relate, flatten
from collage.pattern._nodes import NotPattern, OrPattern, wildcard


class Seq(PatternLike):
    """Patterns each used by the next. As an operand, or to match, it stands for its last element.

    ``a ^ b`` and ``a > b`` give one; ``Seq(a, b, c)`` relates elements that are not related yet.
    """

    _constraint: type[_constraints.UsedBy] = _constraints.UsedBy

    def __init__(self, *parts: PatternLike) -> None:
        if not parts:
            raise PatternError("a sequence needs at least one pattern")
        for producer, user in pairwise(parts):
            if not _related(producer.last, user.first):
                _relate(self._constraint(producer.last, user.first, None))
        self._elements = tuple(element for part in parts for element in part.elements)

    @property
    def first(self) -> Pattern:
        """The first element."""
        return self._elements[0]

    @property
    def last(self) -> Pattern:
        """The last element."""
        return self._elements[-1]

    @property
    def elements(self) -> tuple[Pattern, ...]:
        """All elements in the order of data flow."""
        return self._elements

    def __getitem__(self, index: int) -> Pattern:
        return self._elements[index]

    def __len__(self) -> int:
        return len(self._elements)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._elements))})"


class PdomSeq(Seq):
    """Patterns each used by nothing but the next, so that each post-dominates those before it."""

    _constraint = _constraints.OnlyUsedBy


class Group(PatternLike):
    """Patterns that belong to one match without being related otherwise, such as several outputs.

    Attributes:
        members: The patterns; the first one is the root of a match.
    """

    def __init__(self, members: tuple[Pattern, ...]) -> None:
        self.members = members

    @property
    def first(self) -> Pattern:
        """The first member."""
        return self.members[0]

    @property
    def last(self) -> Pattern:
        """The first member too: it is the root of a match."""
        return self.members[0]

    @property
    def elements(self) -> tuple[Pattern, ...]:
        """All members."""
        return self.members

    def __repr__(self) -> str:
        return f"together({', '.join(map(repr, self.members))})"


def together(*patterns: PatternLike | Iterable[Any]) -> Group:
    """Patterns to be matched together: a pattern with several outputs. The first one is the root."""
    members = tuple(pattern.last for pattern in flatten(patterns))
    if not members:
        raise PatternError("together() needs at least one pattern")
    _relate(_constraints.Together(members))
    return Group(members)


def fork_to(*users: PatternLike | Iterable[Any]) -> PatternLike:
    """A value, any value, that is used by each of the users. Returns the pattern of that value."""
    return wildcard().fork_to(*users)


def dominates(parent: PatternLike, path: Pattern, child: PatternLike) -> Pattern:
    """``child.dominates(parent, path)``, as Relay writes it. Returns the pattern of the child."""
    return child.dominates(parent, path).last


def attr_eq(*patterns: PatternLike | Iterable[Any], names: Sequence[str] | None = None) -> tuple[PatternLike, ...]:
    """The patterns' nodes have equal attributes; sequences are compared element by element. Returns the patterns."""
    compared = flatten(patterns)
    lengths = {len(pattern.elements) for pattern in compared}
    if len(lengths) > 1:
        raise PatternError(f"attr_eq compares sequences element by element, but their lengths are {sorted(lengths)}")
    for column in zip(*(pattern.elements for pattern in compared), strict=True):
        _relate(_constraints.AttrEq(tuple(column), None if names is None else tuple(names)))
    return tuple(compared)


def dup(pattern: PatternLike, share: Iterable[PatternLike] = ()) -> Any:
    """A copy of a pattern with all operands and constraints that it is connected to. Names are not copied.

    Args:
        pattern: A pattern or a sequence; the copy is of the same type.
        share: Patterns that the copy has in common with the original, such as a common input.
    """
    if not isinstance(pattern, PatternLike):
        raise PatternError(f"{pattern!r} is no pattern to copy; write dup(is_op(...)) or make(3, is_op(...))")
    copies: dict[Pattern, Pattern] = {shared.last: shared.last for shared in share}
    fixed = set(copies)

    def copy(original: Pattern) -> Pattern:
        unfinished = [original]
        while unfinished:
            current = unfinished[-1]
            missing = [inner for inner in inner_patterns(current) if inner not in copies]
            unfinished.extend(missing)
            if not missing:
                unfinished.pop()
                if current not in copies:
                    copies[current] = current.clone(copies.__getitem__)
        return copies[original]

    done: set[Pattern] = set(fixed)
    pending = [element for element in reversed(pattern.elements)]
    copied: dict[int, Any] = {}
    while pending:
        original = pending.pop()
        if original in done:
            continue
        done.add(original)
        copy(original)
        pending.extend(reversed(inner_patterns(original)))
        for constraint in original.constraints:
            if isinstance(constraint, _constraints.NonLeafExternUse):
                copies[original].constraints.append(constraint)
            elif id(constraint) not in copied:
                copied[id(constraint)] = constraint
                pending.extend(reversed([p for p in constraint.patterns if p not in fixed]))
    for constraint in copied.values():
        _relate(_copied(constraint, copy), on=tuple(copy(p) for p in constraint.patterns))
    for original in done - fixed:
        copies[original].is_unique = original.is_unique
    if isinstance(pattern, Pattern):
        return copies[pattern]
    new = object.__new__(type(pattern))
    elements = tuple(copies[element] for element in pattern.elements)
    new.__dict__.update({"members" if isinstance(pattern, Group) else "_elements": elements})
    return new


def make(count: int, pattern: PatternLike) -> tuple[Any, ...]:
    """``count`` patterns alike: the given one and copies of it."""
    if count < 1:
        raise PatternError(f"make({count}, ...): at least one is needed")
    return (pattern, *(dup(pattern) for _ in range(count - 1)))


def inner_patterns(pattern: Pattern) -> tuple[Pattern, ...]:
    """All patterns that a pattern is built of, required or not."""
    if isinstance(pattern, OrPattern):
        return pattern.alternatives
    if isinstance(pattern, NotPattern):
        return (pattern.refused,)
    return pattern.children


def _copied(constraint: _constraints.Constraint, copy: Any) -> _constraints.Constraint:
    fields: dict[str, Any] = {}
    for name in (slot for cls in type(constraint).__mro__ for slot in getattr(cls, "__slots__", ())):
        value = getattr(constraint, name)
        if isinstance(value, Pattern):
            value = copy(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Pattern):
            value = tuple(copy(item) for item in value)
        fields[name] = value
    return type(constraint)(**fields)


def _related(producer: Pattern, user: Pattern) -> bool:
    return any(
        isinstance(constraint, _constraints.UsedBy) and constraint.producer is producer and constraint.user is user
        for constraint in producer.constraints
    )
