"""The evolutionary search of the Collage paper, on the level of the graph: its fitness is the measured end-to-end time.

It is a second phase, for covers whose kernels do not add up. The exact search's best covers are its first generation.

The kernels of these covers cut the graph into **groups** of nodes that are together in all of them. An individual assigns a
target to each group, and says at which borders between groups of one target a kernel ends. The cover of an individual is that
of fewest kernels which keeps to that. So joining, cutting and handing over are one gene each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from collage.cost.cost import Cost
from collage.graph import iterate_bits
from collage.search._refinement import CoverTimer
from collage.search._shortest_path import k_best, shortest_path
from collage.search._strategies import LazyStrategy
from collage.search._strategy import CostSource, SearchProblem
from collage.search._values import C, Partitioning
from collage.search._wide import wide_shortest_path

__all__ = ["EvolutionaryStrategy", "Genome", "Population"]

_KERNEL_S = 1e3
"""Cost of each kernel where the cover of fewest kernels is sought. Among these the cheapest is taken."""
_MORE_SEEDS = 16
"""Covers that follow the best, whose borders are groups' borders too; they are not timed."""
_TIMED_SEEDS = 3
"""So many of the seeds are the first generation. The others, which are expected to be slower, only have borders."""
_MOST_GROUPS = 48
_TIRED = 24
"""So many covers in a row, none of them better than the best, end the search."""
_DRAWS = 200
"""So many individuals in a row that are known, or cannot run, end it too: there is little left to try."""
_HOPELESS = 2.0
"""A cover is not timed if it is expected to take this many times as long as the cheapest one."""
_PARENTS = 8
_TOURNAMENT = 3
_CROSSED = 0.5
_FINALISTS = 2


@dataclass(frozen=True, slots=True)
class Genome:
    """An assignment of targets to groups of nodes.

    Attributes:
        targets: The target of each group, as a number.
        cuts: Pairs of groups of one target that no kernel may hold both of.
    """

    targets: tuple[int, ...]
    cuts: frozenset[tuple[int, int]] = frozenset()


class Population(Generic[C]):
    """The individuals of an evolutionary search, their covers, and crossover.

    Args:
        problem: The nodes to cover, and the candidates.
        costs: Costs of candidates. Those known to be invalid take no part.
        seeds: The covers whose borders are the groups' borders.
        draw: The source of random numbers.
    """

    def __init__(
        self, problem: SearchProblem[C], costs: CostSource[C], seeds: Iterable[Sequence[C]], draw: random.Random
    ) -> None:
        self._problem, self._costs, self._draw = problem, costs, draw
        self.groups = _groups(problem.n, seeds)
        group_of = {node: number for number, bits in enumerate(self.groups) for node in iterate_bits(bits)}
        self.targets = tuple(dict.fromkeys(candidate.target for candidate in problem.candidates))
        number_of = {target: number for number, target in enumerate(self.targets)}
        self._units = []
        alleles: list[set[int]] = [set() for _ in self.groups]
        for candidate in problem.candidates:
            held = frozenset(group_of[node] for node in iterate_bits(candidate.bits))
            cost = costs.known_cost(candidate)
            is_invalid = cost is not None and Cost.of(cost).is_invalid
            if not is_invalid and sum(self.groups[number] for number in held) == candidate.bits:
                target = number_of[candidate.target]
                self._units.append((candidate, held, target))
                for number in held:
                    alleles[number].add(target)
        self._alleles = [sorted(each) for each in alleles]
        self._borders = sorted(
            {
                (min(here, there), max(here, there))
                for node in range(problem.n)
                for reader in problem.graph.consumers(node)
                if (here := group_of[node]) != (there := group_of[reader])
            }
        )

    def genome_of(self, cover: Sequence[C]) -> Genome:
        """Return the individual that a cover by whole groups is an image of."""
        kernel_of = {node: kernel for kernel, candidate in enumerate(cover) for node in iterate_bits(candidate.bits)}
        kernels = [kernel_of[(bits & -bits).bit_length() - 1] for bits in self.groups]
        targets = tuple(self.targets.index(cover[kernel].target) for kernel in kernels)
        cuts = {(a, b) for a, b in self._borders if targets[a] == targets[b] and kernels[a] != kernels[b]}
        return Genome(targets, frozenset(cuts))

    def cover_of(self, genome: Genome) -> tuple[C, ...] | None:
        """Return the cover of fewest kernels, and then of least cost, that an individual allows; None if there is none."""

        def may_be(held: frozenset[int], target: int) -> bool:
            is_assigned = all(genome.targets[number] == target for number in held)
            return is_assigned and not any(a in held and b in held for a, b in genome.cuts)

        allowed = [candidate for candidate, held, target in self._units if may_be(held, target)]
        n, problem = self._problem.n, self._problem
        if problem.is_wide:
            found = wide_shortest_path(n, allowed, self._weight, problem.graph)
        else:
            found = shortest_path(n, allowed, self._weight)
        return found.candidates if isinstance(found, Partitioning) else None

    def _weight(self, candidate: C) -> float:
        return _KERNEL_S + self.expected_s(candidate)

    def expected_s(self, candidate: C) -> float:
        """Return the seconds that a candidate adds to a cover as far as costs add up: measured if they are known."""
        known = self._costs.known_cost(candidate)
        cost = None if known is None else Cost.of(known)
        seconds = cost.seconds if cost is not None and cost.is_known else self._costs.expected_s(candidate)
        return seconds + self._costs.launch_penalty_s(candidate)

    def child_of(self, parents: Sequence[Genome]) -> Genome:
        """Return a child of one or two parents, with one mutation."""
        genome = self._crossed(*parents) if len(parents) > 1 else parents[0]
        targets, cuts = list(genome.targets), set(genome.cuts)
        first = self._draw.randrange(len(targets))
        if self._borders and self._draw.random() < 0.5:
            border = self._draw.choice(self._borders)
            cuts ^= {border}
            if targets[border[0]] != targets[border[1]]:
                # A border between targets goes away when one side takes over the other.
                giver, taker = self._draw.sample(border, 2)
                targets[giver] = targets[taker]
                cuts -= {border}
        else:
            target = self._draw.choice(self._alleles[first] or [targets[first]])
            for number in self._run_at(first, targets):
                if target in self._alleles[number]:
                    targets[number] = target
        kept = {(a, b) for a, b in cuts if targets[a] == targets[b]}
        return Genome(tuple(targets), frozenset(kept))

    def _run_at(self, first: int, targets: Sequence[int]) -> range:
        """Return groups in a row that change together: all of one target around a group, or some from there on."""
        start, stop = first, min(len(targets), first + 1 + int(self._draw.expovariate(0.7)))
        if self._draw.random() < 0.5:
            start = next((i + 1 for i in range(first, -1, -1) if targets[i] != targets[first]), 0)
            stop = next((i for i in range(first, len(targets)) if targets[i] != targets[first]), len(targets))
        return range(start, stop)

    def _crossed(self, mother: Genome, father: Genome) -> Genome:
        """Return a two-point crossover."""
        start, stop = sorted(self._draw.choices(range(len(self.groups) + 1), k=2))
        middle = range(start, stop)
        targets = (*mother.targets[:start], *father.targets[start:stop], *mother.targets[stop:])
        cuts = {pair for pair in mother.cuts if not all(number in middle for number in pair)}
        return Genome(targets, frozenset(cuts | {pair for pair in father.cuts if all(n in middle for n in pair)}))


class EvolutionaryStrategy(LazyStrategy):
    """The lazy search, and then an evolution of its best covers by their measured end-to-end times.

    Covers on devices are not refined: kernels that run at once are the business of another search.
    """

    name = "evolutionary"

    def refine(
        self, problem: SearchProblem[C], costs: CostSource[C], seeds: Sequence[Sequence[C]], timer: CoverTimer[C]
    ) -> Sequence[Sequence[C]]:
        """Return covers that took less time than the best seeds, the fastest first."""
        if problem.transfers is not None or not seeds or not problem.n:
            return []
        draw = random.Random(timer.seed)
        population = Population(problem, costs, [*seeds, *_more_seeds(problem, costs, seeds)], draw)
        times: dict[tuple[C, ...], float] = {}
        alive: list[tuple[float, Genome]] = []

        def live(genome: Genome, cover: tuple[C, ...]) -> float:
            times[cover] = time = timer.time_of(cover)
            alive.append((time, genome))
            alive.sort(key=lambda each: each[0])
            del alive[_PARENTS:]
            return time

        for seed in [*dict.fromkeys(map(_ordered, seeds))][:_TIMED_SEEDS]:
            if _is_over(timer):
                break
            live(population.genome_of(seed), seed)
        best_seed = best = min(times.values(), default=math.inf)
        known = set(times)
        least_s = min((math.fsum(map(population.expected_s, cover)) for cover in known), default=math.inf)
        tired = draws = 0
        while alive and not _is_over(timer) and tired < _TIRED and draws < _DRAWS:
            draws += 1
            child = population.child_of(_parents(alive, draw))
            cover = population.cover_of(child)
            if cover is None or cover in known:
                continue
            known.add(cover)
            if math.fsum(map(population.expected_s, cover)) > _HOPELESS * least_s:
                continue
            time, draws, tired = live(child, cover), 0, tired + 1
            if time < best:
                best, tired = time, 0
        better = sorted((cover for cover, time in times.items() if time < best_seed), key=lambda cover: times[cover])
        return better[:_FINALISTS]


def _is_over(timer: CoverTimer[Any]) -> bool:
    return timer.seconds_left <= 0 or timer.should_stop()


def _parents(alive: Sequence[tuple[float, Genome]], draw: random.Random) -> list[Genome]:
    """Draw one parent or two by tournament."""
    count = 2 if draw.random() < _CROSSED else 1
    return [min(draw.choices(alive, k=_TOURNAMENT), key=lambda each: each[0])[1] for _ in range(count)]


def _ordered(cover: Sequence[C]) -> tuple[C, ...]:
    return tuple(sorted(cover, key=lambda candidate: candidate.first))


def _more_seeds(problem: SearchProblem[C], costs: CostSource[C], seeds: Sequence[Sequence[C]]) -> Iterable[Sequence[C]]:
    """Return measured covers next to the best, as long as there are not too many groups."""
    if problem.is_wide:
        return []

    def cost_of(candidate: C) -> Cost:
        known = costs.known_cost(candidate)
        return Cost.INVALID if known is None else Cost.of(known)

    found = k_best(problem.n, problem.candidates, cost_of, _MORE_SEEDS, launch_penalty_of=costs.launch_penalty_s)
    taken: list[Sequence[C]] = []
    for cover in found if isinstance(found, list) else ():
        if len(_groups(problem.n, [*seeds, *taken, cover.candidates])) <= _MOST_GROUPS:
            taken.append(cover.candidates)
    return taken


def _groups(n: int, covers: Iterable[Sequence[Any]]) -> list[int]:
    """Return the sets of nodes that are together in every cover, by their least nodes."""
    groups = [(1 << n) - 1]
    for cover in covers:
        groups = [both for bits in groups for candidate in cover if (both := bits & candidate.bits)]
    return sorted(groups, key=lambda bits: bits & -bits)
