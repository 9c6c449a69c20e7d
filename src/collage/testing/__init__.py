"""Helpers for authors of toolchains and tests.

``ToolchainTestCase`` holds the tests that every toolchain inherits. ``FakeToolchain`` misbehaves on request.
``executable_of`` builds an explicit plan. The module ``onnx_suite`` reads ONNX's backend test suite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.testing._explicit_plan import executable_of
    from collage.testing._fake_toolchain import FakeToolchain
    from collage.testing._mock_estimator import MockCostEstimator
    from collage.testing._named_lengths import with_named_lengths
    from collage.testing._toolchain_case import ToolchainTestCase
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.testing._fake_toolchain": "FakeToolchain",
            "collage.testing._mock_estimator": "MockCostEstimator",
            "collage.testing._toolchain_case": "ToolchainTestCase",
            "collage.testing._explicit_plan": "executable_of",
            "collage.testing._named_lengths": "with_named_lengths",
        },
    )


__all__ = ["FakeToolchain", "MockCostEstimator", "ToolchainTestCase", "executable_of", "with_named_lengths"]
