"""Candidates on devices, and the values that pass between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from collage.graph import iterate_bits
from collage.search._values import Candidate

__all__ = ["P", "PlacedCandidate", "Transfer", "copies_of", "places_of", "read_on"]


class PlacedCandidate(Candidate, Protocol):
    """A candidate kernel on a device."""

    @property
    def device(self) -> int:
        """The device that would run it. Devices are numbered from 0. Of those that cost the same, the lowest number wins."""
        ...


P = TypeVar("P", bound=PlacedCandidate)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that may have to be copied from one device to another.

    Attributes:
        producer: The node that makes it; None for an input of the model.
        readers: The nodes that read it. For each the device on which it reads, or None for that on which it runs; a kernel
            reads where it runs, unless all of its nodes that read the value do so elsewhere.
        copy_s: Seconds of a copy by source and destination; infinite if there is no way.
        home: Device of an input of the model.
        delivered: Devices on which it has to be in the end.
    """

    producer: int | None
    readers: Mapping[int, int | None]
    copy_s: Sequence[Sequence[float]]
    home: int | None = None
    delivered: frozenset[int] = field(default_factory=frozenset)


def copies_of(kernels: Sequence[tuple[int, int]], transfers: Sequence[Transfer]) -> list[tuple[Transfer, int, int]]:
    """The copies of a placed cover, with source and destination: each value once to each device that it is not on.

    Args:
        kernels: The nodes of each kernel, as bits, and its device.
        transfers: Values that go from node to node.
    """
    kernel_of = {node: i for i, (bits, _) in enumerate(kernels) for node in iterate_bits(bits)}
    device_of = {node: kernels[i][1] for node, i in kernel_of.items()}
    copies = []
    for transfer in transfers:
        home = transfer.home if transfer.producer is None else device_of[transfer.producer]
        wanted: dict[int, list[int]] = {}
        for reader in transfer.readers:
            wanted.setdefault(kernel_of[reader], []).append(reader)
        if transfer.producer is not None:
            wanted.pop(kernel_of[transfer.producer], None)
        places = {read_on(transfer, readers, kernels[kernel][1]) for kernel, readers in wanted.items()}
        copies += [(transfer, home, place) for place in places | transfer.delivered if home not in (None, place)]
    return copies


def places_of(candidates: Sequence[P]) -> list[tuple[int, int]]:
    """The nodes, as bits, and the device of each candidate."""
    return [(candidate.bits, candidate.device) for candidate in candidates]


def read_on(transfer: Transfer, readers: Sequence[int], device: int) -> int:
    """Return the device from which a kernel on a device reads a value for some of its nodes."""
    fixed = [transfer.readers[reader] for reader in readers]
    return device if None in fixed else next(place for place in fixed if place is not None)
