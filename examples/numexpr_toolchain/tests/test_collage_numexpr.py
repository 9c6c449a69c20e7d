"""NumExpr keeps the contract, and is right about what it takes."""

from __future__ import annotations

import pytest

from collage.testing import ToolchainTestCase

pytest.importorskip("numexpr")
from collage_numexpr import NumexprToolchain


class TestNumexpr(ToolchainTestCase):
    toolchain = NumexprToolchain()
    takes = frozenset({"elementwise", "dynamic_elementwise"})
