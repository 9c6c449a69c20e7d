"""The front door: every model is read, bounded, validated and canonicalised here. Design section 4.1."""

from __future__ import annotations

from collage.frontend._budget import Budgets
from collage.frontend._read import read_model

__all__ = ["Budgets", "read_model"]
