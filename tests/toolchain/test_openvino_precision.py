"""The precision that OpenVINO computes in: as told, or what it takes by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage._errors import TargetError
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


RESIDUAL = """<ir_version: 10, opset_import: ["": 20]> g (float[64,256] x) => (float[64,256] y)
<float[256,256] w0, float[256,256] w1, float[256,256] w2, float[256,256] w3, float[256] s, float[256] b> {
  n0 = LayerNormalization (x, s, b)
  m0 = MatMul (n0, w0)
  a0 = Add (x, m0)
  n1 = LayerNormalization (a0, s, b)
  m1 = MatMul (n1, w1)
  a1 = Add (a0, m1)
  n2 = LayerNormalization (a1, s, b)
  m2 = MatMul (n2, w2)
  a2 = Add (a1, m2)
  y = MatMul (a2, w3)
}"""
"""A sum that no product follows is computed in float32 in any case."""


def test_bf16_with_sums_in_float32_is_nearer_to_float32(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    if "bf16" not in registry().get("openvino").availability().precisions:
        pytest.skip("OpenVINO has no bf16 here")
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(RESIDUAL)
    arrays = {f"w{i}": (random.standard_normal((256, 256)) / 64).astype(np.float32) for i in range(4)}
    arrays |= {"s": np.ones(256, np.float32), "b": np.zeros(256, np.float32)}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    model = read_model(proto)
    x = random.standard_normal((64, 256)).astype(np.float32)

    def answer(options: str) -> np.ndarray:
        target = Target.parse(f"llvm -compiler=openvino{options}")
        toolchain = registry().for_target(target)
        compiled = toolchain.compile(model, target, tmp_path)
        kernel = toolchain.load(compiled, target, tmp_path, LoadOptions(exclusive=True))
        return np.array(kernel([x])[0])

    exact, rough, finer = answer(""), answer(" -precision=bf16"), answer(" -precision=bf16 -floats=f32")
    error_of_rough, error_of_finer = (float(np.std(found - exact)) for found in (rough, finer))
    assert 0 < error_of_finer < 0.8 * error_of_rough


@pytest.mark.parametrize("options", ["-precision=bf16 -floats=bf16", "-floats=f32", "-precision=f16 -floats=f32"])
def test_floats_are_refused_where_they_say_nothing(options: str, tmp_path: Path) -> None:
    target = Target.parse(f"llvm -compiler=openvino {options}")
    with pytest.raises(TargetError, match="-floats"):
        registry().for_target(target).compile(read_model(onnx.parser.parse_model(MODEL)), target, tmp_path)
