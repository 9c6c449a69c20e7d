"""Files that claim shapes that their values do not have run as ONNX Runtime runs them, and as fast."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import collage
from tests.e2e.conftest import LENT
from tests.figures import figures

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
X = np.float32([[1, 0, 2], [3, 4, 0]])
MODELS = {
    "an output": "(float[2,3] x) => (float[2,4] y) {a = Relu (x) y = Neg (a)}",
    "a rank": "(float[2,3] x) => (float[6] y) {a = Relu (x) y = Neg (a)}",
    "a value": "(float[2,3] x) => (float[2,3] y) {a = Relu (x) y = Neg (a)}",
    "a shape": "(float[2,3] x) => (int64[2] y) {a = Relu (x) y = Shape (a)}",
    "what depends on values": "(float[2,3] x) => (float[2,9] y) {a = NonZero (x) b = Cast <to = 1> (a) y = Neg (b)}",
    "what depends on weights": "(float[2,3] x) => (float[2,4] y) <bool[3] c = {1, 0, 1}> "
    "{a = Compress <axis = 1> (x, c) y = Neg (a)}",
}


CASES = [(name, target) for target in ("onnxruntime", "openvino") for name in MODELS] + [("a shape", "llvm")]
DEFAULT = {
    ("an output", "onnxruntime"),
    ("a rank", "openvino"),
    ("a value", "onnxruntime"),
    ("a shape", "llvm"),
    ("what depends on values", "onnxruntime"),
    ("what depends on weights", "openvino"),
}
"""Each model once, and each target; the other combinations are slow."""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "target"),
    [pytest.param(*case, marks=() if case in DEFAULT else pytest.mark.slow) for case in CASES],
)
def test_claims_are_not_believed_against_better_knowledge(name: str, target: str) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(parser.parse_model(f"{HEADER} g {MODELS[name]}"))
    if name in ("a value", "a shape"):
        model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 5]))
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString(), settings).run(None, {"x": X})
    options = collage.CompileOptions(finals=False, allow_host=True)
    executable = collage.compile(model, [target], options=options, workers=LENT)
    for _ in range(2):
        np.testing.assert_array_equal(executable.run({"x": X})["y"], wanted)
    (single,) = figures(executable.report)["singles"]
    assert single["status"] == "ok" or name.startswith("what"), single["reason"]
    if target == "onnxruntime" and name != "a shape":
        (kernel,) = executable.report["kernels"]
        assert kernel["target"].removesuffix(" -threads=1") == "llvm -compiler=onnxruntime"
