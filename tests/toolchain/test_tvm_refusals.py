"""Operators that TVM computes wrongly are refused, and in that form only."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.toolchain.tvm_cases import plain

from collage.target import Target
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions, Unsupported
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


@pytest.mark.parametrize("length", [0, 2])
@pytest.mark.parametrize(
    "text",
    [
        "(float[3,K] x) => (float[3,5] y) {y = Gemm <alpha = 0.5> (x, w)}",
        "(float[3,K] x) => (float[3,5] y) {y = MatMul (x, w)}",
        "(float[3,K] x) => (float[3] y) {y = ReduceProd <keepdims = 0> (x, a)}",
        '(float[3,K] x) => (float[3] y) {y = Einsum <equation = "ij->i"> (x)}',
        "(float[1,2,K,4] x) => (float[1,2,1,1] y) {y = GlobalAveragePool (x)}",
    ],
)
def test_what_is_made_of_nothing_is_refused(text: str, length: int) -> None:
    weights = {"w": np.ones((length, 5), np.float32), "a": np.array([1])}
    used = {name: value for name, value in weights.items() if f" {name})" in text}
    (node,) = parsed_kernel("k", text.replace("K", str(length)), used).graph
    support = TvmToolchain().supports(node, TARGET)
    assert support.ok == bool(length)
    assert length or "uninitialised memory" in str(support.reason)


def test_a_reduction_that_is_told_no_axes_is_taken() -> None:
    text, weights = "(float[3,4] x) => (float[1,1] y) {y = ReduceMax (x, a)}", {"a": np.zeros(0, np.int64)}
    (node,) = parsed_kernel("k", text, weights).graph
    assert TvmToolchain().supports(node, TARGET).ok


def test_regions_that_may_name_no_image_are_refused() -> None:
    text = "(float[1,2,4,4] x, float[3,5] r) => (float[3,2,2,2] y) {y = MaxRoiPool <pooled_shape = [2,2]> (x, r)}"
    (node,) = parsed_kernel("k", text).graph
    assert "beyond the images" in str(TvmToolchain().supports(node, TARGET).reason)


@pytest.mark.parametrize("count", [0, 1])
def test_none_of_the_largest_elements_are_refused(count: int) -> None:
    text = f"(float[3,4] x) => (float[3,{count}] v, int64[3,{count}] i) {{v, i = TopK (x, k)}}"
    (node,) = parsed_kernel("k", text, {"k": np.array([count])}).graph
    assert TvmToolchain().supports(node, TARGET).ok == bool(count)


def test_an_operator_of_another_domain_is_not_one_of_onnx(tmp_path: Path) -> None:
    model = parsed_kernel("k", "(float[2] x) => (float[2] y) {y = com.example.Relu (x)}")
    with pytest.raises(Unsupported, match=r"com\.example\.Relu"):
        TvmToolchain().compile(model, TARGET, tmp_path)


def test_concat_with_nothing_is_refused_and_with_something_is_not() -> None:
    for size, ok in ((0, False), (1, True)):
        model = parsed_kernel(
            "k", f"(float[2] x, float[{size}] z) => (float[{2 + size}] y) {{y = Concat <axis = 0> (x, z)}}"
        )
        (node,) = model.graph
        assert TvmToolchain().supports(node, Target.parse("llvm")).ok == ok


@pytest.mark.parametrize(("length", "taken"), [(5, True), ("n", False), ("2*n", False)])
@pytest.mark.parametrize("axis", [1, -1])
def test_parts_of_an_unknown_length_are_refused(length: int | str, axis: int, taken: bool) -> None:
    text = f"(float[m,5] x) => (float[m,2] p, float[m,3] q) {{p, q = Split <axis = {axis}> (x, s)}}"
    model = parsed_kernel("k", text, {"s": np.array([2, 3])})
    (node,) = model.graph
    assert node.inputs[0] is not None
    node.inputs[0].shape = ir.Shape(["m", length])
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        (
            "(float[2,2] x, float[2] v) => (float[2,2] y) {y = BatchNormalization <training_mode = %s> (x, v, v, v, v)}",
            "0",
        ),
        ("(float[2] x) => (float[2] y) {y = Dropout (x%s)}", ""),
        ("(float[3,1] x, int64[3] t) => (float[A,B,C] y) {y = Expand (x, %s)}", "s"),
        ("(float[1,6,4] b, float[1,1,6] x, int64[1] t) => (int64[A,3] y) {y = NonMaxSuppression (b, x, %s)}", "s"),
    ],
)
def test_operators_that_tvm_is_wrong_of_are_refused_in_that_form_only(text: str, ok: str) -> None:
    other = {"0": "1", "": ", r, tr", "s": "t"}[ok]
    weights = {
        "r": np.array(0.5, np.float32),
        "tr": np.array(True),
        "s": np.array([2, 1, 6]),
    }
    for choice, taken in ((ok, True), (other, False)):
        form = text % choice
        used = {name: x for name, x in weights.items() if f" {name})" in form or f" {name}," in form}
        (node,) = parsed_kernel("k", form, used).graph
        assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("data", "indices", "axis", "taken"),
    [
        ("5,3", "5,3", 0, True),
        ("5,3", "2,3", 0, True),
        ("5,3", "2,3", -2, True),
        ("5,3", "2,2", 0, False),
        ("5,3", "2,3", 1, False),
        ("N,3", "N,3", 1, True),
        ("N,3", "M,3", 1, False),
        ("N,3", "M,3", 0, True),
    ],
)
def test_scattering_fewer_rows_than_there_are_is_refused(data: str, indices: str, axis: int, taken: bool) -> None:
    arguments = f"float[{data}] x, int64[{indices}] i, float[{indices}] u"
    (node,) = parsed_kernel(
        "k", f"({arguments}) => (float[{data}] y) {{y = ScatterElements <axis = {axis}> (x, i, u)}}"
    ).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("length", "scale", "taken"), [(5, 0.5, False), (5, 0.4, True), (5, 2.0, True), ("N", 2.0, True), ("N", 0.4, False)]
)
def test_scales_that_make_no_whole_lengths_are_refused(length: int | str, scale: float, taken: bool) -> None:
    text = f"(float[1,1,1,{length}] x) => (float[A,B,C,D] y) {{y = Resize (x, , s)}}"
    (node,) = parsed_kernel("k", text, {"s": np.array([1, 1, 1, scale])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("dtype", "mode", "taken"),
    [
        *(("float", mode, True) for mode in ("nearest", "linear")),
        *(("uint8", mode, mode == "nearest") for mode in ("nearest", "linear")),
        *((dtype, "nearest", False) for dtype in ("int32", "int64", "double")),
    ],
)
def test_a_resize_is_refused_of_what_float32_does_not_keep(dtype: str, mode: str, taken: bool) -> None:
    text = f'({dtype}[1,1,4] x) => ({dtype}[A,B,C] y) {{y = Resize <mode = "{mode}"> (x, , s)}}'
    (node,) = parsed_kernel("k", text, {"s": np.float32([1, 1, 2])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(
    ("shape", "attributes", "sizes", "ignored"),
    [
        ("1,2,4,4", 'mode = "linear"', [1, 2, 3, 2], None),
        ("1,2,4,4", 'mode = "linear", antialias = 1', [1, 2, 3, 2], "antialias"),
        ("1,2,4,4", 'keep_aspect_ratio_policy = "not_larger"', [1, 2, 3, 8], "keep_aspect_ratio_policy"),
        ("1,2,4,4", "axes = [2,3]", [8, 8], "axes"),
        ("1,2,4,4", 'mode = "nearest"', [1, 4, 4, 8], "channels"),
        ("1,2,N,4", 'mode = "nearest"', [1, 2, 4, 8], None),
        ("N,2,4,4", 'mode = "nearest"', [1, 2, 4, 8], "batch"),
    ],
)
def test_a_resize_is_refused_of_which_tvm_ignores_something(
    shape: str, attributes: str, sizes: list[int], ignored: str | None
) -> None:
    text = f"(float[{shape}] x) => (float[A,B,C,D] y) {{y = Resize <{attributes}> (x, , , s)}}"
    (node,) = parsed_kernel("k", text, {"s": np.array(sizes)}).graph
    support = TvmToolchain().supports(node, TARGET)
    assert support.ok is (ignored is None)
    assert (ignored or "") in (support.reason or "")


ROUNDED = {
    "ceil": math.ceil,
    "floor": math.floor,
    "round_prefer_ceil": lambda place: math.floor(place + Fraction(1, 2)),
    "round_prefer_floor": lambda place: math.ceil(place - Fraction(1, 2)),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("transformation", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("nearest", ROUNDED)
def test_the_nearest_elements_are_those_of_exact_coordinates_or_refused(
    transformation: str, nearest: str, tmp_path: Path
) -> None:
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{transformation}", nearest_mode = "{nearest}"'
    toolchain, taken = TvmToolchain(), 0
    for n, m in ((8, 7), (7, 9), (3, 8), (4, 2), (2, 6), (5, 10), (10, 5), (6, 4)):
        text = f"(float[1,1,{n}] x) => (float[1,1,{m}] y) {{y = Resize <{attributes}> (x, , , s)}}"
        model = parsed_kernel(f"k{n}_{m}", text, {"s": np.array([1, 1, m])})
        if not toolchain.supports(model.graph.node(0), TARGET).ok:
            continue
        taken += 1
        x = np.arange(n, dtype=np.float32).reshape(1, 1, n)
        (y,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
        ratio = Fraction(n - 1, m - 1) if transformation == "align_corners" else Fraction(n, m)
        shift = Fraction(1, 2) if "half_pixel" in transformation else Fraction(0)
        places = [ratio * (i + shift) - shift for i in range(m)]
        rounding = ROUNDED[nearest]
        assert y.reshape(-1).tolist() == [min(max(rounding(c), 0), n - 1) for c in places], (n, m)
    assert taken >= 5


@pytest.mark.parametrize(
    ("shape", "sizes", "taken"), [("8", 7, False), ("7", 8, True), ("8", 16, True), ("16", 8, True), ("3", 9, True)]
)
def test_a_resize_is_refused_whose_coordinates_lie_between_elements(shape: str, sizes: int, taken: bool) -> None:
    text = f'(float[1,1,{shape}] x) => (float[A,B,C] y) {{y = Resize <mode = "nearest"> (x, , , s)}}'
    (node,) = parsed_kernel("k", text, {"s": np.array([1, 1, sizes])}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("op_type", ["Add", "Mul", "Sub", "Sum"])
def test_unsigned_arithmetic_that_may_wrap_is_refused(op_type: str, dtype: str) -> None:
    (node,) = parsed_kernel("k", f"({dtype}[2] x) => ({dtype}[2] y) {{y = {op_type} (x, x)}}").graph
    assert "never wraps" in (TvmToolchain().supports(node, TARGET).reason or "")
    (node,) = parsed_kernel("k", f"({dtype}[2] x) => ({dtype}[2] y) {{y = Max (x, x)}}").graph
    assert TvmToolchain().supports(node, TARGET).ok


@pytest.mark.parametrize(("dtype", "taken"), [("float", True), ("int32", False), ("int64", False)])
def test_a_mean_of_integers_is_refused(dtype: str, taken: bool) -> None:
    (node,) = parsed_kernel("k", f"({dtype}[3] x) => ({dtype}[1] y) {{y = ReduceMean (x)}}").graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


def test_a_quantisation_by_what_comes_is_refused() -> None:
    text = "(float[3] x) => (uint8[3] y, float s, uint8 z) {y, s, z = DynamicQuantizeLinear (x)}"
    (node,) = parsed_kernel("k", text).graph
    assert not TvmToolchain().supports(node, TARGET).ok


@pytest.mark.parametrize(("dtype", "taken"), [("float", False), ("int64", True)])
def test_one_hot_is_refused_of_floats(dtype: str, taken: bool) -> None:
    text = f"(int64[3] x, {dtype}[2] v) => ({dtype}[3,4] y) {{y = OneHot (x, n, v)}}"
    (node,) = parsed_kernel("k", text, {"n": np.array(4)}).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize(("outputs", "taken"), [("float[2,3] y", True), ("float[2,3] y, float[2,1] m", False)])
def test_a_normalisation_is_refused_where_more_than_its_result_is_used(outputs: str, taken: bool) -> None:
    text = f"(float[2,3] x, float[3] s) => ({outputs}) {{y, m = LayerNormalization (x, s)}}"
    (node,) = parsed_kernel("k", text).graph
    assert TvmToolchain().supports(node, TARGET).ok is taken


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"])
def test_reductions_that_only_copy_are_refused(operator: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="unchanged if axes are empty"):
        body = f"y = {operator} <noop_with_empty_axes = 1> (x)"
        TvmToolchain().compile(plain((4, 16), 2, body).model(), TARGET, tmp_path)
