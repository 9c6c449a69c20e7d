"""Branches of a graph: parts that do not wait for each other, and how they share a few lanes that run at the same time.

A **waist** is a node that every other node comes before or after. Between two waists, nodes that are not connected may run side
by side. Nodes that cost next to nothing hide waists: a mask that every layer reads, a length that every output reads. So cheap
nodes at the beginning and at the end are set apart first, and join a branch again if they belong to no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from collage.graph import bits_of, iterate_bits

__all__ = ["Stage", "pack", "stages_of", "with_joined"]

_CHEAP = 0.01
"""Share of the time of all nodes that nodes which are set apart may take, with all that comes before them, or after them."""
_AS_GOOD = 1.02
"""Fewer lanes are taken if this makes the longest at most this many times as long: each lane costs waking a thread."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a graph that runs as a whole before or after every other stage.

    Attributes:
        lanes: The nodes of each lane, as bits. Lanes of one stage do not wait for each other.
    """

    lanes: tuple[int, ...]

    @property
    def bits(self) -> int:
        """All its nodes."""
        return sum(self.lanes)  # Lanes have no node in common.

    @property
    def is_parallel(self) -> bool:
        """True if it has several lanes."""
        return len(self.lanes) > 1


def stages_of(
    consumers: Sequence[int], seconds: Sequence[float], most_lanes: int, least_gain_s: float, most_parallel: int = 4
) -> list[Stage]:
    """Return the stages of a graph, in the order in which they run.

    Args:
        consumers: The nodes that read from each node, as bits. A node has a larger index than those that it reads from.
        seconds: The expected time of each node.
        most_lanes: The most lanes of a stage.
        least_gain_s: Seconds that the lanes of a stage must save together, if no time is lost. Otherwise it has one lane.
        most_parallel: The most stages of several lanes. The most profitable ones are kept.
    """
    before, after = _reach(consumers)
    first = _cheap(_turned(consumers), range(len(consumers)), seconds)
    last = _cheap(consumers, range(len(consumers) - 1, -1, -1), seconds) & ~first
    middle = ((1 << len(consumers)) - 1) & ~first & ~last
    stages: list[Stage] = []
    saved: dict[int, float] = {}
    for bits in _sections(middle, before, after):
        branches = _components(bits, consumers)
        lanes = pack([(branch, _seconds(branch, seconds)) for branch in branches], most_lanes)
        times = [_seconds(lane, seconds) for lane in lanes]
        saved[len(stages)] = sum(times) - max(times)
        stages.append(Stage(tuple(lanes)))
    worth = sorted((i for i, gain_s in saved.items() if gain_s >= least_gain_s), key=lambda i: -saved[i])
    stages = with_joined(stages, [i for i in range(len(stages)) if i not in worth[:most_parallel]])
    return _with_ends(stages, first, last, consumers)


def with_joined(stages: Sequence[Stage], joined: Collection[int]) -> list[Stage]:
    """Return the stages, those with the given numbers reduced to one lane. Neighbouring stages of one lane are joined."""
    found: list[Stage] = []
    for number, stage in enumerate(stages):
        one = Stage((stage.bits,)) if number in joined else stage
        if found and not one.is_parallel and not found[-1].is_parallel:
            found[-1] = Stage((found[-1].bits | one.bits,))
        else:
            found.append(one)
    return found


def pack(branches: Iterable[tuple[int, float]], most_lanes: int) -> list[int]:
    """Return the nodes of each lane that branches share, the longest branch first, each where it ends earliest.

    Args:
        branches: The nodes of each branch, as bits, and its seconds.
        most_lanes: The most lanes.
    """
    ordered = sorted(branches, key=lambda branch: -branch[1])
    ways = [_packed(ordered, count) for count in range(1, min(max(1, most_lanes), len(ordered)) + 1)]
    longest = [max(seconds for _, seconds in lanes) for lanes in ways]
    chosen = next(lanes for lanes, s in zip(ways, longest, strict=True) if s <= _AS_GOOD * longest[-1])
    return sorted((bits for bits, _ in chosen), key=lambda bits: bits & -bits)


def _packed(ordered: Sequence[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    lanes = [(0, 0.0)] * count
    for bits, seconds in ordered:
        least = min(range(count), key=lambda i: (lanes[i][1], lanes[i][0].bit_count()))
        lanes[least] = lanes[least][0] | bits, lanes[least][1] + seconds
    return [lane for lane in lanes if lane[0]]


def _reach(consumers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the nodes that influence each node, and those that it influences."""
    before, after = [0] * len(consumers), [0] * len(consumers)
    for node in range(len(consumers)):
        for reader in iterate_bits(consumers[node]):
            before[reader] |= before[node] | 1 << node
    for node in range(len(consumers) - 1, -1, -1):
        for reader in iterate_bits(consumers[node]):
            after[node] |= after[reader] | 1 << reader
    return before, after


def _turned(consumers: Sequence[int]) -> list[int]:
    """Return the nodes that each node reads from."""
    producers = [0] * len(consumers)
    for node, readers in enumerate(consumers):
        for reader in iterate_bits(readers):
            producers[reader] |= 1 << node
    return producers


def _cheap(neighbours: Sequence[int], order: Iterable[int], seconds: Sequence[float]) -> int:
    """Return the nodes that take next to no time together with all that they reach. A node reached twice counts twice."""
    limit_s, reached_s, found = _CHEAP * sum(seconds), [0.0] * len(seconds), 0
    for node in order:
        reached_s[node] = seconds[node] + sum(reached_s[other] for other in iterate_bits(neighbours[node]))
        if reached_s[node] <= limit_s:
            found |= 1 << node
    return found


def _sections(middle: int, before: Sequence[int], after: Sequence[int]) -> Iterator[int]:
    """Yield waists and the nodes between them, in the order in which they run."""
    waists = [i for i in iterate_bits(middle) if not middle & ~(before[i] | after[i] | 1 << i)]
    left = middle
    for waist in waists:
        ahead = left & before[waist]
        if ahead:
            yield ahead
        yield 1 << waist
        left &= ~(ahead | 1 << waist)
    if left:
        yield left


def _components(bits: int, consumers: Sequence[int]) -> list[int]:
    """Return the parts of some nodes that no edge among these nodes connects."""
    beside = {node: consumers[node] & bits for node in iterate_bits(bits)}
    for node, readers in list(beside.items()):
        for reader in iterate_bits(readers):
            beside[reader] |= 1 << node
    found = []
    while bits:
        part, fresh = 0, bits & -bits
        while fresh:
            part |= fresh
            fresh = bits_of(other for node in iterate_bits(fresh) for other in iterate_bits(beside[node])) & ~part
        found.append(part)
        bits &= ~part
    return found


def _with_ends(stages: list[Stage], first: int, last: int, consumers: Sequence[int]) -> list[Stage]:
    """Return stages with the nodes at both ends: in the lane to which they belong alone, else in a stage of one lane."""
    if stages and stages[0].is_parallel:
        head, first = _taken_in(stages[0], first, consumers)
        stages = [head, *stages[1:]]
    if stages and stages[-1].is_parallel:
        tail, last = _taken_in(stages[-1], last, _turned(consumers))
        stages = [*stages[:-1], tail]
    ends = [[Stage((bits,))] if bits else [] for bits in (first, last)]
    return with_joined([*ends[0], *stages, *ends[1]], ())


def _taken_in(stage: Stage, bits: int, neighbours: Sequence[int]) -> tuple[Stage, int]:
    """Return a stage with those of some nodes whose neighbours are all in one lane, and the nodes that are left."""
    lanes, left, is_new = list(stage.lanes), bits, True
    while is_new:
        is_new = False
        for node in iterate_bits(left):
            home = next((i for i, lane in enumerate(lanes) if neighbours[node] and not neighbours[node] & ~lane), None)
            if home is not None:
                lanes[home] |= 1 << node
                left &= ~(1 << node)
                is_new = True
    return Stage(tuple(lanes)), left


def _seconds(bits: int, seconds: Sequence[float]) -> float:
    return sum(seconds[node] for node in iterate_bits(bits))
