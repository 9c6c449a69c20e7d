"""Syntax trees of Python sources, made by one thread at a time."""

from __future__ import annotations

import ast
import threading
from typing import Literal

__all__ = ["syntax_tree"]

_making = threading.Lock()


def syntax_tree(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """Return the syntax tree of a source, which is not run.

    Python 3.11 and 3.12 count the depth of a tree for all threads together. If two threads make trees at a time, one may fail
    with a ``SystemError``.

    Raises:
        SyntaxError: The source cannot be read as Python.
        ValueError: The source holds null bytes.
    """
    with _making:
        return ast.parse(source, mode=mode)
