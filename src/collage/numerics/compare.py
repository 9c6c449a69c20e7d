"""Comparison of a kernel's outputs with those of the model, within a stated tolerance.

The error of a tensor is its largest absolute difference from the reference, relative to the reference's largest finite
magnitude. NaN must meet NaN, and infinity the same infinity.

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

Elements that depend on rounding are not compared, such as the index of the larger of two nearly equal numbers
(``collage.measure.rounding_sensitive``).

A kernel that computes in a coarser type inside is judged by that type; one that quantises inside by 5e-2. If toolchains
add products of bytes in 16 bits and saturate, as on x86 processors without VNNI, they are off by several steps, which is what
every quantised model gets there. So it is judged by 2e-1, unless an accuracy budget says otherwise. A kernel of a
target of reduced precision (``-precision=bf16``) need only be recognisable (``compare_roughly``): the whole model's error
counts there, which the user's accuracy budget bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "QUANTISED_TOLERANCE",
    "REDUCED_TOLERANCE",
    "SATURATING_TOLERANCE",
    "Difference",
    "compare",
    "compare_all",
    "compare_roughly",
    "differing_elements",
    "largest_magnitude",
    "tolerance_of",
    "without_negligible",
]

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


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of outputs from the reference.

    Attributes:
        max_abs: Largest absolute difference.
        max_rel: The same relative to the largest reference magnitude of its tensor.
        tolerance: Largest ``max_rel`` that counts as right.
        reason: The reason why it is wrong, or None if it is right.
    """

    max_abs: float
    max_rel: float
    tolerance: float
    reason: str | None = None

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


def largest_magnitude(x: np.ndarray[Any, Any]) -> float:
    """Return the largest magnitude of a tensor's finite elements, by which errors are judged, 0 if there are none."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def compare(actual: Any, expected: Any, tolerance: float, rounding_sensitive: Any = None) -> Difference:
    """Compare one output with its reference; sequences element by element, absent optionals with None.

    Args:
        actual: The computed output.
        expected: The reference output.
        tolerance: See the table above; it counts for floats.
        rounding_sensitive: Elements that are not compared, bool of the expected shape: they depend on rounding, see
            ``collage.measure.rounding_sensitive``.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return _wrong(tolerance, "a sequence of another length")
        return compare_all(actual, expected, tolerance)
    if expected is None or actual is None:
        same = expected is None and actual is None
        return Difference(0.0, 0.0, tolerance) if same else _wrong(tolerance, "an absent value")
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return _wrong(tolerance, f"shape {list(actual.shape)} instead of {list(expected.shape)}")
    if _is_text(expected):
        same = bool(np.array_equal(actual.astype(str), expected.astype(str)))
        return Difference(0.0, 0.0, 0.0) if same else _wrong(0.0, "different strings")
    if actual.dtype != expected.dtype:
        return _wrong(tolerance, f"type {actual.dtype} instead of {expected.dtype}")
    if rounding_sensitive is not None:
        actual = np.where(rounding_sensitive, expected, actual)
    if expected.dtype.kind in "iub" or expected.dtype.name.removeprefix("u") in ("int4", "int2"):
        return _compare_exact(actual, expected)
    return _compare_floats(actual, expected, tolerance)


def compare_all(
    actual: Sequence[Any], expected: Sequence[Any], tolerance: float, rounding_sensitive: Sequence[Any] | None = None
) -> Difference:
    """The worst difference over several outputs; ``rounding_sensitive`` as for ``compare``, one for each."""
    worst = Difference(0.0, 0.0, tolerance)
    not_compared = rounding_sensitive or [None] * len(expected)
    for index, (left, right, elements) in enumerate(zip(actual, expected, not_compared, strict=True)):
        difference = compare(left, right, tolerance, elements)
        if not difference.ok:
            return Difference(
                difference.max_abs, difference.max_rel, difference.tolerance, f"output {index}: {difference.reason}"
            )
        if difference.max_rel >= worst.max_rel:
            worst = Difference(max(worst.max_abs, difference.max_abs), difference.max_rel, tolerance)
    return worst


def without_negligible(actual: Any, expected: Any, usual: float) -> Any:
    """Return an output with the reference's elements where it is within two units in the last place of its usual size.

    On probing inputs the largest output may be tiny: where a sigmoid is 1e-7 at most, the last bit of one is all that there is.

    Args:
        actual: The computed output.
        expected: The reference.
        usual: Largest magnitude of the reference on inputs that the model is made for.
    """
    if not all(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in (actual, expected)):
        return actual
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return actual
    with np.errstate(invalid="ignore"):
        gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    return np.where(gap <= 2 * float(np.finfo(expected.dtype).eps) * usual, expected, actual)


def compare_roughly(
    actual: Sequence[Any], expected: Sequence[Any], tolerance: float, rounding_sensitive: Sequence[Any] | None = None
) -> Difference:
    """The worst difference over several outputs of a coarser type, which need only be recognisable.

    A classifier that is uncertain between two classes turns a small error into a large one, in a few elements. So floats
    that are further off than the tolerance are right if the norm of the difference is within it, relative to the norm of the
    reference. Integers, such as the classes themselves, are not compared: samples judge them.

    Args:
        actual: The outputs of the kernel.
        expected: The outputs of the reference.
        tolerance: For floats. If it is infinite, floats need only be finite where the reference is, and shapes may differ.
        rounding_sensitive: As for ``compare_all``.
    """
    worst = Difference(0.0, 0.0, tolerance)
    not_compared = rounding_sensitive or [None] * len(expected)
    for index, (left, right, elements) in enumerate(zip(actual, expected, not_compared, strict=True)):
        found = compare(left, right, tolerance, elements)
        if not found.ok and _is_recognisable(left, right, tolerance):
            found = Difference(found.max_abs, found.max_rel, tolerance)
        if not found.ok:
            return Difference(found.max_abs, found.max_rel, found.tolerance, f"output {index}: {found.reason}")
        if found.max_rel >= worst.max_rel:
            worst = Difference(max(worst.max_abs, found.max_abs), found.max_rel, tolerance)
    return worst


def _is_recognisable(actual: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(actual, np.ndarray) or not isinstance(expected, np.ndarray) or actual.dtype != expected.dtype:
        return False
    if actual.shape != expected.shape:
        return tolerance == np.inf and actual.ndim == expected.ndim
    if "float" not in expected.dtype.name:
        return True
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return False
    left, right = left[finite], right[finite]
    if not np.isfinite(left).all():
        return False
    return tolerance == np.inf or bool(np.linalg.norm(left - right) <= tolerance * np.linalg.norm(right))


def differing_elements(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float) -> Any:
    """Return the elements in which two tensors of one shape differ, as bool: floats by more than the tolerance."""
    if expected.dtype.kind in "OSUTiub" or "int" in expected.dtype.name:
        return np.asarray(actual != expected)
    if _compare_close(actual, expected, tolerance) is not None:
        return np.zeros(expected.shape, bool)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    left, right = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(left - right) <= tolerance * largest_magnitude(right))
    return np.asarray(far & (left != right) & ~(np.isnan(left) & np.isnan(right)))


def _compare_exact(actual: Any, expected: Any) -> Difference:
    steps = 1 if expected.dtype in (np.int8, np.uint8) else 0
    gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    worst = float(gap.max(initial=0.0))
    largest = float(np.abs(expected.astype(np.float64)).max(initial=0.0))
    relative = worst / largest if largest else worst
    if worst <= steps:
        return Difference(worst, relative, 0.0)
    share = float((gap > steps).mean())
    return _wrong(0.0, f"{share:.2%} of the integers differ", worst, relative)


def _compare_floats(actual: Any, expected: Any, tolerance: float) -> Difference:
    if (close := _compare_close(actual, expected, tolerance)) is not None:
        return close
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    left, right = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return _wrong(tolerance, "NaN or infinity where the reference has another value")
    left, right = left[finite], right[finite]
    if not np.isfinite(left).all():
        return _wrong(tolerance, "NaN or infinity where the reference is finite")
    worst = float(np.abs(left - right).max(initial=0.0))
    largest = largest_magnitude(right)
    relative = worst / largest if largest else worst
    if relative <= tolerance:
        return Difference(worst, relative, tolerance)
    return _wrong(
        tolerance, f"differs by {relative:.1e} of the largest output, more than {tolerance:.0e}", worst, relative
    )


def _compare_close(actual: Any, expected: Any, tolerance: float) -> Difference | None:
    """Compare finite tensors of float32 as they are, which takes a fifth of the time; None if that does not settle it."""
    if expected.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        worst = float(np.abs(actual - expected).max(initial=0.0))
        largest = float(np.abs(expected).max(initial=0.0))
    # Neither is finite if any element is not.
    if not (0.0 <= worst < np.inf and 0.0 < largest < np.inf and worst <= tolerance * largest):
        return None
    return Difference(worst, worst / largest, tolerance)


def _wrong(tolerance: float, reason: str, max_abs: float = 0.0, max_rel: float = 0.0) -> Difference:
    return Difference(max_abs, max_rel, tolerance, reason)


def _is_text(array: Any) -> bool:
    return array.dtype.kind in "OSUT"
