"""The precision that OpenVINO computes in: as told, or what it takes by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.frontend import read_model
from collage.target import Target
from collage.toolchains import LoadOptions, registry

MODEL = '<ir_version: 10, opset_import: ["": 20]> g (float[8,8] x) => (float[8,8] y) { y = MatMul(x, x) }'


@pytest.mark.parametrize("precision", ["f32", "default"])
def test_a_kernel_says_what_it_computes_in(precision: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    target = Target.parse(f"llvm -compiler=openvino -precision={precision}")
    toolchain = registry().for_target(target)
    model = read_model(onnx.parser.parse_model(MODEL))
    compiled = toolchain.compile(model, target, tmp_path)
    kernel = toolchain.load(compiled, target, tmp_path, LoadOptions(exclusive=True))
    by_itself = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    assert kernel.precision == (by_itself if precision == "default" else "f32")  # type: ignore[attr-defined]
    x = np.eye(8, dtype=np.float32)
    np.testing.assert_array_equal(kernel([x])[0], x)
