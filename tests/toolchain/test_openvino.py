"""OpenVINO keeps the contract, and refuses what it would compute in another type."""

from __future__ import annotations

from collage.testing._toolchain_case import ToolchainTestCase
from collage.toolchains.openvino import OpenVinoToolchain


class TestOpenVino(ToolchainTestCase):
    toolchain = OpenVinoToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max", "not_finite_softmax"})  # it drops NaN here
