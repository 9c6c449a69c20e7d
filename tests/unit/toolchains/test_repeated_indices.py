"""Indices that are repeated along rows, on toolchains that read one index for each row."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from collage._errors import InputError
from collage.frontend import read_model
from collage.testing._explicit_plan import executable_of
from collage.toolchains._repeated_indices import with_indices_of_rows
from collage.transform import prepare

SUM = 'y = ScatterElements <axis = 0, reduction = "add"> (x, e, u)'


def _model(inputs: str, result: str, body: str) -> onnx.ModelProto:
    weights = "<int64[2] s = {900, 8}, int64[3] t = {900, 2, 4}, int64[2] w = {900, 3}>"
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => (float[{result}] y) {weights} {{{body}}}'
    )


@pytest.mark.parametrize("target", ["llvm", "openvino"])
@pytest.mark.parametrize("reduction", ["add", "max"])
def test_rows_are_those_of_elements_to_the_last_bit(reduction: str, target: str) -> None:
    rng = np.random.default_rng(0)
    for inputs, shape in (("float[7,8] x, int64[900,1] i", "s"), ("float[7,2,4] x, int64[900,1,1] i", "t")):
        text = SUM.replace("add", reduction)
        u = "float[900,8] u" if shape == "s" else "float[900,2,4] u"
        file = _model(f"{inputs}, {u}", "7,8" if shape == "s" else "7,2,4", f"e = Expand (i, {shape}) {text}")
        kinds = [node.op_type for node in with_indices_of_rows(prepare(read_model(file))).graph]
        assert kinds == ["Reshape", "ScatterND"]
        x = rng.standard_normal((7, 8) if shape == "s" else (7, 2, 4)).astype("f")
        u = rng.standard_normal((900, *x.shape[1:])).astype("f")
        i = rng.integers(-7, 7, 900)
        right = x.copy()
        {"add": np.add, "max": np.maximum}[reduction].at(right, i, u)
        executable, column = executable_of(file, target), (900, *[1] * (x.ndim - 1))
        for _ in range(5):
            feeds = {"x": x, "i": i.reshape(column), "u": u}
            np.testing.assert_array_equal(executable.run(feeds)["y"], right)
        i[500] = 7
        with pytest.raises(InputError, match="beyond"):
            executable.run({"x": x, "i": i.reshape(column), "u": u})


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_that_are_gathered_by_rows(axis: int) -> None:
    inputs = "float[7,8] x, int64[900,1] i" if axis == 0 else "float[900,8] x, int64[1,8] i"
    file = _model(inputs, "900,8", f"e = Expand (i, s) y = GatherElements <axis = {axis}> (x, e)")
    assert [node.op_type for node in with_indices_of_rows(prepare(read_model(file))).graph] == ["Reshape", "Gather"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 8) if axis == 0 else (900, 8)).astype("f")
    i = rng.integers(-7, 7, (900, 1) if axis == 0 else (1, 8))
    made = executable_of(file, "llvm").run({"x": x, "i": i})["y"]
    np.testing.assert_array_equal(made, x.take(i.reshape(-1), axis))


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        ("float[7,8] x, int64[900,1] i, float[900,8] u", "e = Expand (i, s) y = ScatterElements <axis = 0> (x, e, u)"),
        ("float[7,8] x, int64[1,8] i, float[900,8] u", f"e = Expand (i, s) {SUM}"),
        ("float[7,8] x, int64[900,1] i, float[900,3] u", f"e = Expand (i, w) {SUM}"),
        ("float[900,8] x, int64[900,1] i, float[900,8] u", f"e = Expand (i, s) {SUM.replace('axis = 0', 'axis = 1')}"),
        (
            "float[7,8] x, int64[900,1] i, float[900,8] u",
            f"e = Expand (i, s) f = Cast <to = 1> (e) {SUM} z = Add (f, u)",
        ),
    ],
)
def test_what_is_not_of_whole_rows_stays(inputs: str, body: str) -> None:
    file = _model(inputs, "a,b", body)
    if " z " in body:
        file.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [900, 8]))
    model = prepare(read_model(file))
    assert with_indices_of_rows(model) is model
