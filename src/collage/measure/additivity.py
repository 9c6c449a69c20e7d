"""Whether kernels add up: they are timed beside the plan that is made of them, in turns.

Costs are measured over a minute or more, and plans race after that. A shared machine is a fifth slower or faster by then, for
small kernels in another way than for whole models. What a kernel takes as a share of the plan, which runs just before and just
after it, hardly depends on that: shares are known to some per cent on a machine where times are not to a fifth. Of several
visits to a kernel those count for which the plan was fastest, since costs are stated for a machine that is calm, and did not
change under way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collage.measure.comparison import Finalist
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = ["AdditivityCheck", "TimedPart", "check_additivity"]

_ENOUGH_S = 12.0
"""So long it may take where kernels are visited more than once."""
_TOO_LONG_S = 40.0
_FEW_VISITS = 3
_MOST_VISITS = 5
_ALIKE = 0.03
"""Where the first few visits differ by no more than this, there are no others."""
_BLOCK_S = 0.08
_VISIT_S = 0.2
"""A block of the whole, and a burst of the kernel; for a kernel and a whole that take no time."""
_SLOW_S = 1.0
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class TimedPart:
    """A kernel of a plan.

    Attributes:
        seconds: Times it once, by itself.
        count: How many kernels of the plan it stands for.
    """

    seconds: Callable[[], float]
    count: int = 1


@dataclass(frozen=True, slots=True)
class AdditivityCheck:
    """What came of it.

    Attributes:
        parts: Seconds that all kernels take by themselves for each second that the whole takes.
        whole_s: Seconds that the whole took meanwhile, the median.
    """

    parts: float
    whole_s: float


class _Visit(NamedTuple):
    whole_s: float
    part_s: float

    @property
    def share(self) -> float:
        return self.part_s / self.whole_s


def check_additivity(
    whole: Finalist,
    parts: Sequence[TimedPart],
    say: Callable[[str], None] = lambda _: None,
    *,
    wait: Callable[[], object] = lambda: None,
) -> AdditivityCheck | None:
    """Times kernels and the whole in turns.

    Args:
        whole: The plan, as in the finals.
        parts: Its kernels, one for all that cost the same.
        say: Told what is going on.
        wait: Called before each kernel; returns when the machine is calm.

    Returns:
        How they compare; None where that would take too long.

    Raises:
        ToolchainError: One of them does not run.
    """
    with Worker(whole.service, dict(whole.arguments)) as worker:

        def timed(runs: int) -> float:
            # The first run finds what the kernel left in the caches, and sleeping threads.
            samples: list[float] = worker.call("run", _TIMEOUT_S, runs=runs, warm_up=0 if run_s > _SLOW_S else 1)
            return statistics.median(samples)

        run_s = 0.0
        with build_lock():
            run_s = timed(1)
        visits = _visits(len(parts), run_s)
        if not visits:
            return None
        runs = min(max(math.ceil(_BLOCK_S / max(run_s, 1e-6)), 1), 2000)
        shares, wholes = [], list[float]()
        for number, part in enumerate(parts, 1):
            say(f"timing kernels beside the whole: {number} of {len(parts)}")
            with measurement_lock():
                wait()
                found, before_s = list[_Visit](), timed(runs)
                while len(found) < visits and not _is_told(found):
                    part_s, after_s = part.seconds(), timed(runs)
                    found.append(_Visit(math.sqrt(before_s * after_s), part_s))
                    before_s = after_s
            counting = sorted(found)[: (len(found) + 1) // 2]
            shares.append(part.count * statistics.median(visit.share for visit in counting))
            wholes += [visit.whole_s for visit in counting]
    return AdditivityCheck(math.fsum(shares), statistics.median(wholes))


def _is_told(found: Sequence[_Visit]) -> bool:
    """Whether the first few visits to a kernel agree."""
    shares = [visit.share for visit in found]
    return len(shares) >= _FEW_VISITS and max(shares) <= (1.0 + _ALIKE) * min(shares)


def _visits(parts: int, run_s: float) -> int:
    """How often to time each kernel; 0 where once would take too long."""
    once_s = parts * (_VISIT_S + 3 * run_s)
    return 0 if once_s > _TOO_LONG_S else min(max(int(_ENOUGH_S / once_s), 1), _MOST_VISITS)
