"""The revision of the code that drives a toolchain. Timings with other code say nothing about this one."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from collage.system.syntax_trees import syntax_tree
from collage.toolchains._contract import Toolchain

__all__ = ["GROUP", "revision_of"]

GROUP = "collage.toolchains"
"""The entry-point group: name of the toolchain = ``module:Class``."""

_DIGITS = 8
_SHARED = "collage.toolchains"
_SHARED_FOLDER = Path(__file__).parent

_AROUND = ("_checked_kernel.py", "_index_checks.py", "_index_uses.py")
"""Modules that stand between every toolchain and its callers."""


def revision_of(toolchain: Toolchain) -> str:
    """Return a digest of the source of a toolchain's integration.

    A toolchain's build says which library it is. How it is called, with which schedules and settings, the integration says,
    and a timing depends on both. The source is all modules of the package that the toolchain's class is in (its own module,
    if that is in no package), and all modules that these import, directly or not, of ``collage.toolchains`` and of other
    packages that bring toolchains. Docstrings, comments and formatting do not count.

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
        for name, source in sorted(_named(own, file.parent) | _named(_shared(own), None)):
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.sha256(_code(source, source.stat().st_mtime_ns)[0].encode()).digest())
    except (OSError, SyntaxError, ValueError):
        return ""
    return digest.hexdigest()[:_DIGITS] if own else ""


def _named(sources: Iterable[Path], folder: Path | None) -> set[tuple[str, Path]]:
    """Names of files within a folder, or within the package that they belong to."""
    return {(source.relative_to(folder or _root_of(source)).as_posix(), source) for source in sources}


def _shared(sources: Iterable[Path]) -> set[Path]:
    """Modules of packages with toolchains that ``sources`` import, directly or not, without ``sources`` themselves."""
    seen = set(sources)
    own, around = set(seen), {_SHARED_FOLDER / name for name in _AROUND}
    open_ = [*seen, *around]
    seen |= around
    while open_:
        source = open_.pop()
        named = map(_file_of, _code(source, source.stat().st_mtime_ns)[1])
        found = {file for file in named if file is not None} - seen
        seen |= found
        open_ += found
    return seen - own


def _file_of(name: str) -> Path | None:
    """The file of a module of a package with toolchains; None if there is no such module."""
    package, folder = next(((p, f) for p, f in _packages() if _is_in(name, p)), ("", None))
    if folder is None:
        return None
    path = folder.joinpath(*name.removeprefix(package).split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _root_of(file: Path) -> Path:
    """The folder that holds the package of a file."""
    return next(folder.parent for _, folder in _packages() if folder in file.parents)


def _packages() -> Sequence[tuple[str, Path]]:
    return ((_SHARED, _SHARED_FOLDER), *_packages_beside())


@functools.cache
def _packages_beside() -> Sequence[tuple[str, Path]]:
    """Names and folders of the packages outside this one that bring toolchains. None of them is imported."""
    names = {point.module.partition(".")[0] for point in entry_points(group=GROUP)} - {_SHARED.partition(".")[0]}
    specs = ((name, importlib.util.find_spec(name)) for name in sorted(names))
    found = [(name, list(spec.submodule_search_locations or ())) for name, spec in specs if spec is not None]
    return tuple((name, Path(folders[0])) for name, folders in found if folders)


@functools.cache
def _code(file: Path, changed_ns: int) -> tuple[str, frozenset[str]]:
    """The code of a file without docstrings, and the modules of packages with toolchains that it may import."""
    tree = syntax_tree(file.read_bytes())
    for node in _statements(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree), frozenset(_imported(tree))


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A module and all its statements, without their expressions, which are most of a tree."""
    open_ = [tree]
    while open_:
        node = open_.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            open_ += getattr(node, field, ())


def _is_text(statement: ast.stmt) -> bool:
    """True for docstrings, and for texts below constants."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_shared(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_shared(node.module):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if _file_of(inner) else _offered().get(inner, node.module)


@functools.cache
def _offered() -> Mapping[str, str]:
    """The module of each name that ``collage.toolchains`` offers: using one of them is not using all of them."""
    tree = syntax_tree((_SHARED_FOLDER / "__init__.py").read_bytes())
    imports = (node for node in _statements(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {f"{_SHARED}.{alias.name}": str(node.module) for node in imports for alias in node.names}


def _is_shared(module: str) -> bool:
    return any(_is_in(module, package) for package, _ in _packages())


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
