"""Unification with proofs: which places must be in the same scope, and why.

A *place* is something that lies or happens in one scope. Places that must agree are merged; every merge and every
constraint keeps its cause, so that a conflict, or a question, is answered by the chain of causes between two places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from collage.device._scope import ANYWHERE, SEScope

__all__ = ["Clash", "Domains", "Fixing", "Link"]


@dataclass(frozen=True, slots=True)
class Fixing:
    """A constraint that something outside puts on a place.

    Attributes:
        place: The place.
        scope: The scope that the place must have.
        cause: The origin of the demand, such as ``annotated``.
    """

    place: int
    scope: SEScope
    cause: str


@dataclass(frozen=True, slots=True)
class Link:
    """Two places that agree, and why."""

    start: int
    end: int
    cause: str


class Clash(Exception):
    """Two constraints that contradict each other, and the links between their places."""

    def __init__(self, one: Fixing, other: Fixing, links: list[Link]) -> None:
        super().__init__(f"{one} contradicts {other}")
        self.one, self.other, self.links = one, other, links


class Domains:
    """Places, merged by union-find; each domain has the join of the constraints on its places."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._scope: dict[int, SEScope] = {}
        self._fixings: dict[int, list[Fixing]] = {}
        self._own: dict[int, Fixing] = {}
        self._links: list[Link] = []
        self._neighbours: dict[int, list[Link]] | None = None

    def add(self) -> int:
        """A new place, in a domain of its own."""
        self._parent.append(len(self._parent))
        self._size.append(1)
        return len(self._parent) - 1

    def find(self, place: int) -> int:
        """The place that represents the domain."""
        parent = self._parent
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    def scope(self, place: int) -> SEScope:
        """The facts about a place."""
        return self._scope.get(self.find(place), ANYWHERE)

    def fix(self, place: int, scope: SEScope, cause: str) -> None:
        """Constrains a place.

        Raises:
            Clash: Its domain has another constraint.
        """
        if scope == ANYWHERE:
            return
        root = self.find(place)
        fixing = Fixing(place, scope, cause)
        joined = self._scope.get(root, ANYWHERE).join(scope)
        if joined is None:
            other = next(f for f in self._fixings[root] if f.scope.conflict(scope))
            raise Clash(other, fixing, self.chain(other.place, place))
        self._scope[root] = joined
        self._fixings.setdefault(root, []).append(fixing)
        self._own.setdefault(place, fixing)

    def unify(self, one: int, other: int, cause: str) -> None:
        """Demands that two places agree.

        Raises:
            Clash: They cannot.
        """
        if not self.try_unify(one, other, cause):
            first, second = self._contradiction(one, other)
            links = [*self.chain(first.place, one), Link(one, other, cause), *self.chain(other, second.place)]
            raise Clash(first, second, links)

    def try_unify(self, one: int, other: int, cause: str) -> bool:
        """Make two places agree if they can, and return True if they do."""
        a, b = self.find(one), self.find(other)
        if a == b:
            return True
        joined = self._scope.get(a, ANYWHERE).join(self._scope.get(b, ANYWHERE))
        if joined is None:
            return False
        if self._size[a] < self._size[b]:
            a, b = b, a
        self._parent[b] = a
        self._size[a] += self._size[b]
        if joined != ANYWHERE:
            self._scope[a] = joined
        self._fixings.setdefault(a, []).extend(self._fixings.pop(b, ()))
        self._links.append(Link(one, other, cause))
        self._neighbours = None
        return True

    def roots(self) -> Iterator[int]:
        """The place that represents each domain, in order."""
        return (place for place, parent in enumerate(self._parent) if place == parent)

    def fixing_of(self, place: int) -> Fixing | None:
        """The first constraint on this very place."""
        return self._own.get(place)

    def fixings(self, place: int) -> list[Fixing]:
        """The constraints on a place's domain."""
        return self._fixings.get(self.find(place), [])

    def sources(self, place: int) -> list[tuple[Fixing, list[Link]]]:
        """The constraints on a place's domain, nearest first, each with the links from the place to it."""
        found = [(fixing, self.chain(place, fixing.place)) for fixing in self.fixings(place)]
        return sorted(found, key=lambda pair: len(pair[1]))

    def chain(self, start: int, end: int) -> list[Link]:
        """The shortest chain of links from one place to another of its domain."""
        if start == end:
            return []
        neighbours = self._adjacency()
        came_by: dict[int, Link] = {}
        waiting = deque([start])
        while waiting and end not in came_by:
            place = waiting.popleft()
            for link in neighbours.get(place, ()):
                if link.end != start and link.end not in came_by:
                    came_by[link.end] = link
                    waiting.append(link.end)
        links = []
        while end != start:
            link = came_by[end]
            links.append(link)
            end = link.start
        return links[::-1]

    def _adjacency(self) -> dict[int, list[Link]]:
        if self._neighbours is None:
            self._neighbours = {}
            for link in self._links:
                self._neighbours.setdefault(link.start, []).append(link)
                self._neighbours.setdefault(link.end, []).append(Link(link.end, link.start, link.cause))
        return self._neighbours

    def _contradiction(self, one: int, other: int) -> tuple[Fixing, Fixing]:
        """Constraints of two domains that contradict each other."""
        for first in self._fixings[self.find(one)]:
            for second in self._fixings[self.find(other)]:
                if first.scope.conflict(second.scope):
                    return first, second
        raise AssertionError("domains that do not join have constraints that contradict each other")
