"""Kernels in half precision, for toolchains that take the types as a model says them."""

from __future__ import annotations

from typing import Any

from collage._errors import Unsupported
from collage.toolchains.sdk.model_files import one_line

__all__ = ["in_half"]


def in_half(model: Any) -> Any:
    """A model, as an ONNX message with its weights inside, with f32 replaced by f16; inputs and outputs stay.

    Raises:
        Unsupported: It cannot be.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    try:
        return convert_float_to_float16(model, keep_io_types=True)
    except Exception as error:
        raise Unsupported(f"the kernel cannot be written in half precision: {one_line(error)}") from error
