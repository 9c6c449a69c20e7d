"""ONNX operators as torch calls: one table, shared by every toolchain that computes with torch.

``Program`` turns a kernel into a ``torch.nn.Module`` whose constants are bound; ``unsupported`` says why one cannot be.
Importing this package imports torch, which takes a second.
"""

from collage.toolchains._torch_ops import (
    _attention,
    _elementwise,
    _neural,
    _normalise,
    _recurrent,
    _reduce,
    _resize,
    _shape,
)
from collage.toolchains._torch_ops._dtypes import constant_array, from_array, to_array, torch_dtype
from collage.toolchains._torch_ops._program import Fused, Program, Step, unsupported
from collage.toolchains._torch_ops._table import HOST_OPS, OPS, Call

_FAMILIES = (_attention, _elementwise, _neural, _normalise, _recurrent, _reduce, _resize, _shape)

__all__ = [
    "HOST_OPS",
    "OPS",
    "Call",
    "Fused",
    "Program",
    "Step",
    "constant_array",
    "from_array",
    "to_array",
    "torch_dtype",
    "unsupported",
]
