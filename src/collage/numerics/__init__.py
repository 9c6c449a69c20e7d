"""Right answers: reference values, comparison within a tolerance, ties that rounding decides, NaN.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.numerics.value_store import ValueStore

_HOME = {
    "ValueStore": "collage.numerics.value_store",
}

__all__ = ["ValueStore"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
