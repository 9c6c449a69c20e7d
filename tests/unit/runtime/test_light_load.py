"""What a process holds that only loads an artefact and runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.unit.runtime.conftest import assert_right, small_model

import collage
from collage._errors import ArtefactError
from collage.runtime import _model_check
from collage.testing import executable_of

ABSENT = ("onnx", "onnx_ir", "onnxscript", "rich", "typer", "sqlalchemy", "torch")
HEAVY = ("tvm", "torch", "sympy", "onnx_ir", "onnx", "onnxscript", "openvino", "sqlalchemy", "iree")
TELL = """
import json, sys
import numpy as np
import psutil
session.run(None, {"x": np.ones((3, 6), np.float32)})
print(json.dumps([psutil.Process().memory_info().rss, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
PLAIN = "import sys, onnxruntime; session = onnxruntime.InferenceSession(sys.argv[1] + '/model.onnx')" + TELL
OURS = """
import sys
import collage
exe = collage.load(sys.argv[1] + "/m.collage"{options})
class session:
    run = staticmethod(lambda _, feeds: exe.run(feeds))
"""


@pytest.fixture(autouse=True)
def nothing_was_checked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")


def told(program: str, folder: Path) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    resident_bytes, modules = json.loads(done.stdout)
    return resident_bytes, modules


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    (folder / "model.onnx").write_bytes(small_model().SerializeToString())
    executable_of(small_model(), "onnxruntime").save(folder / "m.collage")
    return folder


@pytest.mark.parametrize("options", ["", ", trusted=True", ", lazy=True"])
def test_one_kernel_of_onnxruntime_needs_little_more_than_onnxruntime(folder: Path, options: str) -> None:
    plain_bytes, _ = told(PLAIN, folder)
    resident_bytes, modules = told(OURS.format(options=options) + TELL, folder)
    assert not set(HEAVY) & set(modules)
    assert resident_bytes < 1.4 * plain_bytes  # 16 MB of 56: NumPy types, argument checks, and Collage itself


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact of three toolchains."""
    pytest.importorskip("tvm")
    folder = tmp_path_factory.mktemp("mixed")
    parts = [([0, 1], "openvino"), ([2], "onnxruntime"), ([3], "llvm")]
    executable_of(small_model(), parts).save(folder / "m.collage")
    return folder


def test_kernels_of_all_toolchains_need_no_compiler_and_no_library_that_reads_models(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(mixed))  # without a linker
    resident_bytes, modules = told(OURS.format(options="") + TELL, mixed)
    assert set(HEAVY) & set(modules) == {"openvino"}
    assert "tvm_ffi" in modules
    assert resident_bytes < 300e6  # Without a torch or a compiler of TVM, which are 250 MB each.


def test_what_must_be_built_again_says_what_is_missing_for_that(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.toolchains.tvm.kernels.shutil.which", lambda name: None)
    assert_right(collage.load(mixed / "m.collage"))
    with pytest.raises(ArtefactError, match=r"to be built again, since .*, and needs tvm, .*: no C\+\+ compiler"):
        collage.load(mixed / "m.collage", rebuild=True)


def test_the_distribution_that_only_runs_has_every_module_that_running_needs(mixed: Path) -> None:
    root = Path(__file__).parents[3]
    listed = tomllib.loads((root / "packaging" / "runtime" / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        package = name if path is None or name in {listed!r} else name.rpartition(".")[0]
        if name.startswith("collage.") and package not in {listed!r} or name in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import collage, numpy as np
exe = collage.load(sys.argv[1] + "/m.collage", trusted=True)
exe.warm_up([np.ones((3, 6), np.float32)])
exe.profile([np.ones((3, 6), np.float32)], runs=1)
from collage.integrations import InferenceSession
InferenceSession(sys.argv[1] + "/m.collage", trusted=True).run(None, {{"x": np.ones((3, 6), np.float32)}})
try:
    collage.compile
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(mixed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "collage-runtime, which only loads and runs" in done.stdout


@pytest.mark.slow
def test_compiling_follows_loading_in_one_process(mixed: Path) -> None:
    program = """
import numpy as np
exe.run({"x": np.ones((3, 6), np.float32)})
print(len(collage.load(sys.argv[1] + "/m.collage", rebuild=True).notes))
"""
    command = [sys.executable, "-c", OURS.format(options="") + program, str(mixed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_models_are_checked_by_another_process_and_here_where_that_tells_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_model_check, "_READER", "a_module_that_nobody_imports")
    monkeypatch.setattr(_model_check, "find_spec", lambda name: object())
    here: list[Path] = []
    monkeypatch.setattr(_model_check, "check_models", here.append)
    assert_right(collage.load(folder / "m.collage"))
    assert not here
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert_right(collage.load(folder / "m.collage"))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert_right(collage.load(folder / "m.collage"))
    assert here == [folder / "m.collage"] * 2


def test_a_bad_model_is_refused_by_the_other_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_model_check, "_READER", "a_module_that_nobody_imports")
    monkeypatch.setattr(_model_check, "find_spec", lambda name: object())
    path = executable_of(small_model(), "onnxruntime").save(folder / "bad.collage")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["outputs"][0]["name"] = "r"
    manifest["outputs"][1]["name"] = "y"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match="other inputs or outputs"):
        collage.load(path)
    collage.load(path, trusted=True)


def test_without_the_libraries_that_read_models_only_trusted_artefacts_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_model_check, "_READER", "a_module_that_nobody_has")
    with pytest.raises(ArtefactError, match="trusted=True"):
        collage.load(folder / "m.collage")
    assert_right(collage.load(folder / "m.collage", trusted=True))
