"""TVM's runtime without its compiler: what hides torch, from which thread, and what is said of an installation that is broken."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from collage.toolchains.tvm import runtime_library

pytest.importorskip("tvm_ffi")


def test_torch_is_hidden_from_one_thread_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delitem(sys.modules, "torch")
    finders = list(sys.meta_path)
    with runtime_library._without_torch(), ThreadPoolExecutor(1) as others:
        with pytest.raises(ModuleNotFoundError, match="not needed"):
            find_spec("torch")
        assert find_spec("tvm_ffi") is not None
        assert others.submit(find_spec, "torch").result() is not None
    assert sys.meta_path == finders and find_spec("torch") is not None


def test_an_installation_that_is_broken_or_absent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime_library.loading_availability().available

    monkeypatch.setattr(runtime_library, "import_failure", lambda package, load: "importing it fails")
    found = runtime_library.loading_availability()
    assert not found.available and found.reason == "importing it fails" and "--force-reinstall" in str(found.remedy)

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    assert runtime_library.loading_availability().reason == "not installed"


def test_the_libraries_are_looked_for_where_tvm_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    usual = runtime_library._folders()
    assert [file.name for folder in usual for file in folder.glob("*tvm_runtime.*")]
    monkeypatch.setenv("TVM_LIBRARY_PATH", str(tmp_path))
    assert runtime_library._folders() == [tmp_path, *usual]
