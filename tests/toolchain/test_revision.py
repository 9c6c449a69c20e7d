"""A toolchain's revision changes with the code that drives it, and with nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

from collage.toolchains import _revision, registry, revision_of

SOURCE = "class Mine:\n    pass\n"
Made = Callable[[str], Any]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Imports a class of these files anew."""
    monkeypatch.syspath_prepend(tmp_path)

    def import_anew(name: str) -> Any:
        for known in [known for known in sys.modules if known.split(".")[0] == name.split(".")[0]]:
            monkeypatch.delitem(sys.modules, known)
        invalidate_caches()
        _revision._digest.cache_clear()
        return import_module(name).Mine()

    return import_anew


def test_it_is_that_of_the_package_that_the_class_is_in(tmp_path: Path, made: Made) -> None:
    package = tmp_path / "of_a_third_party"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "toolchain.py", "inner/__init__.py", "inner/loops.py"):
        (package / name).write_text(SOURCE)
    first = revision_of(made("of_a_third_party.toolchain"))
    assert first and revision_of(made("of_a_third_party.toolchain")) == first
    (package / "notes.txt").write_text("nothing that runs")
    (tmp_path / "elsewhere.py").write_text(SOURCE)
    assert revision_of(made("of_a_third_party.toolchain")) == first
    (package / "inner" / "loops.py").write_text(f"{SOURCE}FASTER = True\n")
    second = revision_of(made("of_a_third_party.toolchain"))
    assert second != first
    (package / "inner" / "loops.py").rename(package / "inner" / "nests.py")
    assert revision_of(made("of_a_third_party.toolchain")) not in (first, second)


def test_it_is_that_of_the_module_where_there_is_no_package(tmp_path: Path, made: Made) -> None:
    (tmp_path / "alone.py").write_text(SOURCE)
    first = revision_of(made("alone"))
    (tmp_path / "beside.py").write_text(SOURCE)
    assert revision_of(made("alone")) == first
    (tmp_path / "alone.py").write_text(f"{SOURCE}FASTER = True\n")
    assert revision_of(made("alone")) != first


def test_there_is_none_without_source() -> None:
    kind = type("Typed", (), {"__module__": "__main__"})
    main = sys.modules["__main__"]
    sys.modules["__main__"] = type(sys)("__main__")
    try:
        assert revision_of(kind()) == ""
    finally:
        sys.modules["__main__"] = main


def test_toolchains_that_come_along_share_one() -> None:
    known = {
        revision_of(toolchain)
        for toolchain in registry()
        if type(toolchain).__module__.startswith("collage.toolchains")
    }
    assert len(known) == 1 and "" not in known
