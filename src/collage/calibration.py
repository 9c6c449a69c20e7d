"""Calibration: what end-to-end times say about the costs that plans were predicted from (design section 7).

Costs add, so what a plan takes is known before it runs. Where the race says otherwise, of every plan that is a chain of
kernels, the costs of chains are corrected, and the search is held once more with what was learned. What the machine was slower
by in the race than when it is calm, for which costs are stated, is left out of account.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict

from collage.cost.cost import Correction
from collage.cost.sampling import slowdown
from collage.finals import Finals
from collage.plans import Plan, predicted_s
from collage.tuning import Tuning

__all__ = ["additive_error", "calibrate", "machine_drift", "recall_correction", "reconsider"]

_CONTRADICTION = 0.1
"""Share by which chains may be slower or faster than predicted before the cost model is corrected."""
_LEAST_PARTS = 0.75
"""Machines are rarely slower than this for a while. Where a chain takes less still, kernels were measured badly."""
_GLIMPSE = 3
"""So many runs, or fewer, only told that a plan is too slow to be raced; of the machine, or of sums, they tell nothing."""


def recall_correction(tuning: Tuning) -> None:
    """Corrects the costs of chains as the last compilation of this model did (see ``calibrate``)."""
    told = None if tuning.options.remeasure else tuning.database.local_fact(**tuning.fact_of_menu("calibration-1"))
    tuning.correction = Correction() if told is None else Correction(**told)


def calibrate(tuning: Tuning, finals: Finals) -> bool:
    """Corrects the costs of chains where their end-to-end times contradict them; once in a compilation.

    What chains took beyond their prediction is divided among their kernels, and is from then on part of each kernel's launch
    penalty. Where every chain took less, its kernels were measured while the machine was slower than when it ran the
    toolchains alone (or gain from each other's caches): parts of the model then count as much less. What the toolchains alone
    are off by, too, is no matter of adding up, and corrects nothing. Before a contradiction is believed, the kernels of these
    chains are measured a second time, where they were measured once.

    Returns:
        True if costs changed, so that another plan may be the best one: worth one more search.
    """
    correction = _correction(tuning, finals) if tuning.correction == Correction() else None
    if correction is None:
        return False
    if tuning.look_again([place for plan, *_ in _chains(tuning, finals) for place in plan.kernels]):
        correction = _correction(tuning, finals)
    if correction is None:
        tuning.say("measured again, kernels add up after all")
        return True
    if correction.chain_s:
        tuning.say(
            f"chains cost {correction.chain_s * 1e6:.0f} us more for each kernel than was measured; searching again"
        )
    else:
        tuning.say(f"chains take {1.0 - correction.parts:.0%} less than their kernels add up to; searching again")
    tuning.correction = correction
    tuning.database.keep_local_fact(asdict(correction), **tuning.fact_of_menu("calibration-1"))
    return True


def reconsider(tuning: Tuning, finals: Finals) -> None:
    """Forgets a correction that the last race contradicts, of whose chains plain sums were right more closely."""
    kept = tuning.correction
    if kept == Correction():
        return
    with_it = _median_error(tuning, finals)
    tuning.correction = Correction()
    without = _median_error(tuning, finals)
    if with_it is None or without is None or with_it <= without:
        tuning.correction = kept
        return
    tuning.say("the second race contradicts the first: kernels add up after all")
    tuning.database.keep_local_fact(asdict(Correction()), **tuning.fact_of_menu("calibration-1"))


def _median_error(tuning: Tuning, finals: Finals) -> float | None:
    """By what share of their predictions the chains of a race are off, to either side."""
    chains = [abs(excess) for _, excess, _ in _chains(tuning, finals)]
    return statistics.median(chains) if chains else None


def _correction(tuning: Tuning, finals: Finals) -> Correction | None:
    """What the chains of the race say, each compared with its prediction; None where that was about right."""
    chains = [(excess, predicted / len(plan.kernels)) for plan, excess, predicted in _chains(tuning, finals)]
    if not chains:
        return None
    if statistics.median(excess for excess, _ in chains) > _CONTRADICTION:
        return Correction(chain_s=statistics.median(excess * share_s for excess, share_s in chains))
    # One chain may have met a kernel that was measured badly. The least of what all agree on is no accident.
    if (least := max(excess for excess, _ in chains)) < -_CONTRADICTION:
        return Correction(parts=max(1.0 + least, _LEAST_PARTS))
    return None


def machine_drift(finals: Finals) -> float:
    """How many times as long as on a calm machine kernels took in the race, as its pace tells (see ``collage.cost.calm``)."""
    return slowdown(finals.pace)


def additive_error(tuning: Tuning, finals: Finals, plan: Plan) -> float | None:
    """Share of a plan's end-to-end time by which its kernels do not add up to it; 0 for one kernel, None if unknown.

    Positive where it took longer than the sum. What the machine was slower by in the race than when it is calm is not the
    addition's error, and left out (see ``machine_drift``).
    """
    for one, ratio, _ in _against_predictions(tuning, finals):
        if one.name == plan.name:
            return 0.0 if len(plan.kernels) == 1 else 1.0 - machine_drift(finals) / ratio
    return None


def _chains(tuning: Tuning, finals: Finals) -> Iterator[tuple[Plan, float, float]]:
    """Chains that were raced, by what share they took longer than their predictions, and these.

    What the machine's pace explains does not count, nor does what the toolchains alone are off by, nor anything in between.
    """
    drift = machine_drift(finals)
    alone = _off_alone(tuning, finals) or drift
    for plan, ratio, predicted in _against_predictions(tuning, finals):
        # What devices do to each other when they work at once is no cost of chains.
        on_one_device = len({place.device for place in plan.kernels}) == 1
        if len(plan.kernels) > 1 and on_one_device and _was_raced(finals, plan):
            yield plan, ratio / statistics.median([ratio, drift, alone]) - 1.0, predicted


def _off_alone(tuning: Tuning, finals: Finals) -> float | None:
    """How many times as long as predicted the toolchains alone took, with nothing to add up; None if none finished."""
    singles = [(plan, ratio) for plan, ratio, _ in _against_predictions(tuning, finals) if len(plan.kernels) == 1]
    raced = [ratio for plan, ratio in singles if _was_raced(finals, plan)]
    ratios = raced or [ratio for _, ratio in singles]
    return statistics.median(ratios) if ratios else None


def _was_raced(finals: Finals, plan: Plan) -> bool:
    """Whether more is known of a plan's time than that it seemed too slow to be raced."""
    time = finals.standings[plan.name].time
    return time is not None and time.count > _GLIMPSE


def _against_predictions(tuning: Tuning, finals: Finals) -> Iterator[tuple[Plan, float, float]]:
    """Plans that finished, how many times as long as predicted they took, and what was predicted, in seconds.

    What they took is as compared with a single's turns just before or after, where they were raced: the machine may be a
    tenth faster or slower in one half of a plan's turns than in the other.
    """
    for plan in finals.plans:
        standing, predicted = finals.standings.get(plan.name), predicted_s(tuning, plan)
        if standing is not None and standing.time is not None and predicted:
            yield plan, (standing.paired_s or standing.time.median_s) / predicted, predicted
