"""What authors of toolchains and tests need: a toolchain that misbehaves on request, and the tests that all inherit."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "FakeToolchain": "collage.testing._fake_toolchain",
    "MockCostEstimator": "collage.testing._mock_estimator",
    "ToolchainTestCase": "collage.testing._toolchain_case",
}

__all__ = ["FakeToolchain", "MockCostEstimator", "ToolchainTestCase"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
