"""Attributes whose defaults ONNX states in words count as if they were written down."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from collage._errors import PatternError
from collage.pattern import attributes_of, is_op


def model(text: str, opset: int = 18) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> g {text}')
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


CONV = "(float[1,3,8,8] x, float[4,3,1,1] w) => (float[1,4,8,8] y) {{ y = Conv{} (x, w) }}"


@pytest.mark.parametrize(
    "wanted",
    [
        {"kernel_shape": (1, 1)},
        {"strides": (1, 1)},
        {"dilations": [1, 1]},
        {"pads": (0, 0, 0, 0)},
        {"kernel_shape": (1, 1), "strides": (1, 1), "group": 1},
    ],
)
def test_a_convolution_is_the_same_however_it_is_spelt(wanted) -> None:
    written = " <kernel_shape=[1,1], strides=[1,1], dilations=[1,1], pads=[0,0,0,0]>"
    for spelling in ("", written):
        assert is_op("Conv").has_attr(wanted).find_all(model(CONV.format(spelling))), spelling
    assert not is_op("Conv").has_attr(strides=(2, 2)).find_all(model(CONV.format("")))


def test_other_operators() -> None:
    pool = model("(float[1,3,8,8] x) => (float[1,3,7,7] y) { y = MaxPool <kernel_shape=[2,2]> (x) }")
    assert is_op("MaxPool").has_attr(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)).find_all(pool)
    turned = model("(float[2,3,4] x) => (float[4,3,2] y) { y = Transpose (x) }")
    assert is_op("Transpose").has_attr(perm=(2, 1, 0)).find_all(turned)
    total = model("(float[2,3] x) => (float[1,1] y) { y = ReduceMean (x) }", 13)
    assert is_op("ReduceMean").has_attr(axes=(0, 1)).find_all(total)
    deconv = model("(float[1,3,8,8] x, float[3,4,2,2] w) => (float[1,4,9,9] y) { y = ConvTranspose (x, w) }")
    assert is_op("ConvTranspose").has_attr(output_padding=(0, 0), kernel_shape=(2, 2)).find_all(deconv)


def test_what_does_not_follow_is_not_made_up() -> None:
    same = model(
        '(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,8,8] y) { y = Conv <auto_pad="SAME_UPPER"> (x, w) }'
    )
    assert "pads" not in attributes_of(same.graph.node(0), same.opset_imports)
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float x) => (float y) { h = Foo (x) y = Transpose (h) }'
    unknown = ir.from_proto(onnx.parser.parse_model(text))
    assert "perm" not in attributes_of(unknown.graph.node(1), unknown.opset_imports)
    modern = model("(float[2,3] x) => (float[1,1] y) { y = ReduceMean (x) }", 18)
    assert "axes" not in attributes_of(modern.graph.node(0), modern.opset_imports)


def test_a_misspelt_attribute_is_refused() -> None:
    with pytest.raises(PatternError, match="Conv has no attribute 'kernel_size'; did you mean 'kernel_shape'"):
        is_op("Conv").with_attr("kernel_size", (1, 1))
    is_op("ReduceMean").has_attr(axes=(1,))  # Older versions have it.
    is_op("Conv").has_attr(owner="mine")  # A toolchain's own.
    is_op("Conv", "Fancy").has_attr(anything=1)
    is_op("Conv", domain="my.ops").has_attr(anything=1)
