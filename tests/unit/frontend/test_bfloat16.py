"""Bfloat16 in a file: inputs and outputs keep their types, and results are at least as near to exact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from collage.frontend import REWRITTEN, read_model, write_original
from collage.frontend._bfloat16 import widen_bfloat16
from collage.transform import InferType

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
WEIGHTS = np.random.default_rng(0).standard_normal((8, 4)).astype(ml_dtypes.bfloat16)
CASES = {
    "a product and a constant": "y = MatMul (x, w)",
    "casts on both sides": "a = Cast <to = 1> (x) b = Exp (a) c = Cast <to = 16> (b) y = MatMul (c, w)",
    "a fill": "s = Shape (x) o = ConstantOfShape <value = bfloat16[1] {2}> (s) z = Add (x, o) y = MatMul (z, w)",
    "a branch": """t = ReduceMax <keepdims = 0> (x) n = CastLike (zero, t) c = Greater (t, n)
        z = If (c) <then_branch = g () => (bfloat16[n, 8] p) {p = Add (x, x)},
                    else_branch = h () => (bfloat16[n, 8] q) {q = Neg (x)}>
        y = MatMul (z, w)""",
}


def model(body: str) -> ir.Model:
    found = ir.from_onnx_text(f"{HEAD} m (bfloat16[n, 8] x) => (bfloat16[n, 4] y) {{ {body} }}")
    constants = {"w": WEIGHTS, "zero": np.float32([0])[0]}
    for name, array in constants.items():
        value = next(
            (each for node in found.graph for each in node.inputs if each is not None and each.name == name), None
        )
        if value is not None:
            value.const_value = ir.Tensor(np.asarray(array), name=name)
            value.type, value.shape = ir.TensorType(value.const_value.dtype), value.const_value.shape
            found.graph.register_initializer(value)
    return InferType()(found)


def run(found: ir.Model, x: Any) -> Any:
    return ReferenceEvaluator(ir.to_proto(found)).run(None, {"x": x})[0]


def narrow_values(found: ir.Model) -> set[str]:
    return {
        str(value.name)
        for node in found.graph.all_nodes()
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.dtype == ir.DataType.BFLOAT16
    }


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_only_inputs_and_outputs_stay_narrow(body: str) -> None:
    given = model(body)
    made = model(body)
    assert widen_bfloat16(made)
    assert narrow_values(made) == {"x", "y"}
    assert "y" in narrow_values(given)
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(ml_dtypes.bfloat16)
    expected, found = run(given, x), run(made, x)
    assert found.dtype == expected.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=0.03, atol=0.05)


def test_an_output_that_something_reads_and_one_that_is_an_input() -> None:
    outputs = "bfloat16[n, 8] y, bfloat16[n, 8] z, bfloat16[n, 8] x"
    text = f"{HEAD} m (bfloat16[n, 8] x) => ({outputs}) {{ y = Exp (x) z = Add (y, x) }}"
    made = InferType()(ir.from_onnx_text(text))
    assert widen_bfloat16(made)
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(ml_dtypes.bfloat16)
    y, z, again = ReferenceEvaluator(ir.to_proto(made)).run(None, {"x": x})
    wide = np.exp(x.astype(np.float32))
    np.testing.assert_array_equal(y, wide.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(z, (wide + x.astype(np.float32)).astype(ml_dtypes.bfloat16))  # It is rounded once.
    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize(
    "body",
    ["a = own.Op (x) y = Exp (a)", "s = SequenceConstruct (x) i = Constant <value_int = 0> () y = SequenceAt (s, i)"],
)
def test_other_models_stay_as_they_are(body: str) -> None:
    head = HEAD.replace(": 21", ': 21, "own" : 1')
    given = InferType()(ir.from_onnx_text(f"{head} m (bfloat16[8] x) => (bfloat16[8] y) {{ {body} }}"))
    before = ir.to_proto(given)
    assert not widen_bfloat16(given)
    assert ir.to_proto(given) == before


def test_reading_widens_and_the_original_is_compared_so(tmp_path: Path) -> None:
    ir.save(model(CASES["a product and a constant"]), tmp_path / "model.onnx")
    made = read_model(tmp_path / "model.onnx")
    assert [node.op_type for node in made.graph] == ["Cast", "MatMul", "Cast"] and made.meta[REWRITTEN]
    (tmp_path / "work").mkdir()
    original = write_original(tmp_path / "model.onnx", tmp_path / "work", is_rewritten=True)
    assert [node.op_type for node in ir.load(original).graph] == ["Cast", "MatMul", "Cast"]
