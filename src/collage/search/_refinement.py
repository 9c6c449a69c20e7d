"""The second phase of a search, which a strategy may have: covers are judged by their measured end-to-end times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from collage.search._strategy import CostSource, SearchProblem, StrategyFault, why_at_fault, why_no_cover
from collage.search._values import C, Candidate

__all__ = ["CoverTimer", "RefiningStrategy", "refine_or_leave"]

D = TypeVar("D", bound=Candidate, contravariant=True)


class CoverTimer(Protocol[D]):
    """Builds whole covers, checks their outputs, and times them end to end."""

    @property
    def seed(self) -> int:
        """The seed for random numbers."""
        ...

    @property
    def seconds_left(self) -> float:
        """Seconds that the second phase may still take; covers are timed only while there are any."""
        ...

    def should_stop(self) -> bool:
        """Return True if the user wants the best result so far, at once."""
        ...

    def time_of(self, cover: Sequence[D], /) -> float:
        """Return the time of a cover as a share of the first seed's; infinite if it fails, or is wrong, or time is up."""
        ...


@runtime_checkable
class RefiningStrategy(Protocol):
    """A strategy with a second phase."""

    @property
    def name(self) -> str:
        """The name by which users choose the strategy."""
        ...

    def refine(
        self, problem: SearchProblem[C], costs: CostSource[C], seeds: Sequence[Sequence[C]], timer: CoverTimer[C]
    ) -> Sequence[Sequence[C]]:
        """Return covers for the final comparison, the most promising first.

        Args:
            problem: The problem of the first phase.
            costs: The known facts about candidates. Covers may hold such as were not measured.
            seeds: The best covers of the first phase, the cheapest first.
            timer: Times covers.
        """
        ...


def refine_or_leave(
    strategy: RefiningStrategy,
    problem: SearchProblem[C],
    costs: CostSource[C],
    seeds: Sequence[Sequence[C]],
    timer: CoverTimer[C],
) -> tuple[list[tuple[C, ...]], str | None]:
    """Run the second phase of a strategy, and check the covers that it proposes.

    Returns:
        The covers; and the fault of the strategy, if it has one. Then there are no covers.
    """
    try:
        proposed = list(map(tuple, strategy.refine(problem, costs, seeds, timer)))
        for cover in proposed:
            if (reason := why_no_cover(problem, cover)) is not None:
                raise StrategyFault(f"search strategy {strategy.name!r} proposed a plan that {reason}")
    except (Exception, SystemExit) as error:
        return [], f"{why_at_fault(strategy.name, error)} in its second phase, which is left out"
    return proposed, None
