"""The learned model of times: values that are stored as data, and what they predict."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from collage.database import FactKind
from collage.measure.operator_work import WorkByOperator
from collage.prediction._features import Rates, class_of, columns, parts_s
from collage.prediction._trees import Tree
from collage.system.codec import Count, Positive, Share, from_json

__all__ = ["PREDICTOR", "Forecast", "Held", "Predictor", "Range", "default_predictor", "range_of", "usual"]

# Of ten models, one may be below a range, and one above it.
_OUTSIDE = 0.1
# A machine of at most twice the rates, or of half of them, differs by less than models do.
_ALIKE = 2.0
# The search does not look for less, see ``CompileOptions.min_gain``. So no range is narrower on either side.
_LEAST = 0.02
_DEFAULT = "default.json"


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with the range in which it is expected four times of five."""

    low: float
    expected: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Held:
    """The outcome of a compiled model.

    Attributes:
        model: Its path.
        singles_s: Seconds on each target alone: predicted by a predictor that learned nothing from this model, and true.
        gain: The gain over the fastest of them.
        wall_s: Seconds of the compilation; None if a budget ended it.
    """

    model: str
    singles_s: Mapping[str, tuple[Positive, Positive]]
    gain: Positive
    wall_s: Positive | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction of one model.

    Attributes:
        singles_s: Seconds on each target alone that is known and takes the model.
        gain: The gain over the fastest of them, as of all models that were learned from.
        wall_s: Seconds of a compilation of which no timing is known, as of all models that were learned from.
        unlike: The respects in which the model or the machine is unlike the training data.
    """

    singles_s: Mapping[str, Range]
    gain: Range | None
    wall_s: Range | None
    unlike: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predictor:
    """A learned model of times.

    Attributes:
        command: The command that made it, or a sentence on where its timings are from.
        timings: Number of timings that it learned from.
        machines: The rates of the machines of these timings, with all their processors.
        operators: The operators that occurred, as in ``Work``.
        largest_s: The longest of these timings.
        coefficients: For each target the factors on the parts of a time, see ``amounts``.
        trees: Each corrects the logarithm of the sum of the parts.
        held: The outcomes of all compiled models.
    """

    command: str
    timings: Count
    machines: tuple[Rates, ...]
    operators: tuple[str, ...]
    largest_s: Share
    coefficients: Mapping[str, Mapping[str, Share]]
    trees: tuple[Tree, ...]
    held: tuple[Held, ...]

    def __post_init__(self) -> None:
        """Refuse trees that compare features that there are not.

        Raises:
            ValueError: There is such a tree.
        """
        none = WorkByOperator({})
        count = len(columns(none, Rates(1.0, 1.0, 1.0), {"": 1.0})) + len(self.coefficients)
        if any(feature >= count for tree in self.trees for feature in tree.feature):
            raise ValueError("a tree compares a feature that is not there")

    def features(self, work: WorkByOperator, target: str, rates: Rates, parts: Mapping[str, float]) -> list[float]:
        """Return the features of a kernel on a target."""
        return [*columns(work, rates, parts), *(float(name == target) for name in self.coefficients)]

    def class_s(self, work: WorkByOperator, target: str, rates: Rates) -> dict[str, float]:
        """Return the expected seconds of a kernel on a target that is known, by class of operator."""
        parts = parts_s(work, rates, self.coefficients[target])
        if not sum(parts.values()) > 0:
            return {}
        features = self.features(work, target, rates, parts)
        factor = math.exp(sum(tree.evaluate(features) for tree in self.trees))
        return {name: seconds * factor for name, seconds in parts.items()}

    def forecast(
        self, work: WorkByOperator, targets: Mapping[str, tuple[str, float]], rates: Rates, factors: Mapping[str, float]
    ) -> Forecast:
        """Predict a model.

        Args:
            work: The work of the whole model.
            targets: The targets that take all of it: the name under which each is known here, and its threads.
            rates: The rates of this machine, with all its processors.
            factors: Corrections by known name, from timings of this machine.
        """
        by_class = {}
        for title, (name, threads) in targets.items():
            used = replace(rates, **{f: getattr(rates, f) * threads / rates.threads for f in Rates.__slots__})
            if name in self.coefficients and (parts := self.class_s(work, name, used)):
                by_class[title] = {part: seconds * factors.get(name, 1.0) for part, seconds in parts.items()}
        single_pairs = [pair for held in self.held for pair in held.singles_s.values()]
        singles = {title: range_of(sum(parts.values()), single_pairs) for title, parts in by_class.items()}
        # No feature of a model predicted these better than their median over the other models did.
        gain = usual([held.gain for held in self.held]) if by_class else None
        wall = usual([held.wall_s for held in self.held if held.wall_s is not None]) if by_class else None
        return Forecast(singles, gain, wall, tuple(self._unlike(work, rates, singles)))

    def score(self) -> tuple[int, int]:
        """Return the number of held models whose gain was in the range that the others give, and the number of them."""
        inside = 0
        for held in self.held:
            expected = usual([other.gain for other in self.held if other is not held])
            inside += expected is not None and held.gain in expected
        return inside, len(self.held)

    def _unlike(self, work: WorkByOperator, rates: Rates, singles: Mapping[str, Range]) -> list[str]:
        found = []
        if strange := sorted(set(work.operators) - set(self.operators)):
            classes = sorted({class_of(label) for label in strange})
            found.append(f"operators: {', '.join(strange[:5])} ({', '.join(classes)})")
        if work.unknown:
            found.append(f"{work.unknown} operators whose lengths depend on values")
        if not any(_is_alike(rates, each) for each in self.machines):
            found.append("this machine: more than twice, or less than half, as fast, or of as many processors")
        if singles and min(each.expected for each in singles.values()) > self.largest_s:
            found.append("a model that takes longer than all that it learned from")
        return found


PREDICTOR: FactKind[Predictor] = FactKind("predictor", Predictor)


def default_predictor() -> Predictor:
    """Return the predictor that is shipped; ``command`` says where it is from."""
    text = files("collage.prediction").joinpath(_DEFAULT).read_text(encoding="utf-8")
    return from_json(Predictor, json.loads(text))


def usual(outcomes: Sequence[float]) -> Range | None:
    """Return the median of some outcomes with the range of most of them; None if there are none."""
    if not outcomes:
        return None
    middle = statistics.median(outcomes)
    return range_of(middle, [(middle, each) for each in outcomes])


def range_of(expected: float, pairs: Sequence[tuple[float, float]]) -> Range:
    """Return the range of a figure by the errors of earlier predictions; with few of these, by the largest.

    Args:
        expected: The prediction.
        pairs: Earlier predictions, at least one, each with the true figure.
    """
    ratios = sorted(true / predicted for predicted, true in pairs)
    outside = max(0, math.floor(_OUTSIDE * (len(ratios) + 1)) - 1)
    low, high = min(1.0, ratios[outside]), max(1.0, ratios[-1 - outside])
    return Range(expected * low * (1.0 - _LEAST), expected, expected * high * (1.0 + _LEAST))


def _is_alike(rates: Rates, other: Rates) -> bool:
    pairs = [(getattr(rates, name), getattr(other, name)) for name in Rates.__slots__]
    return all(1 / _ALIKE <= a / b <= _ALIKE for a, b in pairs)
