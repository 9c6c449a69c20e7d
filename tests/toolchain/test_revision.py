"""A toolchain's revision changes with the code that drives it, and with nothing else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib import import_module, invalidate_caches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from collage.toolchains import Registry, _revision, revision_of

SOURCE = "class Mine:\n    pass\n"
OWN = Registry(point for point in entry_points(group="collage.toolchains") if point.module.startswith("collage."))
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


def test_docstrings_comments_and_formatting_do_not_count(tmp_path: Path, made: Made) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        '"""One."""\nLIMIT = 3\n"""A limit."""\n\n\nclass Mine:\n    def run(self):\n        return LIMIT\n'
    )
    first = revision_of(made("mine"))
    file.write_text(
        'LIMIT = (3)  # as before\nclass Mine:\n    """Two."""\n    def run(self):\n        """Three."""\n        return LIMIT\n'
    )
    assert revision_of(made("mine")) == first
    file.write_text("LIMIT = 4\nclass Mine:\n    def run(self):\n        return LIMIT\n")
    assert revision_of(made("mine")) != first


def test_text_that_is_used_counts(tmp_path: Path, made: Made) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{SOURCE}SCHEDULE = 'tiles'\n")
    first = revision_of(made("mine"))
    file.write_text(f"{SOURCE}SCHEDULE = 'loops'\n")
    assert revision_of(made("mine")) != first


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``collage.toolchains`` that may be changed; revisions are those of the copy."""
    copy = tmp_path / "toolchains"
    shutil.copytree(_revision._SHARED_FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    modules = {
        type(toolchain).__module__: Path(sys.modules[type(toolchain).__module__].__file__ or "") for toolchain in OWN
    }
    for name, file in modules.items():
        monkeypatch.setattr(sys.modules[name], "__file__", str(copy / file.relative_to(_revision._SHARED_FOLDER)))
    monkeypatch.setattr(_revision, "_SHARED_FOLDER", copy)
    _revision._digest.cache_clear()
    return copy


def _revisions() -> dict[str, str]:
    _revision._digest.cache_clear()
    return {toolchain.name: revision_of(toolchain) for toolchain in OWN}


@pytest.mark.parametrize(
    ("file", "driven"),
    [
        ("openvino/known_wrong.py", {"openvino"}),
        ("onnxruntime/toolchain.py", {"onnxruntime", "host"}),
        ("tvm/tile_schedules.py", {"tvm"}),
    ],
)
def test_code_of_one_toolchain_is_not_that_of_others(shared: Path, file: str, driven: set[str]) -> None:
    before = _revisions()
    with (shared / file).open("a") as source:
        source.write("\nFASTER = True\n")
    after = _revisions()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == driven


def test_modules_of_another_package_with_toolchains_count_where_they_are_imported(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("first_party", "second_party"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "first_party" / "ops.py").write_text("LIMIT = 3\n")
    (tmp_path / "first_party" / "unused.py").write_text("LIMIT = 3\n")
    (tmp_path / "second_party" / "toolchain.py").write_text(f"from first_party.ops import LIMIT\n{SOURCE}")
    monkeypatch.setattr(_revision, "_packages_beside", lambda: (("first_party", tmp_path / "first_party"),))
    first = revision_of(made("second_party.toolchain"))
    (tmp_path / "first_party" / "unused.py").write_text("LIMIT = 4\n")
    assert first and revision_of(made("second_party.toolchain")) == first
    (tmp_path / "first_party" / "ops.py").write_text("LIMIT = 4\n")
    assert revision_of(made("second_party.toolchain")) != first


def test_a_name_that_the_room_offers_is_code_of_the_module_that_it_comes_from(
    tmp_path: Path, made: Made, shared: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"from collage.toolchains import ToolchainBase\n{SOURCE}")
    first = revision_of(made("mine"))
    for file, counts in (("onnxruntime/toolchain.py", False), ("_base.py", True)):
        with (shared / file).open("a") as source:
            source.write("\nFASTER = True\n")
        assert (revision_of(made("mine")) != first) is counts


@pytest.mark.parametrize("file", ["_contract.py", "_base.py", "sdk/model_files.py"])
def test_what_all_toolchains_use_is_code_of_each(shared: Path, file: str) -> None:
    before = _revisions()
    assert all(before.values())
    with (shared / file).open("a") as source:
        source.write("\nFASTER = True\n")
    after = _revisions()
    assert not {name for name in before if before[name] == after[name]}
