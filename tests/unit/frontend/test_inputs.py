"""Made-up floating-point inputs, of three kinds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from collage.frontend import FLOATS, Floats, make_inputs, read_model

TEXT = """
<ir_version: 10, opset_import: ["": 17]>
g (float[64, 64] x, float16[64] h, int64[8] i, bool[3] b) => (float[64, 64] y) { y = Relu (x) }
"""


@pytest.mark.parametrize(("kind", "low", "high"), [("fractions", 0.0, 1.0), ("above one", 1.0, 2.0)])
def test_they_lie_where_the_kind_says(kind: Floats, low: float, high: float) -> None:
    made = make_inputs(read_model(onnx.parser.parse_model(TEXT)), 0, floats=kind)
    for name in ("x", "h"):
        assert low < made[name].min() and made[name].max() <= high
        assert made[name].dtype == {"x": np.float32, "h": np.float16}[name]
    assert made["x"].max() - made["x"].min() > 0.9


def test_other_inputs_are_the_same_for_all_kinds_and_normal_is_the_first() -> None:
    model = read_model(onnx.parser.parse_model(TEXT))
    plain = make_inputs(model, 5)
    for kind in FLOATS:
        made = make_inputs(model, 5, floats=kind)
        assert (made["i"] == plain["i"]).all() and (made["b"] == plain["b"]).all()
        assert (kind == FLOATS[0]) == bool((made["x"] == plain["x"]).all())
    assert plain["x"].min() < -1.0
