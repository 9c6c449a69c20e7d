"""Groups of patterns, copies of patterns, and functions that relate several at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collage._errors import PatternError
from collage.pattern import _constraints
from collage.pattern._base import Pattern, PatternLike, flatten, relate
from collage.pattern._nodes import NotPattern, OrPattern, wildcard


class Group(PatternLike):
    """Patterns that belong to one match and have no other relation, such as several outputs.

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
    """Patterns to be matched together: a pattern with several outputs. The first one is the root.

    Raises:
        PatternError: There are none.
    """
    members = tuple(pattern.last for pattern in flatten(patterns))
    if not members:
        raise PatternError("together() needs at least one pattern")
    relate(_constraints.Together(members))
    return Group(members)


def fork_to(*users: PatternLike | Iterable[Any]) -> PatternLike:
    """A value, any value, that is used by each of the users. Returns the pattern of that value."""
    return wildcard().fork_to(*users)


def dominates(parent: PatternLike, path: Pattern, child: PatternLike) -> Pattern:
    """``child.dominates(parent, path)``, as Relay writes it. Returns the pattern of the child."""
    return child.dominates(parent, path).last


def dup(pattern: PatternLike, share: Iterable[PatternLike] = ()) -> Any:
    """A copy of a pattern with all operands and constraints that it is connected to. Names are not copied.

    Args:
        pattern: A pattern or a sequence; the copy is of the same type.
        share: Patterns that the copy has in common with the original, such as a common input.

    Raises:
        PatternError: It is not a pattern.
    """
    if not isinstance(pattern, PatternLike):
        raise PatternError(f"{pattern!r} is not a pattern to copy; write dup(is_op(...)) or make(3, is_op(...))")
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
        relate(_copied(constraint, copy), on=tuple(copy(p) for p in constraint.patterns))
    for original in done - fixed:
        copies[original].is_unique = original.is_unique
    if isinstance(pattern, Pattern):
        return copies[pattern]
    new = object.__new__(type(pattern))
    elements = tuple(copies[element] for element in pattern.elements)
    new.__dict__.update({"members" if isinstance(pattern, Group) else "_elements": elements})
    return new


def make(count: int, pattern: PatternLike) -> tuple[Any, ...]:
    """Return ``count`` equal patterns: the given one and copies of it.

    Raises:
        PatternError: ``count`` is less than 1.
    """
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
