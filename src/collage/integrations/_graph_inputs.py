"""The arguments of a graph of ``torch.compile`` as inputs that its kernels are measured with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from collage.options import CompileOptions

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["integer_inputs", "with_lengths"]


def integer_inputs(names: Sequence[str], arguments: Sequence[Any]) -> dict[str, Any]:
    """Return the values of arguments that are not floats. A random number cannot stand for a position."""
    inputs: dict[str, Any] = {}
    for name, value in zip(names, arguments, strict=True):
        if not isinstance(value, torch.Tensor):
            inputs[name] = np.int64(value)
        elif not value.is_floating_point() and not value.is_complex():
            inputs[name] = value.detach().numpy().copy()
    return inputs


def with_lengths(options: CompileOptions, model: ir.Model, arguments: Sequence[Any]) -> CompileOptions:
    """Return options with the lengths of these arguments as representative ones, and with integers as they are in these."""
    dims: dict[str, int] = {}
    inputs = integer_inputs([str(port.name) for port in model.graph.inputs], arguments)
    for port, value in zip(model.graph.inputs, arguments, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        for dim, length in zip(port.shape or (), value.shape, strict=False):
            if not isinstance(dim, int) and dim.value is not None and dim.value.isidentifier() and length:
                dims[dim.value] = length
    return replace(options, dims={**dims, **options.dims}, inputs={**inputs, **options.inputs})
