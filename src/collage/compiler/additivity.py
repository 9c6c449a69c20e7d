"""Calibration: what plans that run end to end say about the costs that they were predicted from (design section 7).

Costs add, so what a plan takes is known before it runs. Whether they do is seen by timing the kernels of the fastest chain of
the finals beside the chain itself, in turns. Where they do not, the costs of chains are corrected, and the search is held once
more with what was learned. Specification 003, "Robust candidate kernel latency measurement".
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import asdict, astuple, replace

from collage._errors import ToolchainError
from collage.compiler.final_comparison import Finals, plan_signature, race_contestant
from collage.compiler.plans import Plan, lower, predicted_s
from collage.compiler.session import Tuning
from collage.cost.cost import Correction
from collage.measure.additivity import Part, Reckoning, reckon
from collage.measure.jobs import weight_bytes
from collage.measure.sampling import slowdown
from collage.system.machine import free_memory_bytes

__all__ = [
    "additive_error",
    "calibrate",
    "correction_of",
    "judge",
    "machine_drift",
    "recall_correction",
    "settled",
    "taught",
]

_CONTRADICTION = 0.05
"""Share of its time by which a chain's kernels may be off before costs are corrected; shares are known to some per cent."""
_SURPRISE = 0.1
"""As far as this a chain may do otherwise than predicted; races and costs that were measured apart are not more alike."""
_LEAST_PARTS = 0.6
_GLIMPSE = 3
"""So many runs, or fewer, only told that a plan is too slow to be raced."""
_COPIES = 8
"""How often a model's weights may be in memory: in the plan, in its kernels, and in what either packs them into."""
_FACT = "calibration-2"


def recall_correction(tuning: Tuning) -> None:
    """Corrects the costs of chains as the last compilation of this model did (see ``calibrate``)."""
    told = None if tuning.options.remeasure else tuning.database.local_fact(**tuning.fact_of_menu(_FACT))
    tuning.correction = Correction() if told is None else Correction(**told)


def calibrate(tuning: Tuning, finals: Finals) -> bool:
    """Corrects the costs of chains by what the fastest of the finals is made of; once in a compilation.

    What a chain takes beyond its kernels is divided among them, and is from then on part of each kernel's launch penalty.
    Where it takes less, kernels find caches in a better state than where they were measured: parts of a model then count as
    much less, and the whole model on one target, of which nothing has to be added up, as before. So they do where kernels add
    up by now, and the chain still did better than predicted: parts were measured while the machine was slower than for the
    whole.

    Nothing is timed where the chain did against the best single as predicted: then costs are right enough to choose by.

    Returns:
        True if costs changed, so that another plan may be the best one: worth one more search.
    """
    chain = _fastest_chain(finals) if tuning.correction == Correction() else None
    if chain is None or abs((slower := _slower_than_predicted(tuning, finals, chain)) - 1.0) <= _SURPRISE:
        return False
    correction, has_looked_again = taught(tuning, chain), False
    if correction.parts == 1.0 and slower < 1.0 - _SURPRISE:
        has_looked_again = tuning.look_again(chain.kernels)
        slower = _slower_than_predicted(tuning, finals, chain)
        if slower < 1.0 - _SURPRISE:
            correction = Correction(parts=max(slower, _LEAST_PARTS))
    if correction == Correction():
        return has_looked_again
    if correction.chain_s:
        tuning.say(
            f"chains cost {correction.chain_s * 1e6:.0f} us more for each kernel than was measured; searching again"
        )
    else:
        tuning.say(f"chains take {1.0 - correction.parts:.0%} less than their kernels add up to; searching again")
    tuning.correction = correction
    tuning.database.keep_local_fact(asdict(correction), **tuning.fact_of_menu(_FACT))
    return True


def taught(tuning: Tuning, chain: Plan) -> Correction:
    """What a chain teaches that is timed beside its kernels: what it said twice, and of that the less."""
    corrections: list[Correction] = []
    for occasion in (1, 2):
        found = _reckoned(tuning, chain, occasion)
        corrections.append(Correction() if found is None else correction_of(tuning, chain, found))
        if corrections[-1] == Correction():
            return Correction()
    first, second = corrections
    return Correction(min(first.chain_s, second.chain_s), max(first.parts, second.parts))


def correction_of(tuning: Tuning, chain: Plan, found: Reckoning) -> Correction:
    """What one occasion says of a chain; nothing where its kernels add up to it, more or less."""
    launch = _launch_s(tuning, chain) / found.whole_s
    missing = 1.0 - found.parts - launch
    if missing > _CONTRADICTION:
        return Correction(chain_s=missing * found.whole_s / len(chain.kernels))
    if missing < -_CONTRADICTION:
        return Correction(parts=min(max((1.0 - launch) / found.parts, _LEAST_PARTS), 1.0))
    return Correction()


def judge(tuning: Tuning, finals: Finals) -> Finals:
    """The finals with the winner's additive error, as a share of its time: 0 for one kernel, None if it is not known.

    A correction was learned from one chain. It is judged by the winner, which may be another one, on other occasions. Where its
    kernels add up better without, costs are stated without; the next search begins with it all the same, and ends as this one.
    """
    plan = finals.plan
    if plan is None or len(plan.kernels) <= 1:
        return replace(finals, additive_error=None if plan is None else 0.0)
    found = settled(tuning, plan, (1, 2) if tuning.correction == Correction() else (3, 4))
    if found is None:
        return replace(finals, additive_error=_raced_error(tuning, finals, plan))
    error = additive_error(tuning, plan, found)
    if tuning.correction != Correction():
        learned, tuning.correction = tuning.correction, Correction()
        without = additive_error(tuning, plan, found)
        if abs(error) <= abs(without):
            tuning.correction = learned
        else:
            tuning.say("the winner contradicts the correction: its kernels add up without")
            error = without
    return replace(finals, additive_error=error)


def additive_error(tuning: Tuning, plan: Plan, found: Reckoning) -> float:
    """Share of a plan's time by which its kernels and launch penalties do not add up to it; positive where it takes longer."""
    return 1.0 - tuning.correction.parts * found.parts - _launch_s(tuning, plan) / found.whole_s


def machine_drift(finals: Finals) -> float:
    """Return how many times as long as on a calm machine kernels took in the race.

    The race's pace tells it (see ``collage.measure.noise_monitor``).
    """
    return slowdown(finals.pace)


def _reckoned(tuning: Tuning, plan: Plan, occasion: int) -> Reckoning | None:
    """A plan beside its kernels, in turns; kept, so that the next compilation need not do it.

    Args:
        tuning: What is known.
        plan: A chain on the machine's processors.
        occasion: Which one: two teach a correction, others judge it. Each has a process of its own for the plan.

    Returns:
        None where that cannot be told: on several devices, where nothing is raced, or where time or memory are short.
    """
    if not _can_be_reckoned(tuning, plan):
        return None
    name = {**plan_signature(tuning, "beside-1", [plan]), "occasion": occasion}
    told = None if tuning.options.remeasure else tuning.database.local_fact(**name)
    if told is not None:
        return Reckoning(**told)
    models = [(tuning.kernels.model(place.sub_graph, place.target), place) for place in plan.kernels]
    distinct = {tuning.key_of(place.sub_graph, place.target): model for model, place in models}
    counts = Counter(tuning.key_of(place.sub_graph, place.target) for place in plan.kernels)
    try:
        whole = race_contestant(tuning, plan, lower(tuning, plan))
        jobs = [(tuning.estimator.job(model, key[1]), counts[key]) for key, model in distinct.items()]
        parts = [Part(tuning.workshop.alone(job), count) for job, count in jobs]
        found = reckon(whole, parts, tuning.say, wait=tuning.workshop.calm.wait)
    except ToolchainError as error:
        tuning.say(f"kernels cannot be timed beside {plan.name}: {error}")
        return None
    except KeyboardInterrupt:
        tuning.say("interrupted: going on with the best so far")
        return None
    if found is not None:
        tuning.database.keep_local_fact(asdict(found), **name)
    return found


def settled(tuning: Tuning, plan: Plan, occasions: tuple[int, int]) -> Reckoning | None:
    """What one occasion says; where that is a contradiction, the mean of two."""
    first = _reckoned(tuning, plan, occasions[0])
    if first is None or abs(additive_error(tuning, plan, first)) <= _CONTRADICTION:
        return first
    second = _reckoned(tuning, plan, occasions[1])
    return (
        first if second is None else Reckoning(*map(statistics.mean, zip(astuple(first), astuple(second), strict=True)))
    )


def _can_be_reckoned(tuning: Tuning, plan: Plan) -> bool:
    has_memory = _COPIES * weight_bytes(tuning.model) < free_memory_bytes()
    if tuning.placement is not None or not tuning.options.finals or not has_memory:
        return False
    has_time = tuning.options.time_budget_s is None or tuning.search_s_left > 0
    return has_time and all(place.target.kind == "llvm" for place in plan.kernels)


def _fastest_chain(finals: Finals) -> Plan | None:
    """The fastest plan of several kernels of which more is known than that it seemed too slow to be raced."""
    raced = [
        (standing.paired_s or standing.time.median_s, plan)
        for plan in finals.plans
        if (standing := finals.standings.get(plan.name)) is not None
        and standing.time is not None
        and standing.time.count > _GLIMPSE
        and len(plan.kernels) > 1
    ]
    return min(raced, key=lambda found: found[0], default=(0.0, None))[1]


def _slower_than_predicted(tuning: Tuning, finals: Finals, chain: Plan) -> float:
    """How many times as long as predicted a chain took, against the best single; infinite where that cannot be compared."""

    def ratio(plan: Plan) -> float | None:
        standing, predicted = finals.standings.get(plan.name), predicted_s(tuning, plan)
        if standing is None or standing.time is None or not predicted:
            return None
        return (standing.paired_s or standing.time.median_s) / predicted

    singles = [plan for plan in finals.plans if plan.single is not None and ratio(plan) is not None]
    best = min(singles, key=lambda plan: predicted_s(tuning, plan) or math.inf, default=None)
    own, other = ratio(chain), None if best is None else ratio(best)
    return math.inf if own is None or other is None else own / other


def _launch_s(tuning: Tuning, plan: Plan) -> float:
    return sum(tuning.launch_penalty_s(place.target) for place in plan.kernels)


def _raced_error(tuning: Tuning, finals: Finals, plan: Plan) -> float | None:
    """The same by what was predicted and what was raced, minutes apart; what the machine's pace explains is left out."""
    standing, predicted = finals.standings.get(plan.name), predicted_s(tuning, plan)
    if standing is None or standing.time is None or predicted is None:
        return None
    return 1.0 - machine_drift(finals) * predicted / (standing.paired_s or standing.time.median_s)
