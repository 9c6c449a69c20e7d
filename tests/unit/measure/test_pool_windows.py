"""Lengths at which a pool has no room for its window, by ONNX's formula for the number of windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from collage.compiler.first_difference import first_differences
from collage.measure.pool_windows import windows_fit
from collage.numerics.value_store import ValueStore


@pytest.mark.parametrize(
    ("attributes", "shape", "fits"),
    [
        ("kernel_shape = [2, 2]", (1, 3, 2, 2), True),
        ("kernel_shape = [2, 2]", (1, 3, 1, 2), False),
        ("kernel_shape = [2, 2]", (1, 3, 2, 1), False),
        ("kernel_shape = [2, 2], pads = [0, 0, 1, 1]", (1, 3, 1, 1), True),
        ("kernel_shape = [3, 3], pads = [1, 1, 0, 0]", (1, 3, 1, 1), False),
        ("kernel_shape = [2, 2], dilations = [3, 3]", (1, 3, 4, 4), True),
        ("kernel_shape = [2, 2], dilations = [3, 3]", (1, 3, 3, 4), False),
        ('kernel_shape = [3, 3], auto_pad = "SAME_UPPER"', (1, 3, 1, 1), True),
        ("kernel_shape = [2]", (1, 3, 1), False),
    ],
    ids=str,
)
def test_windows(attributes: str, shape: tuple[int, ...], fits: bool, tmp_path: Path) -> None:
    dims = ",".join("abcd"[: len(shape)])
    body = f"z = Relu (x) y = MaxPool <{attributes}> (z)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{dims}] x) => (float[{dims}] y) {{ {body} }}'
    values = ValueStore(tmp_path / "values")
    values.put("z", np.zeros(shape, np.float32))
    assert windows_fit(ir.from_proto(parser.parse_model(text)), values) is fits


def test_no_toolchain_is_wrong_where_a_window_is_larger_than_the_picture(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[b, 3, h, w] x) => (float[b, 3, 1, 1] y) {
        z = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        y = GlobalAveragePool (z)
    }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    options = {"db": str(tmp_path / "db"), "dims": {"b": 1, "h": 8, "w": 8}}
    (found,) = first_differences(tmp_path / "m.onnx", ["llvm"], options=options)
    assert found.verdict == "right", found
