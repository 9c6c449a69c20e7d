"""Layouts: operators are altered, Transposes cancel, results stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from tests.combinations import first
from tests.unit.transform.graphs import assert_same, random_model, run

from collage.frontend import read_model
from collage.target import Target
from collage.transform import AlterOpLayout, Layout, PassContext, prepare, register_layout_request

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

CHANNELS_LAST = """
<domain: "nhwc", opset_import: ["" : 18]>
Conv <pads> (x, w, b) => (y) {
    t = Transpose <perm = [0, 3, 1, 2]> (x)
    c = Conv <pads : ints = @pads> (t, w, b)
    y = Transpose <perm = [0, 2, 3, 1]> (c)
}
"""


def channels_last(node: ir.Node) -> Layout | None:
    """What a toolchain would ask whose convolutions and poolings work on [N, H, W, C]."""
    if node.op_type == "Conv" and node.domain == "":
        return Layout(inputs={0: LAST}, outputs={0: LAST}, domain="nhwc")
    if node.op_type == "Softmax" and node.attributes.get_int("axis", -1) == 1:
        return Layout(inputs={0: LAST}, outputs={0: LAST}, attributes={"axis": 3})
    return None


def alter(model: ir.Model, request=channels_last) -> ir.Model:
    with PassContext(opt_level=3):
        return AlterOpLayout(request)(model)


def with_functions(model: ir.Model) -> ir.Model:
    """The model with a definition of the operators that the request made up."""
    empty = '<ir_version: 10, opset_import: ["" : 18, "nhwc" : 1]> g (float x) => (float y) { y = Identity (x) }'
    functions = ir.from_proto(parser.parse_model(empty + CHANNELS_LAST)).functions
    model.functions.update(functions)
    return model


def read(text: str) -> ir.Model:
    return prepare(read_model(parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>' + text)))


def feeds(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {str(v.name): random.standard_normal(list(v.shape)).astype(np.float32) for v in model.graph.inputs}


CHAIN = """g (float[2, 4, 5, 5] x, float[4, 4, 3, 3] v, float[4, 4, 3, 3] w) => (float[2, 4, 5, 5] y)
    <float[4, 1, 1] b = {1, 2, 3, 4}, float two = {2}> {
    a = Conv <pads = [1, 1, 1, 1]> (x, v)
    s = Add (a, b)
    r = Relu (s)
    d = Mul (r, two)
    c = Conv <pads = [1, 1, 1, 1]> (d, w)
    e = Add (c, d)
    y = Softmax <axis = 1> (e)
}"""


def test_transposes_between_altered_operators_cancel():
    model = read(CHAIN)
    altered = alter(model)
    ops = [node.op_type for node in altered.graph]
    assert ops == ["Transpose", "Conv", "Add", "Relu", "Mul", "Conv", "Add", "Softmax", "Transpose"]
    assert [node.domain for node in altered.graph if node.op_type == "Conv"] == ["nhwc", "nhwc"]
    softmax = next(node for node in altered.graph if node.op_type == "Softmax")
    assert softmax.attributes.get_int("axis") == 3
    inputs = feeds(model)
    assert_same(run(model, inputs), run(with_functions(altered), inputs))
    assert [value.name for value in altered.graph.outputs] == ["y"]


def test_a_constant_operand_is_permuted_here_and_now():
    model = read("""g (float[3, 4] x) => (float[3, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}>
        { y = MatMul (x, w) }""")

    def transposed(node: ir.Node) -> Layout | None:
        return Layout(inputs={1: (1, 0)}, op_type="Gemm", attributes={"transB": 1}) if len(node.inputs) == 2 else None

    altered = alter(model, transposed)
    (gemm,) = altered.graph
    assert gemm.op_type == "Gemm" and gemm.inputs[1].const_value.shape == (2, 4)
    inputs = feeds(model)
    assert_same(run(model, inputs), run(altered, inputs))


@pytest.mark.parametrize("seed", first(8, range(25)))
def test_random_models_keep_their_outputs(seed):
    proto, inputs = random_model(seed, nodes=40)
    model = prepare(read_model(proto))
    altered = alter(model)
    counts = Counter(node.op_type for node in model.graph)
    assert counts["Conv"] == Counter(node.op_type for node in altered.graph)["Conv"]
    assert_same(run(model, inputs), run(with_functions(altered), inputs))


def test_a_toolchain_is_asked_where_its_target_is_current():
    model = read(CHAIN)
    register_layout_request("layouts_test", channels_last)
    with PassContext(opt_level=3):
        assert [node.domain for node in AlterOpLayout()(model).graph if node.op_type == "Conv"] == ["", ""]
        with Target("llvm"):
            assert [node.domain for node in AlterOpLayout()(model).graph if node.op_type == "Conv"] == ["", ""]
        with Target("llvm", compiler="layouts_test"):
            altered = AlterOpLayout()(model)
    assert [node.domain for node in altered.graph if node.op_type == "Conv"] == ["nhwc", "nhwc"]
    assert altered.opset_imports["nhwc"] == 1


def test_operators_with_several_results_and_absent_operands():
    model = read("""g (float[2, 4, 3] x) => (float[2, 2, 3] y, float[2, 2, 3] z) {
        a, b = Split <axis = 1, num_outputs = 2> (x)   y = Relu (a)   z = Neg (b)
    }""")
    model.graph[0].metadata_props["origin"] = "here"

    def last(node: ir.Node) -> Layout | None:
        if node.op_type != "Split":
            return None
        swap = (0, 2, 1)
        return Layout(inputs={0: swap, 1: swap}, outputs={0: swap, 1: swap}, attributes={"axis": 2})

    altered = alter(model, last)
    ops = [node.op_type for node in altered.graph]
    assert ops[:2] == ["Transpose", "Split"] and altered.graph[1].metadata_props == {"origin": "here"}
    inputs = feeds(model)
    assert_same(run(model, inputs), run(altered, inputs))
    assert [value.name for value in altered.graph.outputs] == ["y", "z"]


def test_it_does_nothing_below_its_level():
    model = read(CHAIN)
    assert AlterOpLayout(channels_last)(model) is model


def test_a_toolchain_that_was_only_installed_is_asked(install):
    """It ships its request as an entry point, and its code is imported when its target is current."""
    install(
        """
from collage.transform import Layout

def channels_last(node):
    if node.op_type == "Conv" and node.domain == "":
        return Layout(inputs={0: (0, 2, 3, 1)}, outputs={0: (0, 2, 3, 1)}, domain="nhwc")
""",
        "[collage.layouts]\ninstalled_only = third_party_package:channels_last\n",
    )
    model = read(CHAIN)
    with PassContext(opt_level=3):
        with Target("llvm"):
            assert [node.domain for node in AlterOpLayout()(model).graph if node.op_type == "Conv"] == ["", ""]
        with Target("llvm", compiler="installed_only"):
            altered = AlterOpLayout()(model)
    assert [node.domain for node in altered.graph if node.op_type == "Conv"] == ["nhwc", "nhwc"]
    inputs = feeds(model)
    assert_same(run(model, inputs), run(with_functions(altered), inputs))
