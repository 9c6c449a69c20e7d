"""Loading and running where Linux's own is missing: other systems, full and read-only disks, no home, odd locales.

What is missing elsewhere is hidden here, in processes of their own. No test on Linux can show more than that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.unit.runtime.conftest import expected, small_model

from collage.testing import executable_of

RUN = """
import sys
import numpy as np
import collage
folder = sys.argv[1]
exe = collage.load(folder + "/m.collage", trusted={trusted})
data = np.load(folder + "/data.npz")
for _ in range(2):
    np.testing.assert_allclose(exe.run({{"x": data["x"]}})["y"], data["y"], rtol=1e-4, atol=1e-6)
exe.warm_up([data["x"]])
print("ran", exe.notes)
"""

HIDE = """
import builtins, ctypes, os, pathlib, sys
import types
import psutil  # Its build for Linux needs what is hidden, and those for other systems do not.

psutil.cpu_count = lambda logical=True: os.cpu_count()
psutil.virtual_memory = lambda: types.SimpleNamespace(total=1 << 33)

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
for name in {modules!r}:
    sys.modules.pop(name, None)
for name in {attributes!r}:
    if hasattr(os, name):
        delattr(os, name)

def without_proc(function):
    def call(path, *rest, **options):
        if str(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *rest, **options)
    return call

builtins.open = without_proc(builtins.open)
for name in ("open", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir"):
    setattr(pathlib.Path, name, without_proc(getattr(pathlib.Path, name)))
there = pathlib.Path.exists
pathlib.Path.exists = lambda path, **options: not str(path).startswith(("/proc", "/sys/")) and there(path, **options)
if {no_libc}:
    class CDLL(ctypes.CDLL):
        def __init__(self, name, *rest, **options):
            if name is None:
                raise TypeError("bad argument type for built-in operation")
            super().__init__(name, *rest, **options)
    class PyDLL(ctypes.PyDLL):
        def __init__(self, name, *rest, **options):
            if name is None:
                raise TypeError("bad argument type for built-in operation")
            super().__init__(name, *rest, **options)
    ctypes.CDLL, ctypes.PyDLL = CDLL, PyDLL
"""

LINUX_ONLY = ("sched_getaffinity", "sched_setaffinity", "posix_fadvise")
SYSTEMS = {
    "macOS": HIDE.format(modules=(), attributes=LINUX_ONLY, no_libc=False),
    "Windows": HIDE.format(
        modules=("fcntl", "resource", "pwd", "grp", "termios"),
        attributes=(
            *LINUX_ONLY,
            *("fork", "register_at_fork", "sysconf", "geteuid", "getuid", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK"),
            *("O_CLOEXEC", "SEEK_HOLE", "SEEK_DATA"),
        ),
        no_libc=True,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    exe = executable_of(small_model(), [([0, 1], "onnxruntime"), ([2], "host"), ([3], "onnxruntime")])
    exe.save(folder / "m.collage")
    exe.save(folder / "m.zip")
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=expected(x)["y"])
    return folder


def ran(program: str, folder: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    kept = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=kept, encoding="utf-8")


@pytest.mark.parametrize(
    ("system", "form"),
    # A zip is unpacked to a folder by the same code on every system.
    [
        *((each, "m.collage") for each in SYSTEMS),
        *(pytest.param(each, "m.zip", marks=pytest.mark.slow) for each in SYSTEMS),
    ],
)
def test_artefacts_of_ones_own_load_on_other_systems(folder: Path, system: str, form: str) -> None:
    done = ran(SYSTEMS[system] + RUN.format(trusted=True).replace("m.collage", form), folder)
    assert done.returncode == 0, done.stderr


def test_where_models_cannot_be_checked_one_sentence_says_so(folder: Path) -> None:
    done = ran(SYSTEMS["Windows"] + RUN.format(trusted=False), folder)
    assert done.returncode == 1
    assert "Linux and macOS only" in done.stderr.strip().splitlines()[-1]
    assert "trusted=True" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"},
        {"HOME": None, "XDG_CACHE_HOME": None},
        {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"},
    ],
)
def test_no_home_and_odd_locales(folder: Path, environment: dict[str, str | None]) -> None:
    done = ran(RUN.format(trusted=False), folder, **environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["m.collage", "m.zip"])
def test_nothing_is_written_but_what_a_zip_is_unpacked_to(folder: Path, form: str) -> None:
    """As on a disk that is full or read-only: no file is made anywhere."""
    full = """
import builtins, os, tempfile
def refuse(*_, **__):
    raise OSError(28, "No space left on device")
tempfile.mkdtemp = tempfile.mkstemp = os.mkdir = refuse
"""
    done = ran(full + RUN.format(trusted=False).replace("m.collage", form), folder)
    if form == "m.collage":
        assert done.returncode == 0, done.stderr
    else:
        last = done.stderr.strip().splitlines()[-1]
        assert "UsageError" in last and "No space left on device" in last and "TMPDIR" in last


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_an_artefact_on_a_full_disk(folder: Path, tmp_path: Path) -> None:
    script = f"""
mount -t tmpfs -o size=64k none {tmp_path} || exit 77
dd if=/dev/zero of={tmp_path}/fill bs=1k count=64 2>/dev/null
TMPDIR={tmp_path} "$0" -c "$1" {folder}
"""
    command = ["unshare", "-m", "sh", "-c", script, sys.executable, RUN.format(trusted=False)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr
