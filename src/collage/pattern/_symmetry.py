"""Interchangeable patterns: where only the set of nodes counts, one of their many assignments is enough.

Two patterns are interchangeable if exchanging them, and with them the patterns that depend on them, gives the same
pattern graph.
Then every match comes in both orders, and the search may keep to the one in which the first lies before the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import combinations
from typing import Any

from collage.pattern import _operators
from collage.pattern._base import Pattern
from collage.pattern._constraints import AttrEq, Constraint, Distinct, SameShape, Together
from collage.pattern._nodes import LeafPattern, OpPattern, OutputPattern
from collage.pattern._plan import Plan
from collage.pattern._sequence import inner_patterns

_MOST_NODES = 256
"""Larger patterns are taken as they are: looking for symmetries takes time that grows with the square of the size."""
_UNORDERED = (AttrEq, Distinct, SameShape, Together)


def orders(plan: Plan, fixed: Pattern | None = None) -> dict[Pattern, list[tuple[Pattern, Pattern]]]:
    """By pattern, the pairs that it belongs to of which the first may be asked to lie before the second.

    Args:
        plan: The pattern.
        fixed: A pattern whose place is given: groups that change places with it are left out.
    """
    by_pattern: dict[Pattern, list[tuple[Pattern, Pattern]]] = {}
    for group in classes(plan):
        if fixed is not None and any(fixed in plan.moved[pattern] for pattern in group):
            continue
        for pair in combinations(group, 2):
            for pattern in pair:
                by_pattern.setdefault(pattern, []).append(pair)
    return by_pattern


def classes(plan: Plan) -> list[list[Pattern]]:
    """Groups of patterns in which any two may be exchanged, with the patterns that depend on them, in the pattern's order."""
    if plan.groups is None:
        plan.groups = _found_classes(plan)
    return plan.groups


def _found_classes(plan: Plan) -> list[list[Pattern]]:
    nodes: list[Pattern] = [pattern for pattern in plan.always if isinstance(pattern, OpPattern)]
    group_of: dict[Pattern, list[Pattern]] = {}
    for index, other in enumerate(nodes if len(nodes) <= _MOST_NODES else ()):
        # The nearest one is enough: exchanges of a with b and of b with c make one of a with c.
        for one in reversed(nodes[:index]):
            exchange = _exchange(one, other)
            if exchange is not None and _is_symmetry(plan, exchange):
                moved = {pattern for pattern, image in exchange.items() if image is not pattern}
                first = next(pattern for pattern in nodes if pattern in moved)
                plan.moved.setdefault(first, set()).update(moved)
                plan.moved.setdefault(exchange[first], set()).update(moved)
                _join(group_of, first, exchange[first])
                break
    groups = {id(group): group for group in group_of.values()}.values()
    return [sorted(group, key=nodes.index) for group in groups]


def rooms(plan: Plan) -> dict[Pattern, tuple[Pattern, int, int]]:
    """By interchangeable pattern, what all of its group use, its rank in the group, and the group's size."""
    found: dict[Pattern, tuple[Pattern, int, int]] = {}
    for group in classes(plan):
        used = [{*p.children, *(e.producer for e in plan.edges(p) if e.user is p)} for p in group]
        hub = next((pattern for pattern in plan.order if all(pattern in some for some in used)), None)
        if hub is not None:
            found.update((pattern, (hub, rank, len(group))) for rank, pattern in enumerate(group))
    return found


def _join(group_of: dict[Pattern, list[Pattern]], one: Pattern, other: Pattern) -> None:
    mine, theirs = group_of.get(one, [one]), group_of.get(other, [other])
    if mine is not theirs:
        joined = [*mine, *theirs]
        group_of.update(dict.fromkeys(joined, joined))


def _exchange(one: Pattern, other: Pattern) -> dict[Pattern, Pattern] | None:
    """Return the exchange of two patterns with their operands and relations, None if they differ."""
    image: dict[Pattern, Pattern] = {}
    pending = [(one, other)]
    while pending:
        a, b = pending.pop()
        if a in image or b in image:
            if image.get(a) is not b or image.get(b) is not a:
                return None
            continue
        if a is not b and not _alike(a, b):
            return None
        image[a], image[b] = b, a
        if a is not b:
            pending.extend(zip(inner_patterns(a), inner_patterns(b), strict=True))
            for c, d in zip(_relations(a), _relations(b), strict=True):
                if type(c) is not type(d):
                    return None
                if c is not d:
                    pending.extend(zip(_patterns_in(c), _patterns_in(d), strict=True))
    return image


def _alike(a: Pattern, b: Pattern) -> bool:
    if type(a) is not type(b) or a.name or b.name or a.predicates != b.predicates:
        return False
    if len(inner_patterns(a)) != len(inner_patterns(b)) or len(_relations(a)) != len(_relations(b)):
        return False
    if isinstance(a, OpPattern) and isinstance(b, OpPattern):
        gaps = [[operand is ... for operand in p.operands] if p.operands is not None else None for p in (a, b)]
        same = (a.op_types, a.domain, a.commutative) == (b.op_types, b.domain, b.commutative)
        return same and gaps[0] == gaps[1]
    if isinstance(a, OutputPattern) and isinstance(b, OutputPattern):
        return a.index == b.index
    return not isinstance(a, LeafPattern) or not isinstance(b, LeafPattern) or a.text == b.text


def _is_symmetry(plan: Plan, image: Mapping[Pattern, Pattern]) -> bool:
    """Return True if the pattern graph looks the same after an exchange."""
    for pattern in dict.fromkeys((*plan.order, *image)):
        other = image.get(pattern, pattern)
        moved, there = [image.get(p, p) for p in inner_patterns(pattern)], list(inner_patterns(other))
        if moved != there and not (_commutes(pattern) and sorted(map(id, moved)) == sorted(map(id, there))):
            return False
        if {_key(c, image) for c in _relations(pattern)} != {_key(c, {}) for c in _relations(other)}:
            return False
    return True


def _commutes(pattern: Pattern) -> bool:
    """Return True if every node that the pattern can lie on takes its operands in any order."""
    if not isinstance(pattern, OpPattern) or pattern.commutative is False or pattern.has_gaps:
        return False
    known = all((pattern.domain, op) in _operators.COMMUTATIVE_OPS for op in pattern.op_types)
    return pattern.commutative is True or (bool(pattern.op_types) and known)


def _relations(pattern: Pattern) -> list[Constraint]:
    return [constraint for constraint in pattern.constraints if isinstance(constraint, Constraint)]


def _patterns_in(constraint: Constraint) -> Iterator[Pattern]:
    for value in _values(constraint):
        if isinstance(value, Pattern):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Pattern))


def _values(constraint: Constraint) -> tuple[Any, ...]:
    return tuple(getattr(constraint, field.name) for field in fields(constraint))


def _key(constraint: Constraint, image: Mapping[Pattern, Pattern]) -> tuple[Any, ...]:
    """A constraint as something that compares, after an exchange."""
    patterns = tuple(image.get(p, p) for p in _patterns_in(constraint))
    rest = tuple(
        value
        for value in _values(constraint)
        if not isinstance(value, Pattern) and not (isinstance(value, tuple) and value and isinstance(value[0], Pattern))
    )
    return (type(constraint), frozenset(patterns) if isinstance(constraint, _UNORDERED) else patterns, rest)
