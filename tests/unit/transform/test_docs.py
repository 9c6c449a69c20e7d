"""The documentation's examples run as they stand, and its table is that of the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from tests.unit.transform.graphs import generic_passes

from collage.transform import get_pass

PAGE = Path(__file__).parents[3] / "docs" / "passes.md"


def test_examples() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert result.attempted > 40
    assert result.failed == 0


def test_the_table_of_levels() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d) \|", PAGE.read_text(), re.MULTILINE))
    shipped = {*generic_passes(), "PrintIR"}
    assert {name: int(level) for name, level in rows.items()} == {n: get_pass(n).info.opt_level for n in shipped}
