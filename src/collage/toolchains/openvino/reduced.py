"""Kernels in 8 bits and with narrow weights, as OpenVINO's CPU plugin reads them. Running them does not need this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage.toolchains.sdk.int8_model import in_int8, products_in_floats
from collage.toolchains.sdk.int8_placement import Int8Style
from collage.toolchains.sdk.model_files import save_kernel
from collage.toolchains.sdk.narrow_weights import with_narrow_weights
from collage.toolchains.sdk.precisions import NARROW_BITS

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

__all__ = ["save_as"]

_INT8 = Int8Style(
    products=frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")),
    between=frozenset(("Add", "AveragePool", "Concat", "GlobalAveragePool")),
    carriers=frozenset(
        ("DepthToSpace", "Flatten", "MaxPool", "Reshape", "Resize", "Squeeze", "Transpose", "Unsqueeze")
    ),
    whole=False,
)
"""Its plugin merges rounding, biases and activations into the operator before them."""


def save_as(precision: str | None, kernel: ir.Model, workspace: Path) -> tuple[tuple[str, ...], list[int]]:
    """Write a kernel in a precision, as far as the plugin does not see to that.

    Returns:
        Names of the files, and positions of the products that are computed in floats all the same.
    """
    if precision == "int8":
        made = in_int8(kernel, _INT8)
    elif precision in NARROW_BITS:
        # Zero points, which its reader makes for MatMulNBits, cost the plugin a third of the time.
        made = with_narrow_weights(kernel, NARROW_BITS[precision], dequantizes=True)
    else:
        return save_kernel(kernel, workspace), []
    return save_kernel(made, workspace, f".{precision}"), products_in_floats(kernel, made)
