"""The revision of the code that drives a toolchain. Timings with other code say nothing about this one."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from collage.toolchains._contract import Toolchain

__all__ = ["revision_of"]

_DIGITS = 8
_SHARED = "collage.toolchains"
_SHARED_FOLDER = Path(__file__).parent

_AROUND = {_SHARED_FOLDER / name for name in ("_checked_kernel.py", "_index_checks.py")}
"""Modules that stand between every toolchain and its callers."""

_parsing = threading.Lock()
"""Python 3.11 counts the depth of a syntax tree for all threads together, and fails if two make one at a time."""


def revision_of(toolchain: Toolchain) -> str:
    """Return a digest of the source of a toolchain's integration.

    A toolchain's build says which library it is. How it is called, with which schedules and settings, the integration says,
    and a timing depends on both. The source is all modules of the package that the toolchain's class is in (its own module,
    if that is in no package), and all modules of ``collage.toolchains`` that these import, directly or not. Docstrings,
    comments and formatting do not count.

    Returns:
        An empty text if there is no source to be read.
    """
    module = sys.modules.get(type(toolchain).__module__)
    file = getattr(module, "__file__", None)
    return _digest(Path(file), bool(getattr(module, "__package__", None))) if file else ""


@functools.cache
def _digest(file: Path, in_package: bool) -> str:
    digest = hashlib.sha256()
    own = sorted(file.parent.rglob("*.py")) if in_package else [file]
    try:
        for name, source in sorted(_named(own, file.parent) | _named(_shared(own), _SHARED_FOLDER)):
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.sha256(_code(source, source.stat().st_mtime_ns)[0].encode()).digest())
    except (OSError, SyntaxError, ValueError):
        return ""
    return digest.hexdigest()[:_DIGITS] if own else ""


def _named(sources: Iterable[Path], folder: Path) -> set[tuple[str, Path]]:
    return {(source.relative_to(folder).as_posix(), source) for source in sources}


def _shared(sources: Iterable[Path]) -> set[Path]:
    """Modules of ``collage.toolchains`` that ``sources`` import, directly or not, without ``sources`` themselves."""
    seen = set(sources)
    own, open_ = set(seen), [*seen, *_AROUND]
    seen |= _AROUND
    while open_:
        source = open_.pop()
        named = map(_file_of, _code(source, source.stat().st_mtime_ns)[1])
        found = {file for file in named if file is not None} - seen
        seen |= found
        open_ += found
    return seen - own


def _file_of(name: str) -> Path | None:
    """The file of a module of ``collage.toolchains``; None if there is no such module."""
    path = _SHARED_FOLDER.joinpath(*name.removeprefix(_SHARED).split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@functools.cache
def _code(file: Path, changed_ns: int) -> tuple[str, frozenset[str]]:
    """The code of a file without docstrings, and the modules of ``collage.toolchains`` that it may import."""
    with _parsing:
        tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree), frozenset(_imported(tree))


def _is_text(statement: ast.stmt) -> bool:
    """True for docstrings, and for texts below constants."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_shared(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_shared(node.module):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if _file_of(name)}
            yield from modules if modules == inner else {*modules, node.module}


def _is_shared(module: str) -> bool:
    return f"{module}.".startswith(f"{_SHARED}.")
