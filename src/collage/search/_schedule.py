"""When a placed cover ends: kernels of different devices run at once, as the runtime runs them.

A device takes its kernels in the order in which they become ready, one after the other. A kernel is ready when all that it
reads has been made, and has arrived on its device; a value that several kernels read there is copied once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from collage.graph import iterate_bits
from collage.search._transfers import Transfer, read_on

__all__ = ["makespan_s"]


def makespan_s(kernels: Sequence[tuple[int, int]], seconds: Sequence[float], transfers: Sequence[Transfer]) -> float:
    """Seconds until the last kernel of a placed cover has ended, and its outputs are delivered.

    Args:
        kernels: The nodes of each kernel, as bits, and its device.
        seconds: Seconds of each kernel.
        transfers: The values that nodes hand to each other, all of them, since a reader waits for each.

    Returns:
        Infinity where a copy is impossible, or kernels wait for each other in a circle.
    """
    kernel_of = {node: number for number, (bits, _) in enumerate(kernels) for node in iterate_bits(bits)}
    ready = [0.0] * len(kernels)
    missing = [0] * len(kernels)
    feeds: list[list[tuple[int, float]]] = [[] for _ in kernels]
    delivered = [0.0] * len(kernels)
    end = 0.0
    for transfer in transfers:
        maker = None if transfer.producer is None else kernel_of[transfer.producer]
        home = transfer.home if maker is None else kernels[maker][1]
        readers: dict[int, list[int]] = {}
        for reader in transfer.readers:
            readers.setdefault(kernel_of[reader], []).append(reader)
        for kernel, nodes in readers.items():
            if kernel == maker:
                continue
            way_s = 0.0 if home is None else transfer.copy_s[home][read_on(transfer, nodes, kernels[kernel][1])]
            if maker is None:
                ready[kernel] = max(ready[kernel], way_s)
            else:
                feeds[maker].append((kernel, way_s))
                missing[kernel] += 1
        way_s = max((transfer.copy_s[home][place] for place in transfer.delivered if home is not None), default=0.0)
        if maker is None:
            end = max(end, way_s)
        else:
            delivered[maker] = max(delivered[maker], way_s)
    free = [0.0] * (1 + max((device for _, device in kernels), default=0))
    waiting = [(ready[kernel], kernel) for kernel, count in enumerate(missing) if not count]
    heapify(waiting)
    left = len(kernels)
    while waiting:
        began, kernel = heappop(waiting)
        device = kernels[kernel][1]
        free[device] = done = max(began, free[device]) + seconds[kernel]
        left -= 1
        end = max(end, done + delivered[kernel])
        for reader, way_s in feeds[kernel]:
            ready[reader] = max(ready[reader], done + way_s)
            missing[reader] -= 1
            if not missing[reader]:
                heappush(waiting, (ready[reader], reader))
    return math.inf if left else end
