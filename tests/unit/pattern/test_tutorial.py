"""The tutorial's examples run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

TUTORIAL = Path(__file__).parents[3] / "docs" / "patterns.md"


def test_tutorial() -> None:
    result = doctest.testfile(str(TUTORIAL), module_relative=False, encoding="utf-8")
    assert result.attempted > 20
    assert result.failed == 0
