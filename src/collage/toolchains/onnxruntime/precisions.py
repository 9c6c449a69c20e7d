"""Precisions beside f32, by name.

Running such kernels needs this module, but not the code that makes them.
"""

from __future__ import annotations

__all__ = ["NARROW", "REDUCED", "UNWANTED_OPTIMISERS"]

NARROW = ("w8", "w4")
"""Values of the option ``precision`` for narrow weights."""
REDUCED = ("int8", "int8-dynamic", *NARROW)
"""Values of the option ``precision`` beside f32."""

UNWANTED_OPTIMISERS = ["MatMulAddFusion"]
"""It fuses 8-bit products with a bias into an operator that is computed in floats only."""
