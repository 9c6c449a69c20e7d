from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from collage.testing import executable_of, with_named_lengths


def two_operators() -> onnx.ModelProto:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2,1,2] x) => (float[2,1,2] y) {h = Neg (x) y = Exp (h)}'
    return onnx.parser.parse_model(text)


def test_each_part_is_one_kernel_on_its_target() -> None:
    x = np.arange(4, dtype=np.float32).reshape(2, 1, 2)
    exe = executable_of(two_operators(), [([0], "host"), ([1], "onnxruntime")])
    assert [kernel.compiled.toolchain for kernel in exe.recipe.kernels] == ["host", "onnxruntime"]
    np.testing.assert_allclose(exe.run([x])["y"], np.exp(-x), rtol=1e-5)


def test_a_target_alone_gets_the_whole_model() -> None:
    exe = executable_of(two_operators(), "onnxruntime")
    assert [kernel.compiled.toolchain for kernel in exe.recipe.kernels] == ["onnxruntime"]


def test_lengths_above_1_get_names_and_the_model_stays_as_it_is() -> None:
    model = two_operators()
    before = model.SerializeToString(deterministic=True)
    every, first = with_named_lengths(model), with_named_lengths(model, first_only=True)
    assert [dim.dim_param or dim.dim_value for dim in every.graph.input[0].type.tensor_type.shape.dim] == [
        "d2",
        1,
        "d2",
    ]
    assert [dim.dim_param or dim.dim_value for dim in first.graph.input[0].type.tensor_type.shape.dim] == ["d2", 1, 2]
    assert [dim.WhichOneof("value") for dim in every.graph.output[0].type.tensor_type.shape.dim] == [None] * 3
    assert with_named_lengths(model, inputs=0).graph.input == model.graph.input
    assert model.SerializeToString(deterministic=True) == before
