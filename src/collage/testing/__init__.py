"""Helpers for authors of toolchains and tests.

``ToolchainTestCase`` holds the tests that every toolchain inherits. ``FakeToolchain`` misbehaves on request.
``executable_of`` builds an explicit plan. The module ``onnx_suite`` reads ONNX's backend test suite.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "FakeToolchain": "collage.testing._fake_toolchain",
    "MockCostEstimator": "collage.testing._mock_estimator",
    "ToolchainTestCase": "collage.testing._toolchain_case",
    "executable_of": "collage.testing._explicit_plan",
    "with_named_lengths": "collage.testing._named_lengths",
}

__all__ = ["FakeToolchain", "MockCostEstimator", "ToolchainTestCase", "executable_of", "with_named_lengths"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
