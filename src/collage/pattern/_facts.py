"""Types and dimensions of values, as far as they are known, and what values claim of themselves."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from collage.graph import constant_tensor

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Type and dimensions of a value, as far as they are known.

    Attributes:
        type: Its type, None if unknown.
        dims: Its dimensions: lengths, symbols of the model, None for one that is unknown. None if the rank is.
    """

    type: ir.TypeProtocol | None = None
    dims: Dims | None = None

    @property
    def dtype(self) -> ir.DataType | None:
        """The element type of a tensor."""
        return self.type.dtype if isinstance(self.type, ir.TensorType) else None

    @property
    def shape(self) -> ir.Shape | None:
        """The dimensions as a shape."""
        return None if self.dims is None else ir.Shape(self.dims)

    def refined(self, other: Fact) -> Fact:
        """Fill in from another fact what is unknown here, where the two agree."""
        if self.type is not None and other.type is not None and self.type != other.type:
            return self
        dims = self.dims if self.dims is not None else other.dims
        if self.dims is not None and other.dims is not None and len(self.dims) == len(other.dims):
            pairs = zip(self.dims, other.dims, strict=True)
            dims = tuple(a if isinstance(a, int) or b is None else b for a, b in pairs)
        return Fact(self.type or other.type, dims)

    def says_more_than(self, other: Fact) -> bool:
        """Return True if this has a type, rank or length that the other lacks."""
        if (self.type is not None and other.type is None) or (self.dims is not None and other.dims is None):
            return True
        pairs = zip(self.dims or (), other.dims or (), strict=False)
        return any(isinstance(a, int) and not isinstance(b, int) for a, b in pairs)


def claim_of(value: ir.Value) -> Fact:
    """Return the type and shape that a value states."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return Fact(ir.TensorType(tensor.dtype), tuple(tensor.shape.numpy()))
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return Fact(value.type, dims)
