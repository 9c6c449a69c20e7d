"""Precisions beside f32, by name.

Running such kernels needs this module, but not the code that makes them.
"""

from __future__ import annotations

from collage.toolchains.sdk.precisions import NARROW_BITS

__all__ = ["REDUCED", "UNWANTED_OPTIMISERS"]

REDUCED = ("int8", "int8-dynamic", *NARROW_BITS)
"""Values of the option ``precision`` beside f32."""

UNWANTED_OPTIMISERS = ["MatMulAddFusion"]
"""It fuses 8-bit products with a bias into an operator that is computed in floats only."""
