"""The one definition of right: an output may be as far off as float arithmetic itself is, or as a tolerance allows.

An element is right if it is one of the reference's answers, or within the larger of two bounds of the centre:

* the tolerance times the size of its class of elements, see ``collage.numerics.sizes``;
* ``NOISE_FACTOR`` times the noise at that element.

The *noise* is what right arithmetic of the model's own type errs there. ``Evidence`` holds it: the answers of several
runs, unoptimised and with perturbed operands, and the truth in float64 if it can be had. Without evidence, the noise is
the last bit of the usual size alone. Evidence costs runs of the model, so it is gathered where the tolerance does not decide.

Integers, truths and strings have the tolerance 0: they are right if they are exact, or where right runs disagree.

========================  =========  ==============================================
element type              tolerance  because
========================  =========  ==============================================
float64, complex128       1e-7       accumulation order
float32, complex64        1e-4       accumulation order, fast exponentials, Winograd
float16                   2e-3       two units in the last place
bfloat16                  1.6e-2     the same
float8 and smaller        2e-1       the same
int8, uint8               one step   rounding of ties when requantising
other integers, bool      0          exact
strings                   0          exact
========================  =========  ==============================================

A kernel that computes in a coarser type inside is judged by that type; one that quantises inside by 5e-2. If toolchains
add products of bytes in 16 bits and saturate, as on x86 processors without VNNI, they are off by several steps, which is what
every quantised model gets there. So it is judged by 2e-1, unless an accuracy budget says otherwise. A kernel of a
target of reduced precision (``-precision=bf16``) is judged by its norm and by 2.5e-1: the whole model's error
counts there, which the user's accuracy budget bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collage.numerics.sizes import sizes_of

__all__ = [
    "NOISE_FACTOR",
    "QUANTISED_TOLERANCE",
    "REDUCED_TOLERANCE",
    "SATURATING_TOLERANCE",
    "Difference",
    "Evidence",
    "judge",
    "judge_all",
    "tolerance_of",
]

Array = np.ndarray[Any, Any]

# Two right libraries are apart by twice what one errs. Winograd and fast exponentials err a few times as much as sums in order.
# PyTorch's own check allows its compiler 2 to 10 times the error of eager, by norms. See docs/right.md for the figures.
NOISE_FACTOR = 8.0
# Two right runs may differ in all elements in which each of them differs from the centre.
_MORE_TIES = 2.0
QUANTISED_TOLERANCE = 5e-2
SATURATING_TOLERANCE = 2e-1
REDUCED_TOLERANCE = 2.5e-1
_FLOAT_TOLERANCE = {
    "float64": 1e-7,
    "complex128": 1e-7,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
}
_SMALL_FLOAT_TOLERANCE = 2e-1
_FINEST = 1e-7
_LAST_BIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Answers of right arithmetic for one value.

    Attributes:
        answers: The value in several right runs, in the model's own type.
        truth: The value in float64; None if it cannot be had.
        is_decided: The value follows from decisions, such as ArgMax. A few runs do not show all that ties may become. So it is
            right, too, if it differs from the centre in no more than twice as many elements as a right run does, and no farther.
    """

    answers: tuple[Array, ...] = ()
    truth: Array | None = None
    is_decided: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of outputs from the reference.

    Attributes:
        max_abs: Largest absolute difference.
        max_rel: The same relative to the size of its class of elements, where noise does not excuse it.
        tolerance: Largest ``max_rel`` that counts as right without evidence.
        reason: The reason why it is wrong, or None if it is right.
        noise: Largest noise, relative to the size; None without evidence.
        excused: Share of elements that only the noise makes right.
        is_open: True if it is wrong, and evidence might show that it is right.
        wrong: Share of elements that are wrong.
    """

    max_abs: float
    max_rel: float
    tolerance: float
    reason: str | None = None
    noise: float | None = None
    excused: float = 0.0
    is_open: bool = False
    wrong: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the outputs are right."""
        return self.reason is None


def tolerance_of(dtype_names: Iterable[str], quantised: bool = False, saturating: bool = False) -> float:
    """Tolerance for a computation in which floats of these types occur (NumPy or ml_dtypes names).

    Args:
        dtype_names: These types.
        quantised: True if it quantises inside.
        saturating: True if sums of products of bytes may saturate.
    """
    inside = SATURATING_TOLERANCE if saturating else QUANTISED_TOLERANCE
    found = [_FLOAT_TOLERANCE.get(n, _SMALL_FLOAT_TOLERANCE) for n in dtype_names if "float" in n or "complex" in n]
    return max([*found, *([inside] if quantised else []), _FINEST])


def judge(
    actual: Any,
    expected: Any,
    tolerance: float,
    *,
    usual: Any = None,
    beside: Any = None,
    evidence: Evidence | None = None,
    by_norm: bool = False,
    is_inside: bool = False,
) -> Difference:
    """Judge one output; sequences element by element, absent optionals with None.

    Args:
        actual: The computed output.
        expected: The output of the reference run, unoptimised and in the model's own types.
        tolerance: See the table above; it counts for floats. If it is infinite, floats need only be finite where the
            reference is.
        usual: The output on ordinary inputs of the same lengths, if these are others.
        beside: The output on any other inputs, where these are the ordinary ones. It tells magnitudes apart.
        evidence: Answers of right arithmetic; None judges by the tolerance alone.
        by_norm: Judge the norm of floats and no integers, as of a target of reduced precision: a classifier that is
            uncertain between two classes turns small errors into large ones, in a few elements.
        is_inside: The value lies between operators of a model, and its slices share one size. A channel of which ReLU leaves
            hardly anything is as noisy as the others, and far smaller.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return _wrong(tolerance, "a sequence of another length")
        return judge_all(actual, expected, tolerance)
    if expected is None or actual is None:
        same = expected is None and actual is None
        return Difference(0.0, 0.0, tolerance) if same else _wrong(tolerance, "an absent value")
    actual, expected = np.asarray(actual), np.asarray(expected)
    if _is_text(expected) and _is_text(actual):
        actual, expected = _texts(actual), _texts(expected)
    elif actual.dtype != expected.dtype:
        return _wrong(tolerance, f"type {actual.dtype} instead of {expected.dtype}")
    answers = [expected, *(evidence.answers if evidence is not None else ())]
    answers = [answer for answer in answers if answer.shape == actual.shape]
    if not answers:
        if by_norm and tolerance == np.inf and actual.ndim == expected.ndim:
            return Difference(0.0, 0.0, tolerance)
        found = _wrong(tolerance, f"shape {list(actual.shape)} instead of {list(expected.shape)}")
        return replace(found, is_open=evidence is None and actual.ndim == expected.ndim)
    if _is_text(expected):
        same = bool(np.logical_or.reduce([actual == _texts(answer) for answer in answers]).all())
        return (
            Difference(0.0, 0.0, 0.0) if same else replace(_wrong(0.0, "different strings"), is_open=evidence is None)
        )
    like = _like(beside if usual is None else usual, answers[0])
    if by_norm and (roughly := _by_norm(actual, answers[0], tolerance, like)) is not None:
        return roughly
    return _judge_numbers(actual, answers, tolerance, usual, evidence, like, by_slices=not is_inside)


def judge_all(actual: Sequence[Any], expected: Sequence[Any], tolerance: float) -> Difference:
    """Return the worst difference over several outputs, by the tolerance alone."""
    worst = Difference(0.0, 0.0, tolerance)
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        found = judge(left, right, tolerance)
        if not found.ok:
            return replace(found, reason=f"output {index}: {found.reason}")
        if found.max_rel >= worst.max_rel:
            worst = replace(found, max_abs=max(worst.max_abs, found.max_abs))
    return worst


def _judge_numbers(
    actual: Array,
    answers: Sequence[Array],
    tolerance: float,
    usual: Any,
    evidence: Evidence | None,
    like: Array | None,
    *,
    by_slices: bool,
) -> Difference:
    expected = answers[0]
    is_float = "float" in expected.dtype.name or expected.dtype.kind == "c"
    told = tolerance if is_float else 0.0
    if evidence is None and np.array_equal(actual, expected):  # As most values of a prepared model are.
        return Difference(0.0, 0.0, told)
    # Finite tensors of float32 are compared as they are, which takes a fifth of the time.
    narrow = evidence is None and expected.dtype == np.float32
    wide = expected.dtype if narrow else np.complex128 if expected.dtype.kind == "c" else np.float64
    truth = evidence.truth if evidence is not None else None
    has_truth = truth is not None and truth.shape == expected.shape and is_float
    centre = np.asarray(truth if has_truth else expected).astype(wide, copy=False)
    left = actual.astype(wide, copy=False)
    with np.errstate(all="ignore"):
        gap = np.abs(left - centre)
        if not is_float:  # Neighbours beyond 2**53 are the same number in float64.
            gap = np.where(_is_same(actual, expected), 0.0, np.maximum(gap, 1.0))
        size = sizes_of(np.abs(expected.astype(wide, copy=False)), like, by_slices=by_slices)
        noise: Any = _last_bits(expected, usual) if is_float else 0.0
        # An infinite answer is right itself, and says nothing about how far off a finite one may be.
        apart = [
            _finite(np.abs(a.astype(wide, copy=False) - centre)) for a in (answers if evidence is not None else ())
        ]
        for each in apart:
            noise = np.fmax(noise, each)
        limit = tolerance * size if is_float else 1.0 if expected.dtype.name in ("int8", "uint8") else 0.0
        within = (gap <= limit) & (gap < np.inf)
        is_all_within = bool(within.all())
        if is_float and not is_all_within and tolerance == np.inf:
            within |= np.isfinite(left) & np.isfinite(expected)
        if not is_all_within:
            # The reference's own answer is right, however far off the truth is.
            is_same = _is_same(actual, expected)
            within, gap = within | is_same, np.where(is_same, 0.0, gap)
        excused = None
        if not within.all():
            # Any answer of a right run is right, whatever its kind; so is what is near one, where the centre overflows.
            excused = gap <= NOISE_FACTOR * noise
            for answer in answers[1:]:
                other = answer.astype(wide, copy=False)
                is_near = np.isfinite(other) & (np.abs(left - other) <= told * np.abs(other))
                excused |= _is_same(actual, answer) | (is_near & ~np.isfinite(centre))
            excused &= ~within
            if evidence is not None and evidence.is_decided:
                most = max((float((each > limit).mean()) for each in apart[1:]), default=0.0)
                farthest = max((float(np.max(each, initial=0.0)) for each in apart[1:]), default=0.0)
                if float((~within).mean()) <= _MORE_TIES * most:
                    excused |= ~within & (gap <= farthest)
        wrong = None if excused is None else ~within & ~excused
        finite = _finite(gap)
        counted = finite if excused is None else np.where(excused, 0.0, finite)
        relative = np.max(counted / np.where(size > 0, size, 1.0) if is_float else counted, initial=0.0)
        noisy = None
        if evidence is not None:
            noisy = float(np.max(noise / np.where(size > 0, size, 1.0), initial=0.0))
    if not is_float:
        largest = float(np.max(np.abs(expected.astype(np.float64)), initial=0.0))
        relative = float(relative) / largest if largest else float(relative)
    worst, share = float(np.max(finite, initial=0.0)), 0.0 if excused is None else float(excused.mean())
    if wrong is None or not wrong.any():
        return Difference(worst, float(relative), told, noise=noisy, excused=share)
    if not is_float:
        reason = f"{float(wrong.mean()):.2%} of the integers differ"
    elif not np.isfinite(left[wrong]).all() or not np.isfinite(expected[wrong]).all():
        is_finite = bool(np.isfinite(expected[wrong]).all())
        reason = f"NaN or infinity where the reference {'is finite' if is_finite else 'has another value'}"
    else:
        reason = f"differs by {float(relative):.1e} of the output's size, more than {tolerance:.0e}"
        if noisy is not None:
            reason += f"; float arithmetic itself errs {noisy:.1e} at most, and less there"
    return Difference(worst, float(relative), told, reason, noisy, share, evidence is None, float(wrong.mean()))


def _finite(magnitudes: Array) -> Array:
    """Return magnitudes with 0 in place of what is infinite or NaN."""
    return np.where(np.isfinite(magnitudes), magnitudes, 0.0)


def _is_same(actual: Array, answer: Array) -> Array:
    """Return which elements are equal; infinities and NaN meet their like."""
    return np.asarray((actual == answer) | ((actual != actual) & (answer != answer)))


def _by_norm(actual: Array, expected: Array, tolerance: float, like: Array | None) -> Difference | None:
    """Judge an output of a coarser type as a whole; None if that does not make it right."""
    if "float" not in expected.dtype.name and expected.dtype.kind != "c":
        return Difference(0.0, 0.0, tolerance)
    left, right = _wide(actual), _wide(expected)
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True) or not np.isfinite(left[finite]).all():
        return None
    size = np.broadcast_to(sizes_of(np.abs(right), like), right.shape)[finite]
    size = np.where(size > 0, size, 1.0)
    gap = np.abs(left[finite] - right[finite])
    if tolerance < np.inf and np.linalg.norm(gap / size) > tolerance * np.linalg.norm(right[finite] / size):
        return None
    return Difference(float(gap.max(initial=0.0)), float((gap / size).max(initial=0.0)), tolerance)


def _last_bits(expected: Array, usual: Any) -> Any:
    """Return the last bit of the usual size: where all outputs are tiny, that of numbers inside is all that there is."""
    bit = _LAST_BIT.get(expected.dtype.name, 0.0)
    if not isinstance(usual, np.ndarray) or usual.dtype != expected.dtype or not usual.size:
        return 0.0
    size = sizes_of(np.abs(_wide(usual)))
    return bit * (size if usual.shape == expected.shape else float(np.min(size)))


def _like(usual: Any, expected: Array) -> Array | None:
    is_like = isinstance(usual, np.ndarray) and usual.shape == expected.shape and usual.dtype == expected.dtype
    return np.abs(_wide(usual)) if is_like else None


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _wrong(tolerance: float, reason: str) -> Difference:
    return Difference(math.inf, math.inf, tolerance, reason)


def _texts(array: Array) -> Array:
    """Return texts as objects: in texts of a fixed width all are as long as the longest, and zeros at the end are lost."""
    items = array.ravel().tolist()
    texts = [item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in items]
    return np.array([*texts, None], dtype=object)[:-1].reshape(array.shape)


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "OSUT"
