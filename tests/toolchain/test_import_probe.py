"""A package that is absent, raises, crashes or hangs makes its toolchain unavailable, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import COMMON
from collage.toolchains import LoadOptions, Toolchain
from collage.toolchains.host.toolchain import HostToolchain
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.openvino.toolchain import OpenVinoToolchain
from collage.toolchains.sdk import import_probe
from collage.toolchains.sdk.import_probe import import_failure, importing_here
from collage.toolchains.tvm.toolchain import TvmToolchain

IMPORTED: list[tuple[Toolchain, str]] = [
    (OnnxRuntimeToolchain(), "onnxruntime"),
    (OpenVinoToolchain(), "openvino"),
    (TvmToolchain(), "tvm"),
]
BROKEN = {
    "raises": ("raise OSError('libfoo.so: no such file')", "libfoo.so: no such file"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "leaves": ("import os; os._exit(3)", "fails"),
    "hangs": ("import time; time.sleep(600)", "takes more than"),
}
ODD = {
    "floods": (
        "import os\nfor _ in range(2_000): os.write(2, b'noise ' * 10_000)\nraise OSError('no room')",
        "no room",
    ),
    "closes": ("import os; os.close(2); os._exit(3)", "fails"),
    "leaves children": (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])\nraise OSError('bereft')",
        "bereft",
    ),
}


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_probe, "_failures", {})


def break_package(name: str, how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts a broken package before the real one; what is to be said of it."""
    program, said = BROKEN[how]
    if how == "hangs":
        monkeypatch.setattr(import_probe, "IMPORT_S", 1.0)
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(program)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return said


def test_what_can_be_imported_is_fine() -> None:
    assert import_failure("json") is None
    assert import_failure("wave") is None  # imported by nobody yet


def test_what_is_not_there_or_only_a_folder_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert import_failure("only_a_folder") == import_failure("never_heard_of") == "not installed"


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(("toolchain", "package"), IMPORTED, ids=[toolchain.name for toolchain, _ in IMPORTED])
def test_a_broken_package_is_not_usable(
    toolchain: Toolchain, package: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    said = break_package(package, how, tmp_path, monkeypatch)
    found = toolchain.availability()
    assert not found.available and said in str(found.reason) and package in str(found.remedy)
    assert "\n" not in str(found.reason)


def test_the_host_goes_on_without_its_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_package("onnxruntime", "hangs", tmp_path, monkeypatch)
    host, target = HostToolchain(), Target.parse("llvm -compiler=host")
    case = next(case for case in COMMON if case.name == "matmul")
    assert host.availability().available
    compiled = host.compile(case.model(), target, tmp_path)
    (y,) = host.load(compiled, target, tmp_path, LoadOptions())(case.inputs)
    np.testing.assert_allclose(y, case.inputs[0] @ case.weights["w"] + case.weights["b"], rtol=1e-4, atol=1e-4)


def test_who_imports_it_next_imports_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counted.py").write_text(
        "import pathlib; pathlib.Path(__file__).with_suffix('.log').open('a').write('x')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with importing_here():
        assert import_failure("counted") is None
    assert "counted" in sys.modules and (tmp_path / "counted.log").read_text() == "x"


def test_what_raises_here_is_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising.py").write_text("raise OSError('no such library')")
    monkeypatch.syspath_prepend(tmp_path)
    with importing_here():
        assert "no such library" in str(import_failure("raising"))


@pytest.mark.parametrize("how", ODD)
def test_what_a_package_says_is_heard_to_the_end_and_no_longer(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, said = ODD[how]
    (tmp_path / "odd.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    assert said in str(import_failure("odd"))


def test_packages_are_imported_side_by_side_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until the other has begun: one after the other, neither could be imported."""
    for name, other in (("castor", "pollux"), ("pollux", "castor")):
        (tmp_path / f"{name}.py").write_text(
            "import pathlib, time\n"
            "here = pathlib.Path(__file__)\n"
            "here.with_suffix('.log').open('a').write('x')\n"
            f"while not here.with_name('{other}.log').exists(): time.sleep(0.01)\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor() as threads:
        assert set(threads.map(import_failure, ["castor", "pollux"] * 2)) == {None}
    assert [(tmp_path / f"{name}.log").read_text() for name in ("castor", "pollux")] == ["x", "x"]


def test_an_import_that_hangs_ends_with_who_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import os, pathlib, time\n"
        "here = pathlib.Path(__file__)\n"
        "here.with_suffix('.new').write_text(str(os.getpid()))\n"
        "here.with_suffix('.new').rename(here.with_suffix('.pid'))\n"
        "time.sleep(600)\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from collage.toolchains.sdk.import_probe import import_failure; import_failure('hanging')"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as waiting:
        while not (tmp_path / "hanging.pid").exists():
            assert waiting.poll() is None
            time.sleep(0.01)
        hanging = psutil.Process(int((tmp_path / "hanging.pid").read_text()))
        waiting.kill()
    try:
        hanging.wait(timeout=120)
    except psutil.TimeoutExpired:
        hanging.kill()
        raise
