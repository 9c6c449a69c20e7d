"""Kernels in 8 bits and with narrow weights, as OpenVINO's CPU plugin reads them. Running them does not need this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage.toolchains.sdk.int8_model import in_int8
from collage.toolchains.sdk.int8_placement import Int8Style
from collage.toolchains.sdk.model_files import save_kernel
from collage.toolchains.sdk.narrow_weights import NARROW_BITS, with_narrow_weights

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
"""Its plugin merges rounding, biases and activations into whatever comes before them."""


def save_as(precision: str | None, kernel: ir.Model, workspace: Path) -> tuple[str, ...]:
    """Write a kernel in a precision, as far as the plugin does not see to that; return the names of the files."""
    if precision == "int8":
        return save_kernel(in_int8(kernel, _INT8), workspace, ".int8")
    if precision in NARROW_BITS:
        return save_kernel(with_narrow_weights(kernel, NARROW_BITS[precision]), workspace, f".{precision}")
    return save_kernel(kernel, workspace)
