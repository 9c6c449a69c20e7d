"""Normalisations that TVM's importer writes anew, against the same in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
CHANNELS = 12
WEIGHTS = {
    "scale": np.linspace(-1, 2, CHANNELS, dtype=np.float32),
    "bias": np.linspace(3, -2, CHANNELS, dtype=np.float32),
    "scale4": np.array([1, -2, 0.5, 3], np.float32),
    "bias4": np.array([0, 1, -1, 2], np.float32),
    "grouped": np.array([0, 4, -1]),
    "others": np.array([-1, 4, 3 * 7 * 5]),
    "eye": np.eye(CHANNELS, dtype=np.float32).reshape(CHANNELS, CHANNELS, 1, 1),
    "back": np.array([0, CHANNELS, 7, 5]),
    "elsewhere": np.array([0, CHANNELS, 5, 7]),
}
LENGTHS = ["7,5", "H,W", "1,1", "6", "3,4,5"]
TURNED = "c = Conv ( x , eye ) "
"""A convolution that changes nothing, behind which channels lie last."""


def computed(text: str, x: np.ndarray, folder: Path) -> np.ndarray:
    weights = {
        name: array for name, array in WEIGHTS.items() if name in text.split("{", 1)[1].replace(",", " ").split()
    }
    kernel = parsed_kernel("k", text.replace(" ,", ","), weights)
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(kernel, TARGET, folder), TARGET, folder, LoadOptions(threads=2))
    return np.array(loaded([x])[0])


def expected(x: np.ndarray, groups: int, scale: np.ndarray, bias: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + epsilon)
    of_channels = [np.repeat(p, CHANNELS // len(p)).reshape(1, -1, *[1] * (x.ndim - 2)) for p in (scale, bias)]
    return np.asarray(normal.reshape(x.shape) * of_channels[0] + of_channels[1])


def images(lengths: str, samples: int = 2, seed: int = 0) -> np.ndarray:
    sizes = [{"H": 7, "W": 5}.get(n) or int(n) for n in lengths.split(",")]
    return np.random.default_rng(seed).standard_normal((samples, CHANNELS, *sizes)).astype(np.float32)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("samples", ["2", "N"])
def test_each_channel_of_an_image(lengths: str, samples: str, tmp_path: Path) -> None:
    text = f"(float[{samples},{CHANNELS},{lengths}] x) => (float[{samples},{CHANNELS},{lengths}] y) "
    x = images(lengths)
    first, name = (TURNED, "c") if x.ndim == 4 else ("", "x")
    text += f"{{ {first}y = InstanceNormalization <epsilon = 0.01> ( {name} , scale , bias ) }}"
    wanted = expected(x, CHANNELS, WEIGHTS["scale"], WEIGHTS["bias"], 0.01)
    np.testing.assert_allclose(computed(text, x, tmp_path), wanted, atol=1e-4)


@pytest.mark.parametrize("lengths", LENGTHS[:3])
@pytest.mark.parametrize("groups", [1, 4, CHANNELS])
def test_groups_of_channels(lengths: str, groups: int, tmp_path: Path) -> None:
    shape = f"float[2,{CHANNELS},{lengths}]"
    text = (
        f"({shape} x) => ({shape} y) {{ {TURNED}y = GroupNormalization <num_groups = {groups}> ( c , scale , bias ) }}"
    )
    x = images(lengths)
    wanted = expected(x, groups, WEIGHTS["scale"], WEIGHTS["bias"])
    np.testing.assert_allclose(computed(text, x, tmp_path), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("grouped", "back", "samples"),
    [("grouped", "back", "2"), ("grouped", "back", "N"), ("grouped", "elsewhere", "2"), ("others", "back", "2")],
)
def test_groups_as_a_reshape_to_them_and_back(grouped: str, back: str, samples: str, tmp_path: Path) -> None:
    size = "7,5" if back == "back" else "5,7"
    text = f"(float[{samples},{CHANNELS},7,5] x) => (float[{samples},{CHANNELS},{size}] y) {{ {TURNED}a = Neg ( c ) "
    text += f"g = Reshape ( a , {grouped} ) n = InstanceNormalization ( g , scale4 , bias4 ) "
    text += f"z = Reshape ( n , {back} ) y = Mul ( z , z ) }}"
    x = images("7,5")
    wanted = expected(-x, 4, WEIGHTS["scale4"], WEIGHTS["bias4"]) ** 2
    np.testing.assert_allclose(
        computed(text, x, tmp_path), wanted.reshape(2, CHANNELS, *map(int, size.split(","))), atol=1e-3
    )


def test_samples_that_become_groups_are_normalised_as_they_are_given(tmp_path: Path) -> None:
    text = f"(float[2,{CHANNELS},7,5] x) => (float[6,4,35] y) {{ {TURNED}g = Reshape ( c , split ) "
    text += "y = InstanceNormalization ( g , scale4 , bias4 ) }"
    x = images("7,5")
    kernel = parsed_kernel(
        "k",
        text.replace(" ,", ","),
        {"split": np.array([6, 4, 35]), **{name: WEIGHTS[name] for name in ("scale4", "bias4", "eye")}},
    )
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(kernel, TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads=1))
    wide = x.reshape(6, 4, 35).astype(np.float64)
    wanted = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    wanted = wanted * WEIGHTS["scale4"][:, None] + WEIGHTS["bias4"][:, None]
    np.testing.assert_allclose(loaded([x])[0], wanted, atol=1e-4)


@pytest.mark.parametrize("groups", [CHANNELS, 4])
def test_images_far_from_zero_keep_their_digits(groups: int, tmp_path: Path) -> None:
    shape = f"float[1,{CHANNELS},200,200]"
    text = (
        f"({shape} x) => ({shape} y) {{ {TURNED}y = GroupNormalization <num_groups = {groups}> ( c , scale , bias ) }}"
    )
    x = 100 + np.random.default_rng(0).standard_normal((1, CHANNELS, 200, 200)).astype(np.float32)
    wanted = expected(x, groups, WEIGHTS["scale"], WEIGHTS["bias"])
    np.testing.assert_allclose(computed(text, x, tmp_path), wanted, atol=5e-4)


@pytest.mark.parametrize(("sizes", "whole"), [((2, 4, 105), True), ((2, 5, 84), False), ((2, "G", 35), False)])
def test_images_are_found_behind_a_reshape_to_known_groups(sizes: tuple[int | str, ...], whole: bool) -> None:
    from tvm import relax, tirx

    from collage.toolchains.tvm.normalisations import with_channels

    bb, lengths = relax.BlockBuilder(), [tirx.Var(n, "int64") if isinstance(n, str) else n for n in sizes]
    x = relax.Var("x", relax.TensorType([2, CHANNELS, 7, 5], "float32"))
    with bb.function("main", [x]):
        made = bb.normalize(relax.op.reshape(x, relax.ShapeExpr(lengths)))
        found = with_channels(bb, made)
        bb.emit_func_output(x)
    assert (found is not None and found.same_as(x)) == whole


@pytest.mark.parametrize("square", ["s = Mul (x, x)", "s = Pow (x, two)"])
@pytest.mark.parametrize(("rows", "length"), [("1", 896), ("n,m", 64), ("2,3", 7)])
def test_rows_are_divided_by_the_root_of_the_mean_of_their_squares_in_one_nest(
    square: str, rows: str, length: int, tmp_path: Path
) -> None:
    shape = f"float[{rows},{length}]"
    body = f"{square} m = ReduceMean (s, last) e = Add (m, small) r = Sqrt (e) d = Div (x, r) y = Mul (d, scale)"
    scale = np.linspace(-1, 2, length, dtype=np.float32)
    weights = {"two": np.float32(2), "last": np.array([-1]), "small": np.float32(1e-6), "scale": scale}
    used = {name: np.asarray(x) for name, x in weights.items() if name != "two" or "two" in square}
    kernel = parsed_kernel("k", f"({shape} x) => ({shape} y) {{{body}}}", used)
    toolchain = TvmToolchain()
    made = toolchain.compile(kernel, TARGET, tmp_path)
    loaded = toolchain.load(made, TARGET, tmp_path, LoadOptions(threads=2))
    names = [name for name, _ in made.metadata["calls"]]
    assert len(names) == 1 and "mean_of_squares" in names[0]
    sizes = [{"n": 3, "m": 5}.get(n) or int(n) for n in rows.split(",")]
    x = np.random.default_rng(0).standard_normal((*sizes, length)).astype(np.float32) * 100
    x[..., 0, :] = 0
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(np.array(loaded([x])[0]), wanted, rtol=1e-5, atol=1e-6)


def test_means_of_squares_along_other_axes_are_as_before(tmp_path: Path) -> None:
    body = "s = Mul (x, x) y = ReduceMean <keepdims = 0> (s, axes)"
    kernel = parsed_kernel("k", f"(float[2,5,8] x) => (float[2] y) {{{body}}}", {"axes": np.array([1, 2])})
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(kernel, TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads=2))
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(np.array(loaded([x])[0]), (x**2).mean((1, 2)), rtol=1e-5)
