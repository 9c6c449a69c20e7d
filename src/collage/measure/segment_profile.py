"""A profile for toolchains that have none: the model is cut into a few segments, and each is measured as one kernel.

Toolchains differ most in how they compute parts as large as a layer: fusion, layouts and algorithms. One
operator alone shows none of that. Segments are candidates themselves, so nothing is measured for this alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage.graph import Cut, IndexSet

__all__ = ["MOST", "profile_from_segments", "segments"]

# Equal segments are measured once, so repeated layers cost little.
MOST = 8
# A lighter segment is not cut further: it can change the plan by no more than a mix has to gain.
_WORTH = 0.1
# The lighter side of a cut has at least this share of the segment's weight, if there is such a cut.
_LEAST_SIDE = 0.2


def segments(
    cuts: Sequence[Cut], ranges: Sequence[int], weights: Mapping[int, float], most: int = MOST, least: float = 0.0
) -> list[int]:
    """Cut ranges of nodes into segments of similar weight, where few values cross.

    The heaviest segment is cut again and again.

    Args:
        cuts: The cuts of the graph, by position.
        ranges: Ranges of nodes that a target takes, as bits.
        weights: Estimated cost of each node in any unit.
        most: The largest number of segments. Each range stays a segment even if it is less.
        least: A lighter segment is not cut further, in the unit of the weights.

    Returns:
        Segments as bits. Together they are the ranges.
    """
    least = max(least, _WORTH * sum(weights[i] for bits in ranges for i in IndexSet(bits)))
    uncut = [_bounds(bits) for bits in ranges]
    done: list[tuple[int, int]] = []
    while uncut and len(uncut) + len(done) < most:
        segment = max(uncut, key=lambda each: _weight(each, weights))
        uncut.remove(segment)
        position = _best_cut(segment, cuts, weights) if _weight(segment, weights) > least else None
        if position is None:
            done.append(segment)
        else:
            uncut += [(segment[0], position), (position, segment[1])]
    return [(1 << stop) - (1 << start) for start, stop in sorted(done + uncut)]


def profile_from_segments(
    weights: Mapping[int, float], seconds: Mapping[int, float], total_s: float | None
) -> dict[int, float]:
    """Return the seconds of every node inside a large kernel.

    Args:
        weights: Estimated cost of each node in any unit.
        seconds: Measured seconds of segments, by their nodes as bits, without the cost of the call.
        total_s: Seconds of all nodes as one kernel, to which the profile is scaled; None if that is not known.

    Returns:
        Seconds by node. Inside a segment they have the proportions of the weights. Nodes of segments that were not
        measured cost in proportion to their weight, as those that were. Empty without segments.
    """
    measured = {i for bits in seconds for i in IndexSet(bits)}
    known_weight = sum(weights[i] for i in measured)
    if not known_weight > 0:
        return {}
    rate = sum(seconds.values()) / known_weight
    profile = {i: weight * rate for i, weight in weights.items()}
    for bits, took_s in seconds.items():
        weight = sum(weights[i] for i in IndexSet(bits))
        profile.update((i, took_s * weights[i] / weight) for i in IndexSet(bits))
    sum_s = sum(profile.values())
    scale = total_s / sum_s if total_s and sum_s > 0 else 1.0
    return {i: value * scale for i, value in profile.items()}


def _bounds(bits: int) -> tuple[int, int]:
    return (bits & -bits).bit_length() - 1, bits.bit_length()


def _weight(segment: tuple[int, int], weights: Mapping[int, float]) -> float:
    return sum(weights[i] for i in range(*segment))


def _best_cut(segment: tuple[int, int], cuts: Sequence[Cut], weights: Mapping[int, float]) -> int | None:
    """Return the position inside a segment that the fewest values cross, of equal ones the most balanced."""
    start, stop = segment
    total, left = _weight(segment, weights), 0.0
    found: list[tuple[bool, int, float, int]] = []
    for position in range(start + 1, stop):
        left += weights[position - 1]
        side = min(left, total - left)
        if cuts[position].is_border:
            found.append((side < _LEAST_SIDE * total, cuts[position].count, -side, position))
    return min(found)[-1] if found else None
