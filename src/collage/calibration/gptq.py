"""Rounding of weights to 4 bits by GPTQ: the error of each weight is made good by those that are not rounded yet.

Which weights can make good for others follows from the second moments of a product's inputs. Frantar et al., "GPTQ: Accurate
post-training quantization for generative pre-trained transformers", 2022. Blocks, scales and integers are those of
``narrow_weights``, so that every toolchain finds them again in the rounded weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collage.toolchains.sdk.narrow_weights import BLOCK, rounded_blocks

if TYPE_CHECKING:
    from collage.toolchains import Tensor

__all__ = ["inverse_factor", "rounded"]

_DAMPING = 0.01
"""Share of the mean of the diagonal of the moments that is added to it."""


def inverse_factor(moments: Tensor) -> Tensor:
    """Return the upper triangular U [K, K] of which Uᵀ U is the inverse of a product's damped second moments.

    Args:
        moments: The sum over all rows x [K] of x xᵀ, [K, K] (float64).

    Raises:
        LinAlgError: They are not the moments of finite rows.
    """
    diagonal = np.diag(moments)
    damping = _DAMPING * diagonal.mean()
    damped = moments + np.diag(np.where(diagonal > 0, damping, 1.0))
    return np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)


def rounded(weight: Tensor, factor: Tensor) -> Tensor:
    """Return weights [K, N] (float32) each of which is the product of a 4-bit integer and the scale of its block.

    Args:
        weight: The weights [K, N] of a product of rows [M, K]. K is a multiple of the length of a block.
        factor: See ``inverse_factor``.
    """
    left, made = weight.astype(np.float32), np.empty(weight.shape, np.float32)
    for start in range(0, len(left), BLOCK):
        inside, after = slice(start, start + BLOCK), slice(start + BLOCK, None)
        block, own = left[inside], factor[inside, inside]
        _, scales = rounded_blocks(np.ascontiguousarray(block.T))
        errors = np.empty_like(block)
        for place in range(BLOCK):
            integers = np.clip(np.rint(block[place] / scales), -8, 7)
            made[start + place] = integers * scales
            errors[place] = (block[place] - made[start + place]) / own[place, place]
            block[place + 1 :] -= own[place, place + 1 :, None] * errors[place]
        left[after] -= factor[inside, after].T @ errors
    return made
