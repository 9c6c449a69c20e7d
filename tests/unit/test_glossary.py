"""The glossary names things that exist, each once."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
ROWS = [re.split(r"\s*\|\s*", line.strip("| ")) for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]


def test_every_term_has_one_row() -> None:
    terms = [term for term, _, _ in ROWS]
    assert len(terms) >= 20 and len(set(terms)) == len(terms)


@pytest.mark.parametrize(("term", "name"), [(term, name.strip("`")) for term, _, name in ROWS])
def test_what_a_term_names_exists(term: str, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute), f"{term}: {name}"
