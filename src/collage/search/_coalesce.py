"""After the search: neighbours of one target become one kernel where that is measured to be cheaper (design section 6).

Candidates end where depths and cuts end them, so a cover may leave two kernels side by side that the toolchain would
rather have as one. What a joined kernel costs is not the sum of its parts, so it is measured before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from collage.cost.cost import Cost, CostLike
from collage.fusion import CandidateKernel, max_coalesce
from collage.graph import DataflowGraph
from collage.search._quotient import find_cycle, kernel_successors, run_order
from collage.search._values import CostOf

__all__ = ["coalesce_cover"]

Measure = Callable[[Sequence[CandidateKernel]], Sequence[CostLike]]
Accepts = Callable[[CandidateKernel], bool]


def coalesce_cover(
    graph: DataflowGraph,
    cover: Sequence[CandidateKernel],
    cost_of: CostOf[CandidateKernel],
    measure: Measure,
    *,
    accepts: Accepts | None = None,
    launch_penalty_of: Callable[[CandidateKernel], float] | None = None,
) -> tuple[CandidateKernel, ...]:
    """A cover that costs no more, with neighbours of one target joined where that pays.

    First whatever would be joined if joining always paid is measured as a whole; then, as long as some pair pays, the
    pair that saves most is joined. No kernels feed each other in a circle, before or after.

    Args:
        graph: The dataflow graph.
        cover: Disjoint kernels that cover the graph and can be run one after the other.
        cost_of: Cost of each kernel of the cover.
        measure: Costs of joined kernels, in order; may build them in parallel. Each is asked for once.
        accepts: Whether the toolchain takes a joined kernel; by default whatever is valid.
        launch_penalty_of: Seconds that each kernel costs beyond its own cost.

    Returns:
        The kernels in the order in which they can be run. Joined ones name ``coalesce`` as their last rule.
    """
    ledger = _Ledger(cover, cost_of, measure, launch_penalty_of or (lambda kernel: 0.0))
    kernels: list[CandidateKernel] = []
    largest = max_coalesce(graph, cover, accepts)
    ledger.learn(largest)
    for group in largest:
        members = [kernel for kernel in cover if not kernel.bits & ~group.bits]
        kernels += [group] if ledger.saving(members, group) >= 0 else members
    while True:
        pairs = list(_joinable_pairs(graph, kernels, accepts))
        ledger.learn(joined for *_, joined in pairs)
        best = max(pairs, key=lambda pair: ledger.saving(pair[:2], pair[2]), default=None)
        if best is None or ledger.saving(best[:2], best[2]) < 0:
            break
        kernels = [kernel for kernel in kernels if kernel not in best[:2]] + [best[2]]
    successors = kernel_successors(graph, [kernel.bits for kernel in kernels])
    return tuple(kernels[i] for i in run_order(successors, [kernel.sub_graph.exit.last for kernel in kernels]))


def _joinable_pairs(
    graph: DataflowGraph, kernels: Sequence[CandidateKernel], accepts: Accepts | None
) -> Iterator[tuple[CandidateKernel, CandidateKernel, CandidateKernel]]:
    """Neighbours of one target, and what they would be together, where all kernels could still be run."""
    successors = kernel_successors(graph, [kernel.bits for kernel in kernels])
    for index, first in enumerate(kernels):
        for second in (kernels[after] for after in sorted(successors[index])):
            if first.target != second.target:
                continue
            together = max_coalesce(graph, [first, second], accepts)
            others = [kernel.bits for kernel in kernels if kernel not in (first, second)]
            if len(together) == 1 and not find_cycle(kernel_successors(graph, [*others, together[0].bits])):
                yield first, second, together[0]


class _Ledger:
    """What kernels cost, launch penalties included, each asked for once."""

    def __init__(
        self,
        cover: Iterable[CandidateKernel],
        cost_of: CostOf[CandidateKernel],
        measure: Measure,
        launch_penalty_of: Callable[[CandidateKernel], float],
    ) -> None:
        self._measure = measure
        self._launch_penalty_of = launch_penalty_of
        self._costs = {kernel: self._with_launch(kernel, cost_of(kernel)) for kernel in cover}

    def learn(self, kernels: Iterable[CandidateKernel]) -> None:
        """Measures what is not known."""
        missing = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self._costs))
        if missing:
            for kernel, cost in zip(missing, self._measure(missing), strict=True):
                self._costs[kernel] = self._with_launch(kernel, cost)

    def saving(self, parts: Iterable[CandidateKernel], joined: CandidateKernel) -> float:
        """Seconds that joining saves; minus infinity where it cannot be run, or is not known."""
        before, after = Cost.sum(self._costs[part] for part in parts), self._costs[joined]
        return before.seconds - after.seconds if before.is_known and after.is_known else float("-inf")

    def _with_launch(self, kernel: CandidateKernel, cost: CostLike) -> Cost:
        return Cost.of(cost) + Cost(seconds=self._launch_penalty_of(kernel))
