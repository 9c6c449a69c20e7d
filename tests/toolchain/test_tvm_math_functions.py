"""Elementary functions that TVM computes by arithmetic: as exact as the C library's, and the same beyond the numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import KernelCase
from collage.toolchains import LoadOptions
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
FUNCTIONS = {
    "Cos": np.cos,
    "Erf": np.vectorize(math.erf, otypes=[np.float64]),
    "Exp": np.exp,
    "Log": np.log,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sin": np.sin,
    "Tanh": np.tanh,
}
UNITS = {"Cos": 2, "Erf": 3, "Exp": 2, "Log": 2, "Sigmoid": 4, "Sin": 2, "Tanh": 4}
"""Units in the last place by which each may be wrong."""
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def computed(operator: str, x: np.ndarray, folder: Path, *, lengths: str | None = None) -> np.ndarray:
    """What a kernel of one operator makes of ``x``, whose lengths may be named."""
    declared = lengths or ",".join(map(str, x.shape))
    case = KernelCase("one", f"(float[{declared}] x) => (float[{declared}] y) {{y = {operator} (x)}}", [x])
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(case.model(), TARGET, folder), TARGET, folder, LoadOptions())
    (y,) = loaded([x])
    return np.array(y)


def run_one(operator: str, dtype: str, x: np.ndarray, folder: Path) -> np.ndarray:
    """What a kernel of one operator makes of numbers of an element type."""
    case = KernelCase("one", f"({dtype}[{x.size}] x) => ({dtype}[{x.size}] y) {{y = {operator} (x)}}", [x])
    toolchain = TvmToolchain()
    (y,) = toolchain.load(toolchain.compile(case.model(), TARGET, folder), TARGET, folder, LoadOptions())([x])
    return np.array(y)


def units_off(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How far single-precision numbers are from exact ones, in units in the last place of these."""
    return np.abs(y.astype(np.float64) - exact) / np.spacing(np.maximum(np.abs(exact), SMALLEST).astype(np.float32))


def numbers_of_all_sizes(operator: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(low, high, 20_000) for low, high in ((-1, 1), (-6, 6), (-87, 87))])
    small = 2.0 ** rng.uniform(-126, 0, 4_000) * rng.choice([-1, 1], 4_000)
    x = np.concatenate([x, small]).astype(np.float32)
    return (
        np.concatenate([np.abs(x) + SMALLEST, np.float32(2.0) ** rng.uniform(-126, 127, 16_000)])
        if operator == "Log"
        else x
    )


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_each_is_right_to_the_last_digits(operator: str, tmp_path: Path) -> None:
    x = numbers_of_all_sizes(operator).astype(np.float32)
    with np.errstate(over="ignore"):
        exact = FUNCTIONS[operator](x.astype(np.float64))
    assert units_off(computed(operator, x, tmp_path), exact).max() <= UNITS[operator]


SPECIAL = np.float32(
    [0.0, -0.0, np.inf, -np.inf, np.nan, LARGEST, -LARGEST, 1e-45, -1e-45, 1e-40, 120, -120, 88.8, -103.9]
)


@pytest.mark.parametrize("operator", FUNCTIONS)
@pytest.mark.parametrize("lengths", [None, "N"], ids=["vectors", "no_vectors"])
def test_each_is_what_it_should_be_beyond_ordinary_numbers(operator: str, lengths: str | None, tmp_path: Path) -> None:
    x = np.tile(SPECIAL, 16)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[operator](x.astype(np.float64)).astype(np.float32)
    y = computed(operator, x, tmp_path, lengths=lengths)
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=SMALLEST)
    if operator in ("Erf", "Sin", "Tanh"):
        number = ~np.isnan(exact)
        np.testing.assert_array_equal(np.signbit(y)[number], np.signbit(exact)[number])


@pytest.mark.parametrize("operator", ["Sin", "Cos"])
def test_angles_of_many_turns(operator: str, tmp_path: Path) -> None:
    """Beside larger ones, and near whole turns, where most digits of an angle are turns."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-size, size, 4_000) for size in (1e3, 1e6, 2e6, 1e9, 1e30)])
    x = np.concatenate([x, np.arange(-4_000, 4_000) * (np.pi / 2), rng.permutation(x)]).astype(np.float32)
    exact = FUNCTIONS[operator](x.astype(np.float64))
    assert units_off(computed(operator, x, tmp_path), exact).max() <= UNITS[operator]


def test_no_function_of_the_library_is_left_in_the_loops() -> None:
    import tvm
    import tvm_ffi
    from tvm import ir, te, tirx

    from collage.toolchains.tvm.math_functions import as_arithmetic

    x = te.placeholder((64,), "float32", "x")
    doubles = te.placeholder((64,), "float64", "doubles")
    functions = (tirx.erf, tirx.exp, tirx.log, tirx.sigmoid, tirx.tanh)
    y = te.compute((64,), lambda i: sum((f(f(x[i])) for f in functions), tirx.const(0.0, "float32")), "y")
    z = te.compute((64,), lambda i: tirx.exp(doubles[i]), "z")
    module = as_arithmetic()(tvm.IRModule({"main": te.create_prim_func([x, doubles, y, z])}))
    names: list[str] = []
    tvm_ffi.structural_walk(module["main"].body, (ir.Call, lambda call: names.append(call.op.name)))
    left = {name.removeprefix("tirx.") for name in names} & {"erf", "exp", "log", "sigmoid", "tanh"}
    assert left == {"exp"}  # that of doubles
    assert sum(name == "tirx.exp" for name in names) == 1


CHAIN = ("Erf", "Exp", "Log", "Tanh", "Sin", "Softplus", "Sigmoid", "Cos", "Tanh", "Erf")


@pytest.mark.parametrize(("kind", "lengths"), [("float", "5,48"), ("float", "N,7"), ("double", "5,48")])
@pytest.mark.parametrize("is_padded", [False, True])
def test_functions_in_each_other(kind: str, lengths: str, is_padded: bool, tmp_path: Path) -> None:
    """The generated code of such a chain took minutes. What is padded is computed under a condition."""
    element = np.float32 if kind == "float" else np.float64
    x = np.random.default_rng(0).standard_normal((5, int(lengths.partition(",")[2]))).astype(element)
    names = ["x", *(f"v{i}" for i in range(len(CHAIN)))]
    steps = "".join(f"{names[i + 1]} = {operator} ({names[i]}) " for i, operator in enumerate(CHAIN))
    value = f"v{len(CHAIN) - 1}"
    last = f"Pad ({value}, pads)" if is_padded else f"Identity ({value})"
    made = ",".join(map(str, (7, x.shape[1]) if is_padded and "N" not in lengths else lengths.split(",")))
    text = f"({kind}[{lengths}] x) => ({kind}[{made.replace('N', 'M' if is_padded else 'N')}] y) {{{steps} y = {last}}}"
    case = KernelCase("one", text, [x], {"pads": np.array([1, 0, 1, 0], np.int64)} if is_padded else {})
    toolchain = TvmToolchain()
    compiled = toolchain.compile(case.model(), TARGET, tmp_path)
    (y,) = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())([x])
    exact = x.astype(np.float64)
    for operator in CHAIN:
        exact = {**FUNCTIONS, "Softplus": lambda v: np.log1p(np.exp(v))}[operator](exact)
    expected = np.pad(exact, ((1, 1), (0, 0))) if is_padded else exact
    np.testing.assert_allclose(
        y, expected, rtol=2e-6 if kind == "float" else 1e-14, atol=1e-7 if kind == "float" else 0
    )


@pytest.mark.parametrize(("operator", "dtype"), [("Tanh", "double"), ("Atanh", "double"), ("Atanh", "float")])
def test_no_digits_are_lost_near_nought_and_one(operator: str, dtype: str, tmp_path: Path) -> None:
    made = np.float32 if dtype == "float" else np.float64
    rng = np.random.default_rng(0)
    small = 10.0 ** rng.uniform(-37 if dtype == "float" else -300, 0, 4_000) * rng.choice([-1, 1], 4_000)
    x = np.concatenate([small, rng.uniform(-1, 1, 4_000), [0.0, -0.0, 1 - 2.0**-20, 2.0**-20 - 1]])
    x = np.concatenate([x, 20 * x] if operator == "Tanh" else [x]).astype(made)
    exact = (np.tanh if operator == "Tanh" else np.arctanh)(x.astype(np.longdouble))
    y = run_one(operator, dtype, x, tmp_path)
    np.testing.assert_allclose(y, exact.astype(made), rtol=8 * float(np.finfo(made).eps), atol=0)
    assert (np.signbit(y) == np.signbit(x)).all()


@pytest.mark.parametrize(("operator", "dtype"), [("Tanh", "double"), ("Atanh", "double"), ("Atanh", "float")])
def test_ends_of_their_ranges(operator: str, dtype: str, tmp_path: Path) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 1e30], np.float32 if dtype == "float" else np.float64)
    with np.errstate(all="ignore"):
        exact = (np.tanh if operator == "Tanh" else np.arctanh)(x)
    np.testing.assert_allclose(run_one(operator, dtype, x, tmp_path), exact, rtol=1e-6 if dtype == "float" else 1e-15)
