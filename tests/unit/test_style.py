"""Rules 1 to 3 of `STYLE.md` for every docstring in `src`, and rules 2 and 3 for every message.

`python tests/unit/test_style.py` prints the breaches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src" / "collage").rglob("*.py"), *(ROOT / "packages").glob("*/src/**/*.py")])

WORDS = "What|Whether|Who|Whom|Why|How|Which|Where|That|Those"
FIRST_WORD = re.compile(rf"\W*({WORDS})\b")
ENTRY = re.compile(rf"^ *(?:(?:Returns|Yields):\n *|\*{{0,2}}\w+: )({WORDS})\b", re.MULTILINE)
"""An entry of Args, Attributes, Returns, Yields or Raises that is not a noun phrase."""
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


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of strings of several words that are not docstrings. Of an f-string, each constant part is one."""
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    told = {(node.lineno, node.value) for node in strings if " " in node.value.strip()}
    yield from sorted(told - set(docstrings(tree)))


def breaches(source: str) -> list[Breach]:
    tree = ast.parse(source)
    documented = list(docstrings(tree))
    found = [Breach(line, 1, first[1]) for line, text in documented if (first := FIRST_WORD.match(text))]
    for line, text in documented:
        for match in ENTRY.finditer(text):
            found.append(Breach(line + text.count("\n", 0, match.start(1)), 1, match[1]))
    for line, text in (*documented, *messages(tree)):
        for rule, pattern in ((2, PERSON), (3, IS_NO)):
            for match in pattern.finditer(text):
                words = " ".join(text[match.start() : match.start() + 30].split())
                found.append(Breach(line + text.count("\n", 0, match.start()), rule, words))
    return sorted(found)


def all_breaches() -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{each.line}: rule {each.rule}: {each.words!r}"
        for path in SOURCES
        for each in breaches(path.read_text())
    ]


def test_docstrings_and_messages_keep_the_rules_that_a_program_can_check() -> None:
    told = all_breaches()
    assert not told, "see STYLE.md:\n" + "\n".join(told)


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('"""What it is."""', [1]),
        ('"""Return what it is."""', []),
        ('"""``Executable``: what ``compile`` returns."""', []),
        ('"""Whatever comes."""', []),
        ('def f():\n    """Whether it is."""', [1]),
        ('async def f():\n    """Those that stay."""', [1]),
        ('class A:\n    """A thing.\n\n    Attributes:\n        target: Who runs it.\n    """', [1, 2]),
        ('class A:\n    """A thing.\n\n    Attributes:\n        target: The target.\n    """', []),
        ('def f():\n    """Return it.\n\n    Args:\n        x: What.\n        **y: Where.\n    """', [1, 1]),
        ('def f():\n    """Return it.\n\n    Returns:\n        How many.\n    """', [1]),
        ('def f():\n    """Return it.\n\n    Raises:\n        ValueError: That is wrong.\n    """', [1]),
        ('def f():\n    """Return it.\n\n    Returns:\n        True if it is known where.\n    """', []),
        ('class A:\n    x: int = 1\n    """How large."""', [1]),
        ('X = 1\n"""Which one is it, and for whom."""', [1, 2]),
        ('"""Nobody asks somebody who knows."""', [2, 2, 2]),
        ('"""Return the whole, whose parts are known."""', []),
        ('"""A file that is no model."""', [3]),
        ('"""Refuse what are\n    no models."""', [3]),
        ('"""There is no model, and there are no files."""', []),
        ('"""A file that is no longer there."""', []),
        ('"""A file that is not a model."""', []),
        ('x = f()\nprint("What is not a docstring")\n# Who cares', []),
        ('def f():\n    return "What is not a docstring"', []),
        ('raise ValueError("this is no number")', [3]),
        ('raise ValueError(f"{x!r} is no number, {y} is")', [3]),
        ('print("nobody asks")', [2]),
        ('x = {"nobody": "who"}', []),
        ('if x:\n    def f():\n        """Why."""', [1]),
    ],
)
def test_breaches_are_found_where_they_are(source: str, rules: list[int]) -> None:
    assert sorted(breach.rule for breach in breaches(source)) == rules


def test_a_breach_is_reported_at_its_line() -> None:
    assert breaches('"""A file.\n\nIt is\nno model."""') == [Breach(3, 3, "is no model.")]


def test_a_breach_of_an_entry_is_reported_at_its_line() -> None:
    source = 'def f():\n    """Return it.\n\n    Args:\n        x: A thing.\n        y: Which thing.\n    """'
    assert breaches(source) == [Breach(6, 1, "Which")]


if __name__ == "__main__":
    print(*all_breaches(), sep="\n")
