"""Lengths that are free stay as simple as the model has them, and nothing is taken for granted of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from tests.toolchain.tvm_cases import TARGET, agrees, numbers

from collage._errors import ToolchainError
from collage.testing._toolchain_kernels import KernelCase
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions, Unsupported
from collage.toolchains.tvm.toolchain import TvmToolchain

tvm_importer = pytest.importorskip("collage.toolchains.tvm.importer")


@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.parametrize(
    ("begin", "end", "step"),
    [(-1, -(2**63), -2), (-1, -(2**63), -1), (2**63 - 1, -(2**63), -3), (0, 2**63 - 1, 2), (-3, 2**63 - 1, 1)],
)
def test_a_slice_to_the_end_is_one_to_any_end(length: int, begin: int, end: int, step: int, tmp_path: Path) -> None:
    constants = {name: np.array([n]) for name, n in {"b": begin, "e": end, "a": -2, "s": step}.items()}
    text = "(float[N,3] x) => (float[M,3] y) {y = Slice (x, b, e, a, s)}"
    agrees(KernelCase("slice", text, [numbers(length, 3)], constants), tmp_path)


@pytest.mark.parametrize("ends", ["z, n", "n, far", "d, far", "z, d"])
@pytest.mark.parametrize("length", [2, 5])
def test_a_slice_to_a_length_of_another_axis_ends_with_the_tensor(ends: str, length: int, tmp_path: Path) -> None:
    body = f"s = Shape (x) n = Slice (s, z, a) g = Gather (s, a) m = Sub (g, three) d = Reshape (m, a) y = Slice (x, {ends}, a)"
    constants = {"z": np.array([0]), "a": np.array([1]), "three": np.array([3]), "far": np.array([2**31 - 1])}
    used = {name: value for name, value in constants.items() if name != "far" or "far" in ends}
    text = f"(float[N,M] x) => (float[N,K] y) {{{body}}}"
    agrees(KernelCase("slice", text, [numbers(4, length)], used), tmp_path)


@pytest.mark.parametrize(("begin", "end"), [(0, 8), (2, 1), (-3, 2), (7, -9), (9, 12), (-20, 3), (5, -1)])
@pytest.mark.parametrize("step", [1, 3])
def test_rows_between_computed_limits_may_be_none(begin: int, end: int, step: int, tmp_path: Path) -> None:
    text = "(float[8,3] x, int64[1] b, int64[1] e, int64[1] s) => (float[K,3] y) {y = Slice (x, b, e, zero, s)}"
    limits = [np.array([n]) for n in (begin, end, step)]
    agrees(KernelCase("rows", text, [numbers(8, 3), *limits], {"zero": np.array([0])}), tmp_path)


@pytest.mark.parametrize("limits", ["zero, n", "two, n", "n, sum", "n, far", "zero, sum", "m, n"])
@pytest.mark.parametrize("lengths", [(0, 1), (1, 1), (3, 2), (5, 9), (12, 3)])
def test_rows_of_a_table_between_lengths_are_repeated(limits: str, lengths: tuple[int, int], tmp_path: Path) -> None:
    """Rows from a length to another are cut at the end of the table, and fused with what reads them."""
    limit = "s = Shape (x) a = Gather (s, first) b = Gather (s, second) c = Add (a, b)"
    limit += "n = Reshape (a, one) m = Reshape (b, one) sum = Reshape (c, one)"
    rows = f"r = Slice (table, {limits}, zero) y = Add (r, column)"
    constants = {"zero": np.array([0]), "two": np.array([2]), "far": np.array([2**31 - 1])}
    used = {name: value for name, value in constants.items() if name == "zero" or name in limits}
    used |= {"first": np.array(0), "second": np.array(1), "one": np.array([1])}
    used |= {"table": numbers(8, 3), "column": numbers(2, 1, 1)}
    text = f"(float[N,M] x) => (float[2,K,3] y) {{{limit} {rows}}}"
    agrees(KernelCase("rows", text, [numbers(*lengths)], used), tmp_path)


@pytest.mark.parametrize("length", [8, 12, 23])
def test_lengths_of_a_convolution_stay_simple_in_counts_and_slices(
    length: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Speech models mask frames, of which there are as many as their convolutions make."""
    frames = "c = Conv <strides = [4]> (x, w) s = Shape (x) n = Gather (s, two) q = Div (n, four) m = Add (q, less)"
    mask = "k = Reshape (m, last) wide = Concat <axis = 0> (head, k) r = Range (zero, m, one) g = Less (r, three)"
    cut = "p = Conv <pads = [2, 2]> (c, v) t = Slice (p, first, last, axis)"
    body = f"{frames} {mask} e = Expand (g, wide) {cut} y = Where (e, t, c)"
    constants = {"w": numbers(4, 2, 8), "v": numbers(4, 4, 4), "two": np.array(2), "four": np.array(4)}
    constants |= {"less": np.array(-1), "last": np.array([-1]), "head": np.array([1, 4]), "zero": np.array(0)}
    constants |= {"one": np.array(1), "three": np.array(3), "first": np.array([0]), "axis": np.array([2])}
    text = f"(float[1,2,N] x) => (float[1,4,K] y) {{{body}}}"
    agrees(KernelCase("frames", text, [numbers(1, 2, length)], constants), tmp_path, within=1e-5)
    assert "slower loops" not in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        "r = Max (n, m)",
        "r = Min (n, m)",
        "r = Gather (x, zero)",
        "r = Div (n, d)",
        "r = Mod (n, d)",
        "f = Cast <to = 1> (n) r = Mul (x, f)",
        "i = Range (zero, n, one) r = Add (i, m)",
        "r = Where (t, n, m)",
        "g = Greater (n, m) r = Where (g, n, m)",
        "e = Equal (n, m) r = Cast <to = 7> (e)",
        "w = Reshape (n, ones) r = ReduceSum <keepdims = 0> (w)",
    ],
)
def test_numbers_made_of_lengths_are_tensors_where_tensors_are_computed(body: str, tmp_path: Path) -> None:
    lengths = "s = Shape (x) n = Gather (s, zero) m = Gather (s, one) d = Sub (n, m)"
    weights = {"zero": np.array(0), "one": np.array(1), "t": np.array(True), "ones": np.array([1, 1])}
    text = f"(float[N,M] x) => (float y) {{{lengths} {body} y = Cast <to = 1> (r)}}"
    agrees(KernelCase("numbers", text, [numbers(5, 3)], weights), tmp_path)


@pytest.mark.parametrize(("compared", "ok"), [([1, 5], False), ([-1, -1], True), ([-1, 5], False)])
def test_shapes_are_compared_only_if_lengths_do_not_matter(compared: list[int], ok: bool, tmp_path: Path) -> None:
    text = "(float[N,M] x) => (bool[2] y) {s = Shape (x) y = Equal (s, c)}"
    case = KernelCase("equal", text, [numbers(1, 5)], {"c": np.array(compared)})
    if ok:
        agrees(case, tmp_path)
        return
    with pytest.raises(Unsupported, match="cannot decide if"):
        TvmToolchain().check_import(case.model(), TARGET, tmp_path)


@pytest.mark.parametrize("axis", [-1, -2])
def test_parameters_of_a_norm_that_may_be_of_length_one_are_refused(axis: int, tmp_path: Path) -> None:
    text = f"(float[2,3,4] x, float[M] w) => (float[2,3,4] y) {{y = LayerNormalization <axis = {axis}> (x, w)}}"
    with pytest.raises(ToolchainError):
        TvmToolchain().compile(parsed_kernel("norm", text), TARGET, tmp_path)


def test_an_axis_that_a_slice_keeps_whole_has_its_own_length(tmp_path: Path) -> None:
    constants = {"b": np.array([0, 1, -(2**63)]), "e": np.array([2**31 - 1, 3, 2**63 - 1])}
    text = "(float[N,4,M] x) => (float[N,K,M] y) {z = Slice (x, b, e) y = Exp (z)}"
    given, made = lengths_in_and_out(parsed_kernel("slice", text, constants))
    assert made[0].same_as(given[0]) and made[2].same_as(given[2])
    agrees(KernelCase("slice", text, [numbers(2, 4, 5)], constants), tmp_path)


@pytest.mark.parametrize(("width", "whole"), [(300, True), (200, False)])
def test_an_end_beyond_all_memory_keeps_an_axis_whole(width: int, whole: bool) -> None:
    constants = {"b": np.array([0]), "e": np.array([10**9])}
    text = f"(float[N,{width}] x) => (float[M,{width}] y) {{z = Slice (x, b, e) y = Exp (z)}}"
    given, made = lengths_in_and_out(parsed_kernel("slice", text, constants))
    assert made[0].same_as(given[0]) is whole


def lengths_in_and_out(model: ir.Model) -> tuple[Any, Any]:
    imported = tvm_importer.import_onnx(ir.to_proto(model))["main"]
    return imported.params[0].ty.shape.values, imported.ret_ty.shape.values


def test_what_is_resized_twice_has_lengths_that_are_known_to_be_equal(tmp_path: Path) -> None:
    attributes = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    body = (
        f"u = Resize <{attributes}> (x, , by2) v = Resize <{attributes}> (u, , by2) w = Resize <{attributes}> (x, , by4) "
        "y = Add (v, w)"
    )
    weights = {"by2": np.float32([1, 1, 2, 2]), "by4": np.float32([1, 1, 4, 4])}
    model = parsed_kernel("k", f"(float[n,2,h,w] x) => (float[n,2,H,W] y) {{{body}}}", weights)
    imported = tvm_importer.import_onnx(ir.to_proto(model))
    assert "float" not in str(imported["main"].ret_ty.shape)
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    for shape in ((1, 2, 3, 6), (3, 2, 1, 2)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        (wanted,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
        np.testing.assert_array_equal(loaded([x])[0], wanted)


SIZED = "s = Shape (x) f = Slice (s, zero, two) c = Concat <axis = 0> (f, e) y = Resize <{}> (x, , , c)"
PLACES = {"zero": np.array([0]), "two": np.array([2]), "four": np.array([4])}


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_sizes_may_follow_from_the_lengths_of_another_tensor(mode: str, tmp_path: Path) -> None:
    """As where a picture is enlarged to the size of an earlier one."""
    body = "t = Shape (z) e = Slice (t, two, four) " + SIZED.format(f'mode = "{mode}"')
    x, z = numbers(2, 3, 5, 7), numbers(1, 4, 10, 3)
    text = f"(float[n,3,h,w] x, float[o,4,a,b] z) => (float[p,3,q,r] y) {{{body}}}"
    case = KernelCase("resized", text, [x, z], PLACES)
    others = [
        [numbers(1, 3, *of), numbers(1, 4, *to)] for of, to in (((8, 8), (3, 20)), ((1, 1), (9, 5)), ((6, 4), (6, 8)))
    ]
    agrees(case, tmp_path, *others, within=1e-5)


@pytest.mark.parametrize(
    ("attributes", "is_taken"),
    [('mode = "linear"', True), ('mode = "nearest", nearest_mode = "floor"', True), ('mode = "nearest"', False)],
)
def test_sizes_of_any_number_of_samples(attributes: str, is_taken: bool, tmp_path: Path) -> None:
    text = f"(float[n,3,6,9] x) => (float[p,3,13,20] y) {{{SIZED.format(attributes)}}}"
    case = KernelCase("resized", text, [numbers(2, 3, 6, 9)], {**PLACES, "e": np.array([13, 20])})
    if is_taken:
        agrees(case, tmp_path, [numbers(5, 3, 6, 9)], within=1e-5)
        return
    with pytest.raises(Unsupported, match="Resize"):
        TvmToolchain().compile(case.model(), TARGET, tmp_path)


HALVED = "s = Shape (x) n = Gather (s, two) m = Add (n, minus) q = Div (m, by2) h = Add (q, one) r = Reshape (h, {})"
NUMBERS = {"two": np.array(2), "minus": np.array(-1), "by2": np.array(2), "one": np.array(1), "all": np.array([-1])}


@pytest.mark.parametrize("height", [1, 2, 7, 10])
def test_a_length_that_is_divided_is_that_of_a_convolution_with_strides(height: int, tmp_path: Path) -> None:
    """Newer exporters write lengths as numbers. Nothing is checked at run time, and images are computed channels last."""
    body = (
        "v = Conv <strides = [2, 1], pads = [1, 1, 1, 1]> (x, w) "
        f"{HALVED.format('all')} b = Slice (s, zero, start) "
        "c = Concat <axis = 0> (b, channels, r, width) t = Reshape (v, c) y = Add (v, t)"
    )
    weights = {
        **NUMBERS,
        "zero": np.array([0]),
        "start": np.array([1]),
        "channels": np.array([16]),
        "width": np.array([6]),
        "w": numbers(16, 16, 3, 3) / 12,
    }
    text = f"(float[N,16,H,6] x) => (float[A,B,C,D] y) {{{body}}}"
    case = KernelCase("halved", text, [numbers(2, 16, height, 6)], weights)
    agrees(case, tmp_path, within=1e-4)


def test_a_divided_length_of_nothing_is_refused(tmp_path: Path) -> None:
    """ONNX divides towards 0, and lengths are rounded down: -1 / 2 is 0 or -1."""
    text = f"(float[N,16,H,6] x) => (int64[1] r) {{{HALVED.format('all')}}}"
    made = parsed_kernel("halved", text, NUMBERS)
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(made, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    assert loaded([numbers(1, 16, 7, 6)])[0].tolist() == [4]
    with pytest.raises(Unsupported, match="no elements"):
        loaded([numbers(1, 16, 0, 6)])


@pytest.mark.parametrize("made", ["[2]", "zero"])
def test_a_number_takes_no_shape_of_other_sizes(made: str, tmp_path: Path) -> None:
    shapes = {"[2]": [2], "zero": [0]}
    text = f"(float[N,16,H,6] x) => (int64[K] r) {{{HALVED.format('shape')}}}"
    weights = {**{name: value for name, value in NUMBERS.items() if name != "all"}, "shape": np.array(shapes[made])}
    with pytest.raises(ToolchainError):
        TvmToolchain().check_import(parsed_kernel("halved", text, weights), TARGET, tmp_path)


@pytest.mark.parametrize("by", [np.nan, np.inf, 0.5])
def test_a_tensor_is_divided_by_any_number(by: float, tmp_path: Path) -> None:
    text = "(float[N,3] x) => (float[N,3] y) {y = Div (x, by)}"
    agrees(KernelCase("divided", text, [numbers(2, 3)], {"by": np.array(by, np.float32)}), tmp_path)


def test_what_is_joined_with_a_known_length_has_that_length(tmp_path: Path) -> None:
    body = "p = AveragePool <kernel_shape = [2, 1], strides = [2, 1]> (x) g = ReduceMax <keepdims = 1> (x, two)"
    text = f"(float[N,3,H,W] x) => (float[A,5,C,D] y) {{{body} j = Concat <axis = 1> (p, g) y = Conv (j, w)}}"
    weights = {"two": np.array([2]), "w": numbers(5, 6, 1, 1)}
    agrees(KernelCase("joined", text, [numbers(2, 3, 3, 4)], weights), tmp_path, [numbers(1, 3, 2, 5)], within=1e-5)
    toolchain, made = TvmToolchain(), parsed_kernel("joined", text, weights)
    loaded = toolchain.load(toolchain.compile(made, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    with pytest.raises(RuntimeError, match="mismatch"):
        loaded([numbers(2, 3, 5, 4)])  # Two rows beside one.


@pytest.mark.parametrize(
    ("last", "dtype"),
    [
        ("y = Identity (n)", "int64"),
        ("y = Cast <to = 1> (n)", "float"),
        ("y = Cast <to = 6> (n)", "int32"),
        ("y = Mul (n, n)", "int64"),
    ],
)
def test_a_number_that_follows_from_lengths_is_an_output_as_any_other(last: str, dtype: str, tmp_path: Path) -> None:
    text = f"(float[N,M] x) => (float[N,M] r, {dtype} y) {{r = Relu (x) s = Shape (x) n = Gather (s, one) {last}}}"
    agrees(KernelCase("number", text, [numbers(4, 7)], {"one": np.array(1)}), tmp_path)


@pytest.mark.parametrize("length", [1, 4, 6])
@pytest.mark.parametrize(
    "body",
    [
        "t = Slice (table, z, n, a) y = Add (x, t)",
        "t = Slice (table, z, n, a) r = Expand (t, s) y = Add (x, r)",
        "t = Slice (table, z, n, a) y = Where (t, x, t)",
    ],
)
def test_the_first_rows_of_a_table_fit_what_they_are_added_to(body: str, length: int, tmp_path: Path) -> None:
    """Position embeddings, of which a model has more than the text is long. What is longer than the table is refused."""
    table = numbers(1, 6, 3)
    if "Where" in body:
        body = body.replace("Where (t,", "Where (c,").replace("y =", "c = Cast <to = 9> (t) y =")
    text = f"(float[N,M,3] x) => (float[N,M,3] y) {{s = Shape (x) n = Slice (s, a, two) {body}}}"
    constants = {"table": table, "z": np.array([0]), "a": np.array([1]), "two": np.array([2])}
    agrees(KernelCase("table", text, [numbers(2, length, 3)], constants), tmp_path)


def test_a_length_is_not_defined_by_itself(tmp_path: Path) -> None:
    """TVM would replace it by an expression of it, and end its process."""
    body = "s = Shape (x) n = Slice (s, a, two) t = Slice (table, z, n, a) y = Add (x, t)"
    constants = {"table": numbers(1, 6), "z": np.array([0]), "a": np.array([1]), "two": np.array([2])}
    case = KernelCase("table", f"(float[N,M] x) => (float[N,M] y) {{{body}}}", [numbers(2, 4)], constants)
    with pytest.raises(Unsupported, match="cannot compare"):
        TvmToolchain().check_import(case.model(), TARGET, tmp_path)


def test_lengths_that_differ_are_not_read_beyond(tmp_path: Path) -> None:
    """Two lengths with names of their own are taken for equal. If one is 1 or longer, the kernel says so."""
    made = parsed_kernel("sum", "(float[N,M] x, float[N,K] z) => (float[N,L] y) {w = Add (x, z) y = Exp (w)}", {})
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(made, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    x, z = numbers(2, 5), numbers(2, 5)
    np.testing.assert_allclose(loaded([x, z])[0], np.exp(x + z), rtol=1e-5)
    for other in (numbers(2, 1), numbers(2, 4), numbers(2, 6)):
        with pytest.raises((RuntimeError, ValueError)):
            loaded([x, other])


@pytest.mark.parametrize(("past", "given"), [(0, 1), (3, 1), (2, 5)])
def test_heads_are_joined_with_samples_where_a_sequence_is_a_sum(past: int, given: int, tmp_path: Path) -> None:
    """``torch.export`` joins samples and heads by a length of -1, over keys of the past and new ones."""
    body = "z = Concat <axis = 2> (p, x) t = Shape <start = 2, end = 3> (z) w = Concat <axis = 0> (rest, eight, t) "
    body += "turned = Transpose <perm = [0, 1, 3, 2]> (z) y = Reshape (turned, w)"
    text = f"(float[B,4,P,8] p, float[B,4,N,8] x) => (float[K,8,T] y) {{{body}}}"
    constants = {"rest": np.array([-1]), "eight": np.array([8])}
    model = parsed_kernel("heads", text, constants)
    assert "//" not in str(lengths_in_and_out(model)[1])
    agrees(KernelCase("heads", text, [numbers(2, 4, past, 8), numbers(2, 4, given, 8)], constants), tmp_path)
