"""Inductor keeps the contract; every kernel costs a run of the C++ compiler, so most of it is slow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import SYMBOLIC, kernel
from collage.toolchains import LoadOptions, Unsupported
from collage_torch.inductor.compiler import hide_folders
from collage_torch.inductor.toolchain import InductorToolchain

torch = pytest.importorskip("torch")

TARGET = Target.parse("llvm -compiler=inductor")


@pytest.mark.slow
class TestInductor(ToolchainTestCase):
    toolchain = InductorToolchain()
    refuses = SYMBOLIC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[N] x) => (float[N] y) {y = Neg (x)}", "fixed shapes"),
        ("() => (float[2] y) {y = Constant <value_floats = [1.0, 2.0]> ()}", "reads no input"),
        ("(float[4] x) => (int64[1,K] y) {y = NonZero (x)}", "depend on data"),
        ("(float[4] x, int64[1] s) => (float[2,2] y) {y = Reshape (x, s)}", "depend on the values of inputs"),
        ("(string[2] x) => (string[2] y) {y = Identity (x)}", "string"),
        ("(float[2] x) => (float[2] y) {y = com.example.Frobnicate (x)}", "Frobnicate"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=reason):
        InductorToolchain().compile(kernel("k", text), TARGET, tmp_path)
    assert not list(tmp_path.iterdir())


def test_names_of_folders_are_overwritten_in_place(tmp_path: Path) -> None:
    library, link = tmp_path / "kernel.so", tmp_path / "link"
    (tmp_path / "sources").mkdir()
    link.symlink_to(tmp_path / "sources")
    real = str(tmp_path / "sources")
    content = f"\0{link}/a.cpp\0{real}/b.h\0{real}{real}\0other/sources\0".encode() * 2
    library.write_bytes(content)
    hide_folders(library, link)
    hidden = (
        f"\0{'.' * len(str(link))}/a.cpp\0{'.' * len(real)}/b.h\0{'.' * 2 * len(real)}\0other/sources\0".encode() * 2
    )
    assert library.read_bytes() == hidden


LSTM = """(float[{shape}] x, float[1,12,2] w, float[1,12,3] r) => (float[A,B,C,D] y)
    {{y = LSTM <hidden_size = 3, layout = {layout}> (x, w, r)}}"""


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (LSTM.format(shape="8,9,2", layout=0), True),
        (LSTM.format(shape="9,1,2", layout=0), False),
        (LSTM.format(shape="9,8,2", layout=1), True),
        (LSTM.format(shape="N,1,2", layout=0), False),
        ("(float[2,3] x) => (float[1,3] y) {y = Compress <axis = 0> (x, chosen)}", True),
        ("(float[2,3] x, bool[2] given) => (float[K,3] y) {y = Compress <axis = 0> (x, given)}", False),
    ],
)
def test_takes_what_is_short_and_of_known_shape(text: str, taken: bool) -> None:
    (node,) = kernel("k", text, {"chosen": np.array([False, True])} if "chosen" in text else {}).graph
    assert InductorToolchain().supports(node, TARGET).ok == taken


@pytest.mark.slow
def test_operators_without_a_c_interface_are_called_by_name(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32)
    toolchain = InductorToolchain()
    compiled = toolchain.compile(kernel("k", "(float[4,3,3] x) => (float[4] y) {y = Det (x)}"), TARGET, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(compiled.files)
    for place in (tmp_path, Path(torch.__file__).parents[1]):
        assert not [name for name in compiled.files if str(place).encode() in (tmp_path / name).read_bytes()]
    (y,) = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())([x])
    np.testing.assert_allclose(y, np.linalg.det(x), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_short_recurrences_are_onnxruntimes(op_type: str, direction: str, tmp_path: Path) -> None:
    ways, gates, random = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3}[op_type], np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((ways, gates * 3, 2)).astype(np.float32),
        "r": random.standard_normal((ways, gates * 3, 3)).astype(np.float32),
    }
    text = f"""(float[5,2,2] x) => (float[5,{ways},2,3] y)
        {{y = {op_type} <hidden_size = 3, direction = "{direction}"> (x, w, r)}}"""
    model, x = kernel("k", text, weights), random.standard_normal((5, 2, 2)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": x})
    toolchain = InductorToolchain()
    got = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["MatMul (x, w)", "Gemm <alpha = 0.5> (x, w, b)"])
def test_halves_are_multiplied_by_constants_as_singles(call: str, tmp_path: Path) -> None:
    x, w, b = (
        np.random.default_rng(i).standard_normal(s).astype("e") for i, s in enumerate(((4, 256), (256, 8), (8,)))
    )
    weights = {"w": w} | ({"b": b} if "b)" in call else {})
    model = kernel("k", f"(float16[4,256] x) => (float16[4,8] y) {{y = {call}}}", weights)
    toolchain = InductorToolchain()
    (got,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    exact = x.astype("f") @ w.astype("f")
    wanted = 0.5 * exact + b.astype("f") if "b)" in call else exact
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, wanted.astype("e"), rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("zeros", ["", ", z", ", z, v"])
def test_bytes_are_multiplied_by_constants_exactly(zeros: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {"w": random.integers(-128, 127, (400, 3)).astype(np.int8)}
    weights |= {"z": np.array(3, np.uint8)} if zeros else {}
    weights |= {"v": np.array([-9], np.int8)} if "v" in zeros else {}
    model = kernel("k", f"(uint8[2,5,400] x) => (int32[2,5,3] y) {{y = MatMulInteger (x, w{zeros})}}", weights)
    x, toolchain = random.integers(0, 255, (2, 5, 400)).astype(np.uint8), InductorToolchain()
    (got,) = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())([x])
    first, last = (int(weights[name].reshape(-1)[0]) if name in weights else 0 for name in "zv")
    np.testing.assert_array_equal(got, (x.astype(int) - first) @ (weights["w"].astype(int) - last))
    assert got.dtype == np.int32


GROUPS = {
    "attention": (
        "(float[2,3,5,8] q, float[2,3,7,8] k, float[2,3,7,4] v) => (float[2,3,5,4] y)",
        "t = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, t) p = Softmax (s) y = MatMul (p, v)",
        [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)],
    ),
    "norm of groups": (
        "(float[2,6,5,4] x) => (float[2,6,5,4] y)",
        """a = Relu (x) g = Reshape (a, three) n = InstanceNormalization (g, s, b) z = Reshape (n, back)
            m = Mul (z, w) y = Add (m, w)""",
        [(2, 6, 5, 4)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GROUPS))
def test_groups_of_operators_that_are_one_call_are_right(name: str, tmp_path: Path) -> None:
    ports, body, shapes = GROUPS[name]
    random = np.random.default_rng(0)
    weights = (
        {}
        if name == "attention"
        else {
            "three": np.array([0, 3, -1]),
            "back": np.array([2, 6, 5, 4]),
            "s": random.standard_normal(3).astype("f"),
            "b": random.standard_normal(3).astype("f"),
            "w": random.standard_normal((6, 1, 1)).astype("f"),
        }
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(kernel("k", f"{ports} {{{body}}}", weights))))
    inputs = {v.name: random.standard_normal(s).astype("f") for v, s in zip(model.graph.inputs, shapes, strict=True)}
    wanted = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, inputs)
    toolchain = InductorToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    np.testing.assert_allclose(loaded(list(inputs.values()))[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = InductorToolchain().availability()
    assert not found.available and "compiler" in str(found.reason) and found.remedy
