"""Precisions beside f32, by name. Apart from the code that makes kernels of them, which running kernels does not need."""

from __future__ import annotations

__all__ = ["REDUCED", "UNWANTED_OPTIMISERS"]

REDUCED = ("int8", "int8-dynamic", "w8", "w4")
"""Values of the option ``precision`` beside f32."""

UNWANTED_OPTIMISERS = ["MatMulAddFusion"]
"""It joins products that are written for 8 bits with a bias, to something that is computed in floats only."""
