"""oneDNN through torch keeps the contract, and its fused operators compute what the single ones do."""

from __future__ import annotations

import pytest

from collage.testing._toolchain_case import ToolchainTestCase
from collage.toolchains.onednn import OneDnnToolchain

pytest.importorskip("torch")


class TestOneDnn(ToolchainTestCase):
    toolchain = OneDnnToolchain()


class TestOneDnnInOneThread(ToolchainTestCase):
    toolchain = OneDnnToolchain()
    target = "llvm -libs=onednn -threads=1"
