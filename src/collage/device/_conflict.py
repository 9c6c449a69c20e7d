"""Conflicts, for people: two demands that cannot both be met, and how they meet."""

from __future__ import annotations

from collections.abc import Callable

from collage._errors import DeviceConflict
from collage.device._domains import Clash, Link

__all__ = ["conflict_from", "render_links"]


_REMEDIES = {
    "has a fixed scope for its reader": "leave out constrain_result there, so that a copy may be inserted",
    "cannot be copied": "place both sides alike: sequences, optionals, maps and strings are never copied",
    "of the same name": "place the input where the output is wanted: they are one value",
    "of function": "give the calls functions of their own, or the same scope",
    "are both results of": "place the results of that node alike: one operator runs in one place",
}


def conflict_from(clash: Clash, describe: Callable[[int], str]) -> DeviceConflict:
    """The error of a clash, for people.

    Args:
        clash: The two demands that contradict each other.
        describe: Text of a place.
    """
    one, other = (f"{describe(f.place)} must be in {f.scope} ({f.cause})" for f in (clash.one, clash.other))
    chain = render_links(clash.links, describe)
    remedies = [remedy for words, remedy in _REMEDIES.items() if any(words in step for step in chain)]
    remedies.append("drop one of the two demands")
    return DeviceConflict(one, other, chain, tuple(remedies))


def render_links(links: list[Link], describe: Callable[[int], str]) -> tuple[str, ...]:
    """Links as sentences."""
    return tuple(f"{describe(link.start)} and {describe(link.end)} agree: {link.cause}" for link in links)
