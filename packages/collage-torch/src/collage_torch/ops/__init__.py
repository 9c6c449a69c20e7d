"""ONNX operators as torch calls: one table, shared by every toolchain that computes with torch.

``Program`` turns a kernel into a ``torch.nn.Module`` whose constants are bound; ``unsupported`` says why one cannot be.
Importing this package imports torch, which takes a second.
"""

from collage_torch.ops import _attention as attention
from collage_torch.ops import _elementwise as elementwise
from collage_torch.ops import _neural as neural
from collage_torch.ops import _normalise as normalise
from collage_torch.ops import _recurrent as recurrent
from collage_torch.ops import _reduce as reduce
from collage_torch.ops import _resize as resize
from collage_torch.ops import _shape as shape
from collage_torch.ops._dtypes import constant_array, from_array, to_array, torch_dtype
from collage_torch.ops._program import Fused, Program, Step, unsupported
from collage_torch.ops._table import HOST_OPS, OPS, Call

_FAMILIES = (attention, elementwise, neural, normalise, recurrent, reduce, resize, shape)

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
