"""From a pattern to a plan: which patterns take part, which only where an alternative is chosen, and how they touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from collage._errors import PatternError
from collage.pattern._base import Pattern, PatternLike
from collage.pattern._constraints import Constraint, Dominates, NoConsumer, NonLeafExternUse, Together, UsedBy
from collage.pattern._nodes import AndPattern, LeafPattern, NotPattern, OpPattern, OrPattern, OutputPattern

Alternative = tuple[OrPattern, int]


@dataclass(slots=True)
class Plan:
    """A pattern made ready for the solver.

    Attributes:
        root: The pattern that lies where ``match`` looks.
        always: Patterns that take part in every match.
        chosen: Patterns that take part where an alternative is chosen.
        constraints: Constraints by pattern that takes part.
        parents: Operators that have a pattern as an operand, by pattern.
        claims: By pattern, the one in whose name it claims a node: parts of a conjunction share theirs.
        non_leaf: True if inner nodes must be used outside, False if they must not, None if they may.
        order: All patterns that may take part, for messages and for comparing matches.
        inner: Plans of the patterns that are matched in a search of their own: refused, excluded, and path patterns.
        plain: Wildcards that are one operand of one operator and nothing else: which value each gets decides nothing.
        groups: Interchangeable patterns, found on first use.
        moved: All patterns that change places with an interchangeable pattern, by that pattern.
    """

    root: Pattern
    always: tuple[Pattern, ...] = ()
    chosen: dict[Alternative, tuple[Pattern, ...]] = field(default_factory=dict)
    constraints: dict[Pattern, tuple[Constraint, ...]] = field(default_factory=dict)
    parents: dict[Pattern, tuple[OpPattern, ...]] = field(default_factory=dict)
    claims: dict[Pattern, Pattern] = field(default_factory=dict)
    non_leaf: bool | None = None
    order: tuple[Pattern, ...] = ()
    inner: dict[Pattern, Plan] = field(default_factory=dict)
    plain: frozenset[Pattern] = frozenset()
    groups: list[list[Pattern]] | None = None
    moved: dict[Pattern, set[Pattern]] = field(default_factory=dict)

    def edges(self, pattern: Pattern) -> Iterator[UsedBy]:
        """The use constraints that a pattern takes part in."""
        return (c for c in self.constraints.get(pattern, ()) if isinstance(c, UsedBy))

    def dominations(self, pattern: Pattern) -> Iterator[Dominates]:
        """The dominations that a pattern takes part in."""
        return (c for c in self.constraints.get(pattern, ()) if isinstance(c, Dominates))

    def parts(self) -> list[tuple[Pattern, ...]]:
        """The parts that neither operand nor constraint connects; empty if the pattern is all one."""
        part_of: dict[Pattern, int] = {}
        neighbours: dict[Pattern, list[Pattern]] = {}
        for pattern in self.order:
            linked = [p for c in self.constraints[pattern] if not isinstance(c, Together) for p in c.patterns]
            for other in (*linked, *inner_patterns_in_match(pattern)):
                neighbours.setdefault(pattern, []).append(other)
                neighbours.setdefault(other, []).append(pattern)
        for number, start in enumerate(self.order):
            if start not in part_of:
                part_of.update(dict.fromkeys(_closure([start], lambda p: neighbours.get(p, ())), number))
        numbers = dict.fromkeys(part_of[pattern] for pattern in self.always)
        if len(numbers) < 2:
            return []
        return [tuple(p for p in self.always if part_of[p] == number) for number in numbers]

    def is_closed(self, pattern: Pattern) -> bool:
        """Return True if an inner pattern shares nothing with this plan, so that it can be judged at any time."""
        return not set(self.inner[pattern].order) & set(self.order)


def compile_pattern(pattern: PatternLike, known: dict[Pattern, Plan] | None = None) -> Plan:
    """Make a pattern ready for the solver.

    Args:
        pattern: The pattern.
        known: Plans that are made already, by root: an inner pattern may refer to the pattern that holds it.

    Raises:
        PatternError: Two patterns that always take part have the same name.
    """
    root, known = pattern.last, {} if known is None else known
    if root in known:
        return known[root]
    plan = known[root] = Plan(root)
    everything = _closure([root], lambda p: (*inner_patterns_in_match(p), *_related(p)))
    conditional: set[Pattern] = set()
    for found in everything:
        if isinstance(found, OrPattern):
            conditional.update(_closure(found.alternatives, _required))
    plan.always = _scope_of([root], conditional, frozenset())
    always = frozenset(plan.always)
    for found in everything:
        if isinstance(found, OrPattern):
            for index, alternative in enumerate(found.alternatives):
                plan.chosen[found, index] = _scope_of([alternative], conditional, always)
    plan.order = tuple(everything)
    plan.constraints = {p: tuple(c for c in p.constraints if isinstance(c, Constraint)) for p in everything}
    plan.parents = _parents(everything)
    plan.claims = _claims(everything)
    plan.non_leaf = _non_leaf(everything)
    plan.inner = {p: compile_pattern(p, known) for p in _matched_anew(everything)}
    plan.plain = frozenset(_plain(plan))
    names = [p.name for p in plan.always if p.name]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise PatternError(f"two patterns of one match are both named {repeated[0]!r}")
    return plan


def inner_patterns_in_match(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the parts of a pattern, without those that have a search of their own: refused patterns and path patterns."""
    return pattern.alternatives if isinstance(pattern, OrPattern) else _required(pattern)


def is_node_pattern(pattern: Pattern) -> bool:
    """Return True if a pattern always stands for a node, in any of its uses."""
    if isinstance(pattern, OrPattern):
        return all(is_node_pattern(alternative) for alternative in pattern.alternatives)
    if isinstance(pattern, AndPattern):
        return any(is_node_pattern(part) for part in pattern.parts)
    return isinstance(pattern, OpPattern)


def _required(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.children


def _related(pattern: Pattern) -> list[Pattern]:
    return [p for c in pattern.constraints if isinstance(c, Constraint) for p in c.patterns]


def _closure(start: Iterable[Pattern], step: Callable[[Pattern], Sequence[Pattern]]) -> dict[Pattern, None]:
    found: dict[Pattern, None] = {}
    pending = list(start)[::-1]
    while pending:
        pattern = pending.pop()
        if pattern not in found:
            found[pattern] = None
            pending.extend(reversed(step(pattern)))
    return found


def _scope_of(start: list[Pattern], conditional: set[Pattern], outer: frozenset[Pattern]) -> tuple[Pattern, ...]:
    own = _closure(start, _required)
    pending = list(own)
    while pending:
        for other in _related(pending.pop()):
            if other in own or other in outer or other in conditional:
                continue
            added = [p for p in _closure([other], _required) if p not in own]
            own.update(dict.fromkeys(added))
            pending.extend(added)
    return tuple(p for p in own if p not in outer)


def _parents(everything: Iterable[Pattern]) -> dict[Pattern, tuple[OpPattern, ...]]:
    parents: dict[Pattern, tuple[OpPattern, ...]] = {}
    for pattern in everything:
        if isinstance(pattern, OpPattern):
            for child in dict.fromkeys(pattern.children):
                parents[child] = (*parents.get(child, ()), pattern)
    return parents


def _claims(everything: Iterable[Pattern]) -> dict[Pattern, Pattern]:
    claims: dict[Pattern, Pattern] = {}
    for pattern in everything:
        if isinstance(pattern, AndPattern):
            pending: list[Pattern] = list(pattern.parts)
            while pending:
                part = pending.pop()
                claims[part] = claims.get(pattern, pattern)
                if isinstance(part, OrPattern):
                    pending.extend(part.alternatives)
                elif isinstance(part, AndPattern):
                    pending.extend(part.parts)
                elif isinstance(part, OutputPattern):
                    pending.append(part.base)
    return claims


def _non_leaf(everything: Iterable[Pattern]) -> bool | None:
    modes = {c.must for p in everything for c in p.constraints if isinstance(c, NonLeafExternUse)} - {None}
    if len(modes) > 1:
        raise PatternError("NonLeafExternUse(True) and NonLeafExternUse(False) contradict each other")
    return modes.pop() if modes else None


def _plain(plan: Plan) -> Iterator[Pattern]:
    uses = Counter(child for pattern in plan.order for child in inner_patterns_in_match(pattern))
    elsewhere = {pattern for inner in plan.inner.values() for pattern in (inner.root, *inner.order)}
    for pattern in plan.order:
        is_free = isinstance(pattern, LeafPattern) and not pattern.predicates and not pattern.constraints
        is_operand = uses[pattern] == 1 and pattern in plan.parents and pattern is not plan.root
        if is_free and is_operand and pattern not in elsewhere:
            yield pattern


def _matched_anew(everything: Iterable[Pattern]) -> Iterator[Pattern]:
    for pattern in everything:
        if isinstance(pattern, NotPattern):
            yield pattern.refused
        for constraint in pattern.constraints:
            if isinstance(constraint, NoConsumer):
                yield constraint.excluded
            elif isinstance(constraint, Dominates):
                yield constraint.path
