"""Metrics: how much worse than the original model's an answer is, and how surely that is known.

Every metric gives a **drop** for each sample: 0 for the original's own answer, more for worse ones. Drops of many samples are
summed up with an interval, and a limit is kept if the interval's worse end keeps it.

==================  ====================================================================  =============================
metric              drop of one sample                                                    summed up as
==================  ====================================================================  =============================
``max-error``       largest difference, relative to the largest output                    the largest, see below
``cosine``          1 - cosine of the angle between the outputs                           mean, Student's t
``snr``             noise over signal, as amplitudes: 0.01 is 40 dB                       mean, Student's t
``top1``            1 if the class differs; with labels, what is lost less what is won     share, Wilson's interval
``top5``            the same if the right class is not among the first five               share, Wilson's interval
``next-token``      share of positions at which the most likely token differs              mean, Student's t
``kl``              Kullback-Leibler divergence from the original's tokens, in nats        mean, Student's t
``perplexity``      what the logarithm of the text's perplexity grows by                   growth of perplexity
``python:M:F``      score of the original less that of the answer                         mean, Student's t
==================  ====================================================================  =============================

An error must be kept by every input, not by the mean. So ``max-error`` is bounded by a prediction interval: twenty further
inputs all stay below it, with 95 % confidence, if the logarithms of errors are normally distributed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from collage._errors import InputError, UsageError
from collage.calibration.token_probabilities import divergence, scores_of, surprise
from collage.numerics.judge import judge

__all__ = [
    "BUILT_IN",
    "Estimate",
    "Metric",
    "Perplexity",
    "PythonMetric",
    "find_metric",
    "least_samples",
    "mean_interval",
    "prediction_bound",
    "wilson",
]

Array = np.ndarray[Any, np.dtype[Any]]

_CONFIDENCE = 0.95
_FURTHER = 20
"""So many further inputs are to keep a bound of errors."""
_FEW = 4
_FEW_MARGIN = 2.0
"""The bound of fewer than four errors, as a multiple of the largest of them."""
_MANY, _MOST_MARGIN = 20, 4.0
"""Number of errors from which a multiple of the largest is the largest bound, and this multiple; see ``prediction_bound``."""
_MOST_LOG = 700.0
"""Logarithm of a number that is not yet infinite."""
_LARGEST = 1e150
_IMAGE_RANK = 4
_PYTHON = re.compile(r"python:([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A drop over many samples.

    Attributes:
        value: The estimate.
        low: The better end of its interval.
        high: The worse end.
        samples: Samples that it comes from.
        is_vague: There are too few samples for a useful bound at the worse end.
        original: The original model's own score on these samples; None if the metric only compares.
    """

    value: float
    low: float
    high: float
    samples: int
    is_vague: bool = False
    original: float | None = None

    def keeps(self, limit: float) -> bool:
        """Return True if the worse end keeps a limit; of too few samples, if the estimate itself does."""
        return (self.value if self.is_vague else self.high) <= limit


class Metric(Protocol):
    """A measure of answers."""

    @property
    def name(self) -> str:
        """The name that users write."""
        ...

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        """Return how much worse than the original's an answer to one sample is."""
        ...

    def score(self, expected: Mapping[str, Array], label: Array | None) -> float | None:
        """Return the original's own score on one sample; None if the metric only compares."""
        ...

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        """Return the drop over many samples.

        Args:
            drops: One for each sample.
            limit: Decides if there are too few samples.
            count: Number of similar samples for which the interval is expected; 0 means these samples. The bound of an
                error is that of these samples; fewer samples make it wider.
        """
        ...

    def told(self, estimate: Estimate) -> str:
        """Return an estimate in words."""
        ...


class _Comparing:
    """A metric by which the original has no score of its own."""

    __slots__ = ()

    def score(self, expected: Mapping[str, Array], label: Array | None) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class _MaxError(_Comparing):
    name: str = "max-error"

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        return max((_error(outputs.get(name), right) for name, right in expected.items()), default=0.0)

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        worst = max(drops)
        return Estimate(worst, min(drops), prediction_bound(drops), len(drops))

    def told(self, estimate: Estimate) -> str:
        further = f"below {estimate.high:.1e} on {_FURTHER} further inputs"
        return f"largest error {estimate.value:.1e} of the largest output ({further})"


@dataclass(frozen=True, slots=True)
class _Cosine(_Comparing):
    name: str = "cosine"

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        left, right = _as_vectors(outputs, expected)
        scale = float(np.linalg.norm(left) * np.linalg.norm(right))
        return 1.0 - float(left @ right) / scale if scale else float(np.any(left != right))

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        return mean_interval(drops, count)

    def told(self, estimate: Estimate) -> str:
        return f"cosine similarity {1 - estimate.value:.6f} [{1 - estimate.high:.6f}, {1 - estimate.low:.6f}]"


@dataclass(frozen=True, slots=True)
class _Snr(_Comparing):
    name: str = "snr"

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        left, right = _as_vectors(outputs, expected)
        noise, signal = float(np.linalg.norm(left - right)), float(np.linalg.norm(right))
        return noise / signal if signal else float(noise > 0)

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        return mean_interval(drops, count)

    def told(self, estimate: Estimate) -> str:
        value, low, high = (_decibels(ratio) for ratio in (estimate.value, estimate.high, estimate.low))
        return f"signal to noise {value:.1f} dB [{low:.1f}, {high:.1f}]"


@dataclass(frozen=True, slots=True)
class _Top:
    """Agreement with the original model, or accuracy where samples have labels, among the first ``count`` classes."""

    name: str
    count: int
    has_labels: bool = False

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        name = _classes_of(expected)
        # If only some samples have labels, none is used.
        wanted = _ranked(expected[name], 1)[..., 0] if label is None or not self.has_labels else label
        if not np.size(wanted):  # A detector that finds nothing agrees with one that finds nothing.
            found = outputs.get(name)
            return float(found is None or np.shape(found) != np.shape(expected[name]))
        if not self.has_labels:
            return 1.0 - float(np.mean(self._hits_of(outputs, expected, name, wanted)))
        before = _hits(expected[name], wanted, self.count)
        after = self._hits_of(outputs, expected, name, wanted)
        return float(np.mean(before.astype(float) - after.astype(float)))

    def _hits_of(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], name: str, wanted: Array) -> Array:
        """Return which classes an answer has right; none if its scores have another shape than the original's."""
        scores = outputs.get(name)
        if scores is None or np.shape(scores) != np.shape(expected[name]):
            return np.zeros_like(_hits(expected[name], wanted, self.count))
        hits = _hits(scores, wanted, self.count)
        if "float" not in scores.dtype.name:
            return hits
        # NaN has no order, and would be ranked by the numbers of classes.
        is_lost = [np.isnan(each.astype(np.float64)).any(axis=_axis(each)) for each in (scores, expected[name])]
        return np.asarray(hits & ~(is_lost[0] & ~is_lost[1]))

    def score(self, expected: Mapping[str, Array], label: Array | None) -> float | None:
        if not self.has_labels or label is None:
            return None
        hits = _hits(expected[_classes_of(expected)], label, self.count)
        return float(np.mean(hits)) if hits.size else None

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        return _answers_interval(drops, limit, count)

    def told(self, estimate: Estimate) -> str:
        if self.has_labels:
            value, low, high = (100 * drop for drop in (estimate.value, estimate.low, estimate.high))
            drop = f"a drop of {value:.1f} % [{low:.1f}, {high:.1f}]"
            scores = "" if estimate.original is None else f" {_instead(100 * estimate.original, value, '.1f', ' %')},"
            return f"{self.name.replace('top', 'top-')} accuracy{scores} {drop}"
        low, high = 100 * (1 - estimate.high), 100 * (1 - estimate.low)
        return (
            f"{self.name.replace('top', 'top-')} agreement {100 * (1 - estimate.value):.1f} % [{low:.1f}, {high:.1f}]"
        )


@dataclass(frozen=True, slots=True)
class _Divergence(_Comparing):
    """Distance of the answer's distribution of tokens from the original's."""

    name: str = "kl"

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        return divergence(*scores_of(outputs, expected))

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        return mean_interval(drops, count)

    def told(self, estimate: Estimate) -> str:
        return f"KL divergence {estimate.value:.2e} nats a token [{estimate.low:.2e}, {estimate.high:.2e}]"


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of a text: labels are the tokens that follow, negative ones do not count.

    The drop of many samples is the share by which perplexity grows.
    """

    name: str = "perplexity"

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        """Return what the mean negative logarithm of the probabilities of the right tokens grows by."""
        right, found = scores_of(outputs, expected)
        return surprise(found, label, right.shape) - surprise(right, label, right.shape)

    def score(self, expected: Mapping[str, Array], label: Array | None) -> float | None:
        """Return the logarithm of the original's own perplexity."""
        right, _ = scores_of(expected, expected)
        return surprise(right, label, right.shape)

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        """Return the growth of perplexity over all samples."""
        found = mean_interval(drops, count)
        value, low, high = (math.expm1(min(drop, _MOST_LOG)) for drop in (found.value, found.low, found.high))
        return Estimate(value, low, high, found.samples, found.is_vague)

    def told(self, estimate: Estimate) -> str:
        """Return an estimate in words."""
        value, low, high = (100 * drop for drop in (estimate.value, estimate.low, estimate.high))
        growth = f"{value:+.2f} % [{low:+.2f}, {high:+.2f}]"
        if estimate.original is None:
            return f"perplexity {growth}"
        before = math.exp(min(estimate.original, _MOST_LOG))
        return f"perplexity {before * (1 + estimate.value):.4g} instead of the original's {before:.4g}, {growth}"


@dataclass(frozen=True, slots=True)
class PythonMetric:
    """A function of the user's, which runs in a process of its own, see ``collage.calibration.judge``.

    Attributes:
        name: Name as the user wrote it.
        module: The module that has it.
        function: Its name. It takes outputs, the original's outputs and the label, and returns a number: more is better.
    """

    name: str
    module: str
    function: str

    def drop(self, outputs: Mapping[str, Array], expected: Mapping[str, Array], label: Array | None) -> float:
        """Refuse: a function of the user's is called in a process of its own."""
        raise NotImplementedError

    def score(self, expected: Mapping[str, Array], label: Array | None) -> float | None:
        """Refuse, as ``drop`` does."""
        raise NotImplementedError

    def sum_up(self, drops: Sequence[float], limit: float | None = None, count: int = 0) -> Estimate:
        """Return the mean, as that of ``top1`` if all samples are either right or wrong."""
        return _answers_interval(drops, limit, count)

    def told(self, estimate: Estimate) -> str:
        """Return an estimate in words."""
        drop = f"a drop of {estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"
        if estimate.original is None:
            return f"{self.name}: {drop}"
        return f"{self.name} {_instead(estimate.original, estimate.value, '.4g')}, {drop}"


BUILT_IN = ("max-error", "cosine", "snr", "top1", "top5", "next-token", "kl", "perplexity")


def find_metric(name: str, has_labels: bool = False) -> Metric:
    """Return a metric by name.

    Args:
        name: One of ``BUILT_IN``, or ``python:module:function``.
        has_labels: Samples say what is right.

    Raises:
        UsageError: There is none of this name.
    """
    tops = {"top1": 1, "top5": 5}
    if name in tops:
        return _Top(name, tops[name], has_labels)
    plain: dict[str, Metric] = {
        metric.name: metric
        for metric in (_MaxError(), _Cosine(), _Snr(), _Top("next-token", 1), _Divergence(), Perplexity())
    }
    if name in plain:
        return plain[name]
    if (found := _PYTHON.fullmatch(name)) is not None:
        return PythonMetric(name, found[1], found[2])
    raise UsageError(f"metric {name!r}: it is one of {', '.join(BUILT_IN)}, or python:module:function")


def least_samples(limit: float) -> int:
    """Return the number of judging samples of which not one may change its answer for a drop to be below a limit for certain."""
    z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    return math.ceil(z * z * (1 - limit) / limit) if limit > 0 else 0


def wilson(hits: float, count: int, confidence: float = _CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's interval of a share."""
    if not count:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (0.0 if not hits else max(0.0, middle - half)), (1.0 if hits == count else min(1.0, middle + half))


def _answers_interval(drops: Sequence[float], limit: float | None, count: int) -> Estimate:
    """Return the mean of what is lost less what is won, by Wilson's interval: samples that all agree do not exclude others."""
    if any(drop not in (-1.0, 0.0, 1.0) for drop in drops):
        return mean_interval(drops, count)  # Scores, or several classes to a sample: no independent answers.
    count = count or len(drops)
    lost, won = (count * sum(found) / len(drops) for found in zip(*((d > 0, d < 0) for d in drops), strict=True))
    (lost_low, lost_high), (won_low, won_high) = wilson(lost, count), wilson(won, count)
    low, high = (lost_low - won_high, lost_high - won_low) if won else (lost_low, lost_high)
    is_vague = limit is not None and wilson(0, count)[1] > limit
    return Estimate((lost - won) / count, low, high, len(drops), is_vague)


def mean_interval(values: Sequence[float], count: int = 0) -> Estimate:
    """Return a mean with the interval of Student's t, as of ``count`` values with this deviation; of one value there is none.

    It is infinite if a value is NaN, or so large that its square is not finite.
    """
    if not all(abs(value) < _LARGEST for value in values):
        return Estimate(math.inf, math.inf, math.inf, len(values))
    mean, count = statistics.fmean(values), count or len(values)
    if len(values) == 1 or count == 1:
        return Estimate(mean, mean, mean, len(values), is_vague=True)
    half = _student(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, len(values))


def _student(degrees: int, confidence: float = _CONFIDENCE) -> float:
    """Return a quantile of Student's t: exact for one and two degrees of freedom, else by a series (Abramowitz 26.7.5)."""
    p = (1 + confidence) / 2
    if degrees == 1:
        return math.tan(math.pi * (p - 0.5))
    if degrees == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z, n = NormalDist().inv_cdf(p), degrees
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / n**power for power, term in enumerate(terms, 1))


def prediction_bound(errors: Sequence[float]) -> float:
    """Return a bound that twenty further errors all keep, with 95 % confidence, if logarithms of errors are normal.

    It is at least the largest error. For fewer than four errors it is twice the largest. From 20 errors on it is at most
    four times the largest: errors of saturated outputs lie many magnitudes apart, and their logarithms are not normal.
    Simulated with 40 errors of a classifier's probabilities, the bound without that limit is 3,000 times the largest
    error; with it, 20 further errors keep it in 99.8 % of cases. If logarithms are normal with a deviation of 2, they do in
    93 %.
    """
    worst = max(errors)
    positive = [error for error in errors if error > 0]
    if not math.isfinite(worst) or not positive:
        return worst
    if len(positive) < _FEW:
        return _FEW_MARGIN * worst
    logs = [math.log(error) for error in positive]
    count = len(logs)
    # One further error lies beyond with this probability (Bonferroni), so that all together do with at most 5 %.
    beyond = (1 - _CONFIDENCE) / _FURTHER
    factor = _student(count - 1, 1 - 2 * beyond) * math.sqrt(1 + 1 / count)
    bound = max(worst, math.exp(min(statistics.fmean(logs) + factor * statistics.stdev(logs), _MOST_LOG)))
    return min(bound, _MOST_MARGIN * worst) if count >= _MANY else bound


def _error(actual: Array | None, expected: Array) -> float:
    """Return the largest error of one output: of floats relative to the largest; of others the share of different elements."""
    if actual is None or np.shape(actual) != np.shape(expected) or actual.dtype != expected.dtype:
        return math.inf
    if "float" not in expected.dtype.name and expected.dtype.kind != "c":  # NumPy has no kind for integers of 4 bits.
        return float(np.mean(np.asarray(actual != expected))) if expected.size else 0.0
    difference = judge(actual, expected, math.inf)
    return difference.max_rel if difference.ok else math.inf


def _as_vectors(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return all numeric outputs, one after the other; NaN counts where only one side has it.

    An output of another shape or kind counts as zeros: models that select, such as detectors, may select fewer or more.

    Raises:
        InputError: No output is numeric.
    """
    names = [name for name, right in expected.items() if right.dtype.kind not in "OSUT"]
    if not names:
        raise InputError("the outputs have no numbers")
    right = np.concatenate([_numbers(expected[name]) for name in names])
    left = np.concatenate([_numbers(_like(outputs.get(name), expected[name])) for name in names])
    finite = np.isfinite(right)
    return np.where(np.isfinite(left), left, 0.0)[finite], right[finite]


def _numbers(values: Array) -> Array:
    """Return the elements as float64; of complex ones the real and the imaginary parts."""
    if values.dtype.kind == "c":
        return np.ravel(values).astype(np.complex128).view(np.float64)
    return np.ravel(values).astype(np.float64)


def _like(actual: Array | None, expected: Array) -> Array:
    """Return an output, or zeros if it has another shape or kind than the original's."""
    is_alike = (
        actual is not None and np.shape(actual) == np.shape(expected) and actual.dtype.kind == expected.dtype.kind
    )
    return actual if actual is not None and is_alike else np.zeros_like(expected)


def _instead(original: float, drop: float, form: str, unit: str = "") -> str:
    return f"{original - drop:{form}}{unit} instead of the original's {original:{form}}{unit}"


def _decibels(ratio: float) -> float:
    return -20.0 * math.log10(max(ratio, 1e-15))


def _classes_of(outputs: Mapping[str, Array]) -> str:
    """Return the name of the output that classes are read from: the first with scores, else the first of integers.

    Raises:
        InputError: There is none.
    """
    for name, value in outputs.items():
        if "float" in value.dtype.name and value.ndim and value.shape[_axis(value)] > 1:
            return name
    for name, value in outputs.items():
        if value.dtype.kind in "iu":
            return name
    raise InputError("top1 and top5 need an output of scores, one for each class, and the model has none")


def _axis(scores: Array) -> int:
    """Return the axis of classes: the last one, and the second one of images."""
    return 1 if scores.ndim >= _IMAGE_RANK else -1


def _ranked(scores: Array, count: int) -> Array:
    """Return the best classes, the best first, along a last axis."""
    if scores.dtype.kind in "iu":
        return np.asarray(scores)[..., np.newaxis]
    order = np.argsort(-np.moveaxis(scores.astype(np.float64), _axis(scores), -1), axis=-1, kind="stable")
    return np.asarray(order[..., :count])


def _hits(scores: Array, wanted: Array, count: int) -> Array:
    ranked = _ranked(scores, count)
    wanted = np.asarray(wanted)
    if wanted.size != math.prod(ranked.shape[:-1]) or wanted.dtype.kind not in "iub":
        raise InputError(
            f"the label is {wanted.dtype}{list(wanted.shape)}; it has to hold integers, class numbers of shape "
            f"{list(ranked.shape[:-1])}"
        )
    classes = scores.shape[_axis(scores)] if "float" in scores.dtype.name else None
    if classes is not None and wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < classes:
        odd = int(wanted.min()) if wanted.min() < 0 else int(wanted.max())
        raise InputError(f"the label is {odd}; the model answers with {classes} classes, 0 to {classes - 1}")
    return np.asarray((ranked == wanted.reshape(ranked.shape[:-1])[..., np.newaxis]).any(axis=-1))
