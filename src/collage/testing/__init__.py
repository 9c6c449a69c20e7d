"""What authors of toolchains and tests need: a toolchain that misbehaves on request, and the tests that all inherit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.testing._fake_toolchain import FakeToolchain
    from collage.testing._mock_estimator import MockCostEstimator
    from collage.testing._toolchain_case import ToolchainTestCase

_HOME = {
    "FakeToolchain": "collage.testing._fake_toolchain",
    "MockCostEstimator": "collage.testing._mock_estimator",
    "ToolchainTestCase": "collage.testing._toolchain_case",
}

__all__ = ["FakeToolchain", "MockCostEstimator", "ToolchainTestCase"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
