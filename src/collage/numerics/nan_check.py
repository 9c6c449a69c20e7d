"""The share of NaN in a reference run. If all outputs are NaN, a comparison with them shows nothing.

Right toolchains may also differ on NaN: the maximum of numbers and a NaN may be a number or NaN. So a toolchain would
be called wrong for inputs that the model was not made for, such as a negative image.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from collage.numerics.value_store import ValueStore

__all__ = ["nan_shares", "nonfinite_elements"]


def nonfinite_elements(model: ir.Model, values: ValueStore) -> int:
    """Return the number of elements that a model computed as NaN, or leaves as infinities."""
    outputs = {str(value.name) for value in model.graph.outputs}
    count = 0
    for name in (str(value.name) for node in model.graph for value in node.outputs):
        if name in values and _may_be_nan(values.dtype(name)):
            array = values.get(name)
            count += int(np.count_nonzero(~np.isfinite(array) if name in outputs else np.isnan(array)))
    return count


def nan_shares(model: ir.Model, values: ValueStore) -> dict[str, float]:
    """The share of NaN in each output that has any."""
    names = [str(value.name) for value in model.graph.outputs]
    arrays = {name: values.get(name) for name in names if name in values and _may_be_nan(values.dtype(name))}
    shares = {name: float(np.isnan(array).mean()) if array.size else 0.0 for name, array in arrays.items()}
    return {name: share for name, share in shares.items() if share}


def _may_be_nan(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype
