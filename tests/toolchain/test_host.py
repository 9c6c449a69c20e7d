"""The host takes what nothing else does: views for nothing, the rest by falling back."""

from __future__ import annotations

from collage.testing._toolchain_case import ToolchainTestCase
from collage.toolchains.host import HostToolchain


class TestHost(ToolchainTestCase):
    toolchain = HostToolchain()
