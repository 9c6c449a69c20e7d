"""Tensors of ONNX Runtime that are made of arrays: each has memory of its own."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from collage.toolchains.onnxruntime.toolchain import from_ort, to_ort

NARROW = {
    ml_dtypes.bfloat16: ir.DataType.BFLOAT16,
    ml_dtypes.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    ml_dtypes.int4: ir.DataType.INT4,
}


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.str_, *NARROW], ids=lambda dtype: np.dtype(dtype).name)
def test_value_outlives_the_array_that_it_is_made_of(dtype: type) -> None:
    narrow = NARROW.get(dtype)
    kind = object if dtype is np.str_ else dtype
    whole = (np.arange(10_001) % 7).astype(np.float32).astype(dtype).astype(kind)
    for made in (whole, whole[::3], whole[:0].reshape(0, 2), whole[:1].reshape(()), whole[:1000].reshape(10, 100).T):
        source = made.copy()
        value = to_ort(source, narrow)
        source[...] = source.dtype.type("9") if dtype is np.str_ else 1  # What came later in the same memory.
        np.testing.assert_array_equal(from_ort(value, narrow), made)
