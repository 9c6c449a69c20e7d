"""The first three rules of `docs/style.md`, for every docstring in `src`.

Files that broke them when the rules were written are on a list with their number of breaches. A number may fall and never
rise. `python tests/unit/test_style.py` writes smaller numbers into the list; with `--accept` it writes larger ones too,
which is for merges of text that was moved.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "collage"
ALLOWED = ROOT / "tests" / "data" / "style_allowlist.txt"
HEADER = "# Breaches of docs/style.md, rules 1 to 3, by file. Written by `python tests/unit/test_style.py`.\n"

FIRST_WORD = re.compile(r"\W*(What|Whether|Who|Whom|Why|How|Which|Where|That|Those)\b")
PERSON = re.compile(r"\b(who|whoever|whom|nobody|somebody)\b", re.IGNORECASE)
IS_NO = re.compile(r"(?<!there\s)\b(is|are)\s+no\s(?!longer\b)", re.IGNORECASE)


class Breach(NamedTuple):
    line: int
    rule: int
    words: str


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of docstrings, and of strings below an assignment, which document a constant or a field."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for position, statement in enumerate(body):
            after_assignment = position > 0 and isinstance(body[position - 1], ast.Assign | ast.AnnAssign)
            if not (after_assignment or (documented and position == 0)):
                continue
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def breaches(source: str) -> list[Breach]:
    found = []
    for line, text in docstrings(ast.parse(source)):
        if first := FIRST_WORD.match(text):
            found.append(Breach(line, 1, first[1]))
        for rule, pattern in ((2, PERSON), (3, IS_NO)):
            for match in pattern.finditer(text):
                words = " ".join(text[match.start() : match.start() + 30].split())
                found.append(Breach(line + text.count("\n", 0, match.start()), rule, words))
    return sorted(found)


def breaches_by_file() -> dict[str, list[Breach]]:
    paths = sorted(SOURCES.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): breaches(path.read_text()) for path in paths}


def allowed() -> dict[str, int]:
    lines = [line for line in ALLOWED.read_text().splitlines() if not line.startswith("#")]
    return {path: int(count) for count, path in (line.split(maxsplit=1) for line in lines)}


def complaints(by_file: dict[str, list[Breach]], limits: dict[str, int]) -> list[str]:
    told = []
    for path in sorted({*by_file, *limits}):
        found, limit = by_file.get(path, []), limits.get(path)
        if len(found) > (limit or 0):
            told += [f"{path}:{each.line}: rule {each.rule}: {each.words!r}" for each in found]
            told.append(f"{path}: {len(found)} breaches, {limit or 0} allowed")
        elif limit is not None and not found:
            told.append(f"{path}: no breach is left; take it off {ALLOWED.relative_to(ROOT)}")
    return told


def shrunk(by_file: dict[str, list[Breach]], limits: dict[str, int], accept: bool) -> dict[str, int]:
    counts = {path: len(found) for path, found in by_file.items() if found}
    return counts if accept else {path: min(count, limits[path]) for path, count in counts.items() if path in limits}


def test_docstrings_keep_the_rules_that_a_program_can_check() -> None:
    told = complaints(breaches_by_file(), allowed())
    assert not told, "see docs/style.md:\n" + "\n".join(told)


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('"""What it is."""', [1]),
        ('"""Return what it is."""', []),
        ('"""``Executable``: what ``compile`` returns."""', []),
        ('"""Whatever comes."""', []),
        ('def f():\n    """Whether it is."""', [1]),
        ('async def f():\n    """Those that stay."""', [1]),
        ('class A:\n    """A thing.\n\n    Attributes:\n        target: Who runs it.\n    """', [2]),
        ('class A:\n    x: int = 1\n    """How large."""', [1]),
        ('X = 1\n"""Which one is it, and for whom."""', [1, 2]),
        ('"""Nobody asks somebody who knows."""', [2, 2, 2]),
        ('"""Return the whole, whose parts are known."""', []),
        ('"""A file that is no model."""', [3]),
        ('"""Refuse what are\n    no models."""', [3]),
        ('"""There is no model, and there are no files."""', []),
        ('"""A file that is no longer there."""', []),
        ('"""A file that is not a model."""', []),
        ('x = f()\nprint("What is no docstring")\n# Who cares', []),
        ('def f():\n    return "What is no docstring"', []),
        ('if x:\n    def f():\n        """Why."""', [1]),
    ],
)
def test_breaches_are_found_where_they_are(source: str, rules: list[int]) -> None:
    assert sorted(breach.rule for breach in breaches(source)) == rules


def test_a_breach_is_reported_at_its_line() -> None:
    assert breaches('"""A file.\n\nIt is\nno model."""') == [Breach(3, 3, "is no model.")]


def test_numbers_may_fall_and_never_rise() -> None:
    one = [Breach(1, 1, "What")]
    assert complaints({"a": [], "b": one}, {"b": 1}) == []
    assert complaints({"a": one}, {"a": 2}) == []
    assert complaints({"a": one}, {})[-1] == "a: 1 breaches, 0 allowed"
    assert complaints({"a": [*one, *one]}, {"a": 1})[-1] == "a: 2 breaches, 1 allowed"
    assert "take it off" in complaints({"a": []}, {"a": 1})[0]
    assert "take it off" in complaints({}, {"gone": 1})[0]


def test_the_list_is_rewritten_downwards_unless_told_otherwise() -> None:
    one = [Breach(1, 1, "What")]
    by_file = {"fewer": one, "more": [*one, *one], "new": one, "clean": []}
    limits = {"fewer": 3, "more": 1, "clean": 4, "gone": 1}
    assert shrunk(by_file, limits, accept=False) == {"fewer": 1, "more": 1}
    assert shrunk(by_file, limits, accept=True) == {"fewer": 1, "more": 2, "new": 1}


if __name__ == "__main__":
    listed = shrunk(breaches_by_file(), allowed() if ALLOWED.exists() else {}, "--accept" in sys.argv)
    ALLOWED.write_text(HEADER + "".join(f"{count} {path}\n" for path, count in sorted(listed.items())))
    print(f"{sum(listed.values())} breaches in {len(listed)} files")
