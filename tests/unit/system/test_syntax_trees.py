"""Syntax trees of Python sources."""

from __future__ import annotations

import ast
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collage.system.syntax_trees import syntax_tree


class Cycle:
    """An object that only the garbage collector ends, and whose end lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum(range(100))


def test_threads_that_make_trees_at_a_time_do_not_fail() -> None:
    sources = [file.read_bytes() for file in sorted(Path(ast.__file__).parent.glob("a*.py"))]

    def make(_: int) -> int:
        return sum(isinstance((syntax_tree(source), Cycle())[0], ast.Module) for source in sources)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(make, range(12)))
    finally:
        sys.setswitchinterval(before)
    assert made == [len(sources)] * 12


def test_an_expression_is_a_tree_too() -> None:
    tree = syntax_tree("a + 1", "eval")
    assert isinstance(tree, ast.Expression) and isinstance(tree.body, ast.BinOp)


@pytest.mark.parametrize("source", ["a +", b"\xff", "a\0b"])
def test_what_is_no_python_is_refused(source: str | bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        syntax_tree(source)
