"""Values of the option ``precision`` that several toolchains have. Running kernels needs them, but not what makes these."""

from __future__ import annotations

__all__ = ["NARROW_BITS"]

NARROW_BITS = {"w8": 8, "w4": 4}
"""Precisions with narrow weights, and the bits of a weight."""
