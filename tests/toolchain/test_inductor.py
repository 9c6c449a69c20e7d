"""Inductor keeps the contract; every kernel costs a run of the C++ compiler, so most of it is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage._errors import Unsupported
from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import kernel
from collage.toolchains.inductor import InductorToolchain

pytest.importorskip("torch")

TARGET = Target.parse("llvm -compiler=inductor")


@pytest.mark.slow
class TestInductor(ToolchainTestCase):
    toolchain = InductorToolchain()
    refuses = frozenset({"dynamic_softmax", "dynamic_matmul", "dynamic_elementwise"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[N] x) => (float[N] y) {y = Neg (x)}", "fixed shapes"),
        ("(float[4] x) => (int64[1,K] y) {y = NonZero (x)}", "depend on data"),
        ("(float[4] x, int64[1] s) => (float[2,2] y) {y = Reshape (x, s)}", "depend on data"),
        ("(string[2] x) => (string[2] y) {y = Identity (x)}", "string"),
        ("(float[2] x) => (float[2] y) {y = com.example.Frobnicate (x)}", "Frobnicate"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=reason):
        InductorToolchain().compile(kernel("k", text), TARGET, tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = InductorToolchain().availability()
    assert not found.available and "compiler" in str(found.reason) and found.remedy
