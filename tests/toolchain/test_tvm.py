"""TVM's native code generator keeps the contract."""

from __future__ import annotations

from collage.testing._toolchain_case import ToolchainTestCase
from collage.toolchains.tvm import TvmToolchain


class TestTvm(ToolchainTestCase):
    toolchain = TvmToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max"})  # it drops NaN here
