"""Right answers: reference values, comparison within a tolerance, ties that rounding decides, NaN.

Names are imported on first use: worker processes import this package, and must come up fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.numerics.value_store import ValueStore
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.numerics.value_store": "ValueStore",
        },
    )


__all__ = ["ValueStore"]
