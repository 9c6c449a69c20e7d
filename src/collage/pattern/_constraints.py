"""Constraints between patterns. Values only; ``_check`` says when they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage._errors import PatternError

if TYPE_CHECKING:
    from collage.pattern._base import Pattern


@dataclass(frozen=True, eq=False, slots=True)
class Constraint:
    """Something that holds between patterns.

    A relation of two is idle where one of them has no part in the match (it belongs to an alternative that was not
    chosen); what is said of several holds among those that have.
    """

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns that take part, each of which leads to the others."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, slots=True)
class UsedBy(Constraint):
    """``producer ^ user``; ``index`` is the operand's number, None for any."""

    producer: Pattern
    user: Pattern
    index: int | None

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Producer and user."""
        return (self.producer, self.user)


@dataclass(frozen=True, eq=False, slots=True)
class OnlyUsedBy(UsedBy):
    """``producer >> user``."""


@dataclass(frozen=True, eq=False, slots=True)
class AttrEq(Constraint):
    """All nodes have equal attributes; ``names`` None means all attributes."""

    nodes: tuple[Pattern, ...]
    names: tuple[str, ...] | None

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The nodes' patterns."""
        return self.nodes


@dataclass(frozen=True, eq=False, slots=True)
class SameShape(Constraint):
    """All values have known, equal shapes."""

    values: tuple[Pattern, ...]

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The values' patterns."""
        return self.values


@dataclass(frozen=True, eq=False, slots=True)
class Distinct(Constraint):
    """All values differ."""

    values: tuple[Pattern, ...]

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The values' patterns."""
        return self.values


@dataclass(frozen=True, eq=False, slots=True)
class Relation(Constraint):
    """The values pass a test together."""

    values: tuple[Pattern, ...]
    test: Callable[..., bool]
    text: str

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The values' patterns."""
        return self.values


@dataclass(frozen=True, eq=False, slots=True)
class Together(Constraint):
    """The patterns belong to one match; there is no further condition."""

    members: tuple[Pattern, ...]

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The members."""
        return self.members


@dataclass(frozen=True, eq=False, slots=True)
class Uniq(Constraint):
    """The value has exactly one user and is not an output."""

    value: Pattern

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The value's pattern."""
        return (self.value,)


@dataclass(frozen=True, eq=False, slots=True)
class ExternUse(Constraint):
    """Condition on uses of the value outside the match: True requires one, False forbids it, None allows it."""

    value: Pattern
    must: bool | None

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The value's pattern."""
        return (self.value,)


@dataclass(frozen=True, eq=False, slots=True)
class NoConsumer(Constraint):
    """No user of the value matches ``excluded``."""

    value: Pattern
    excluded: Pattern

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The value's pattern; what is excluded is not a part of the match."""
        return (self.value,)


@dataclass(frozen=True, eq=False, slots=True)
class Dominates(Constraint):
    """``child`` post-dominates ``parent``, through nodes that match ``path``."""

    child: Pattern
    parent: Pattern
    path: Pattern

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Child and parent; the path is matched again at each of its nodes."""
        return (self.child, self.parent)


@dataclass(frozen=True, slots=True)
class NonLeafExternUse:
    """For every matched node that another matched node uses: do nodes outside use it too?

    ``extern_use`` on a pattern overrides it for that pattern.

    Attributes:
        must: True must, False must not, None may (the default without this constraint).
    """

    must: bool | None

    def __post_init__(self) -> None:
        check_mode(self.must)


def check_mode(must: bool | None) -> None:
    """Refuse anything but the three modes of external use."""
    if must not in (True, False, None):
        raise PatternError(f"external use is True (must), False (must not) or None (may), not {must!r}")
