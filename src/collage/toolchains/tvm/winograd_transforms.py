"""Matrices of Winograd's algorithm for windows of 3 elements, and loops' expressions that multiply by them.

F(m, 3) makes m outputs of m + 2 inputs with m + 2 multiplications. It evaluates polynomials at m + 1 points and at infinity
(Toom and Cook). The matrices follow from the points. So does the rounding error, see ``docs/studies/winograd.md``.

Points come in pairs of a number and its negative. Rows of such a pair share the sum over even powers and the sum over odd ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script.builder import ir as build

__all__ = ["POINTS", "TAPS", "Transforms", "transforms"]

TAPS = 3

_HALF = Fraction(1, 2)
_NEAR, _FAR = Fraction(3, 4), Fraction(3, 2)

POINTS: Mapping[int, tuple[Fraction, ...]] = {
    2: tuple(map(Fraction, (0, 1, -1))),
    4: (Fraction(0), _NEAR, -_NEAR, _FAR, -_FAR),
    6: (*map(Fraction, (0, 1, -1, 2, -2)), _HALF, -_HALF),
}
"""Interpolation points by number of outputs: those of the least error among the sets of the study."""

Row = tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of F(m, 3), exactly.

    Attributes:
        outputs: The number m.
        data: Rows that transform m + 2 inputs.
        taps: Rows that transform 3 elements of a window.
        result: Rows that make m outputs of m + 2 products.
        pairs: Pairs of positions of points that are each other's negatives.
    """

    outputs: int
    data: tuple[Row, ...]
    taps: tuple[Row, ...]
    result: tuple[Row, ...]
    pairs: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        """Return the number of inputs of one tile along one dimension."""
        return self.outputs + TAPS - 1

    def of_weight(self, weight: np.ndarray) -> np.ndarray:
        """Return the transform of a weight [3, 3, C, K] as [m + 2, m + 2, C, K], computed in double precision."""
        taps = np.array([[float(c) for c in row] for row in self.taps])
        made: np.ndarray = np.einsum("ai,bj,ijck->abck", taps, taps, weight.astype(np.float64), optimize=True)
        return made

    def of_data(self, values: Sequence[Any]) -> list[Any]:
        """Return expressions of the transform of m + 2 inputs, bound to variables in the loops that are being built."""
        made: dict[int, Any] = {}
        for i, j in self.pairs:
            even = [(a + b) / 2 for a, b in zip(self.data[i], self.data[j], strict=True)]
            odd = [(a - b) / 2 for a, b in zip(self.data[i], self.data[j], strict=True)]
            factor = next(c for c in reversed(odd) if c)
            sums = build.bind(_sum_of_products(even, values))
            differences = build.bind(_sum_of_products([c / factor for c in odd], values))
            scaled = differences if factor == 1 else differences * _f32(factor)
            made[i], made[j] = build.bind(sums + scaled), build.bind(sums - scaled)
        for i, row in enumerate(self.data):
            if i not in made:
                made[i] = build.bind(_sum_of_products(row, values))
        return [made[i] for i in range(self.width)]

    def of_products(self, values: Sequence[Any]) -> list[Any]:
        """Return expressions of the m outputs that follow from m + 2 products, bound to variables in the same way."""
        paired = {i for pair in self.pairs for i in pair}
        alone = [i for i in range(self.width) if i not in paired]
        sums = [(i, build.bind(values[i] + values[j]), build.bind(values[i] - values[j])) for i, j in self.pairs]
        outputs = []
        for power, row in enumerate(self.result):
            # Of a number and its negative even powers are equal, and odd ones differ in sign.
            terms = [(row[i], difference if power % 2 else total) for i, total, difference in sums]
            terms += [(row[i], values[i]) for i in alone]
            outputs.append(build.bind(_sum_of_products(*zip(*terms, strict=True))))
        return outputs


@functools.cache
def transforms(outputs: int) -> Transforms:
    """Return the matrices of F(outputs, 3)."""
    points = POINTS[outputs]
    data: list[Row] = []
    taps: list[Row] = []
    for i, point in enumerate(points):
        others = points[:i] + points[i + 1 :]
        data.append((*_polynomial(others), Fraction(0)))
        scale = functools.reduce(lambda product, other: product * (point - other), others, Fraction(1))
        taps.append(tuple(point**power / scale for power in range(TAPS)))
    data.append(_polynomial(points))
    taps.append((*[Fraction(0)] * (TAPS - 1), Fraction(1)))
    result = tuple(
        (*(point**power for point in points), Fraction(int(power == outputs - 1))) for power in range(outputs)
    )
    pairs = tuple((i, points.index(-point)) for i, point in enumerate(points) if point > 0)
    return Transforms(outputs, tuple(data), tuple(taps), result, pairs)


def _polynomial(roots: Sequence[Fraction]) -> Row:
    """Return the coefficients of the product of ``x - root``, the lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return tuple(coefficients)


def _sum_of_products(coefficients: Sequence[Fraction], values: Sequence[Any]) -> Any:
    """Return an expression that begins with a term of coefficient 1, if there is one: all others are fused with it."""
    terms = [(c, x) for c, x in zip(coefficients, values, strict=True) if c]
    terms.sort(key=lambda term: term[0] != 1)
    total: Any = None
    for c, x in terms:
        if total is None:
            total = x if c == 1 else x * _f32(c)
        elif abs(c) == 1:
            total = total + x if c == 1 else total - x
        else:
            total = total + x * _f32(c)
    return total


def _f32(number: Fraction) -> Any:
    return tirx.FloatImm("float32", float(number))
