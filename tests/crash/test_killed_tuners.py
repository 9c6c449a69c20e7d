"""A tuner may be killed or interrupted at any moment: nothing acknowledged is lost, and the same command goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import onnx
import pytest

from collage._errors import ToolchainError
from collage.database.database import Database
from collage.database.queries import listing
from collage.measure.worker_pool import Limits, WorkerPool
from collage.target import Target
from collage.toolchains import Registry
from tests.crash import _tuners
from tests.crash._leftovers import VARIABLE, assert_none_left
from tests.crash._services import Slow
from tests.short_measurements import PROGRAM

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """What a shell starts in the background ignores SIGINT, and so does all that it starts itself, these tests among it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(mark: str, *words: str | Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        # How calm the machine is says nothing here, and waiting for that would take most of the time.
        env={**os.environ, VARIABLE: mark, "PYTHONPATH": paths},
    )


def rows(path: Path) -> dict[str, list[object]]:
    with Database(str(path)) as database:
        return {
            row["digest"]: [row["status"], row["median_us"] and row["median_us"] / 1e6] for row in listing(database)
        }


def acknowledged(output: bytes) -> list[list[object]]:
    """Complete lines: what the tuner said before it was killed."""
    return [json.loads(line) for line in output.split(b"\n")[:-1]]


@pytest.mark.parametrize("kills", [1, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments_loses_nothing_and_ends_with_the_same_plan(tmp_path: Path, kills: int) -> None:
    mark, moments = uuid.uuid4().hex, random.Random(kills)
    plan = tmp_path / "plan.json"

    def tuner(db: Path) -> subprocess.Popen[bytes]:
        plan.unlink(missing_ok=True)
        return start(mark, "-m", "tests.crash._tuners", "tune", db, plan)

    began = time.monotonic()
    with tuner(tmp_path / "whole.sqlite") as whole:
        assert whole.wait() == 0, whole.communicate()
    takes_s = time.monotonic() - began
    wanted = json.loads(plan.read_text())["plan"]
    assert {target for target, _ in wanted} == {"llvm -compiler=fakea", "llvm -compiler=fakeb"}
    killed = 0
    while killed < kills:
        db, known, longest_s = tmp_path / f"{killed}.sqlite", {}, takes_s
        while True:
            with tuner(db) as process:
                try:
                    output, errors = process.communicate(timeout=moments.uniform(0.1, longest_s))
                except subprocess.TimeoutExpired:
                    process.kill()
                    output, errors = process.communicate()
                    killed += 1
                    longest_s *= 1.2  # A machine that became slower would let nobody ever start.
            assert process.returncode in (0, -signal.SIGKILL), errors
            told = acknowledged(output)
            assert not known.keys() & {digest for digest, *_ in told}, "measured again, though it was known"
            known |= {digest: said for digest, *said in told}
            kept = rows(db) if db.exists() else {}
            assert {digest: kept[digest] for digest in known} == {d: pytest.approx(known[d]) for d in known}
            assert_none_left(mark)
            if process.returncode == 0:
                assert json.loads(plan.read_text())["plan"] == wanted
                break


PLUGIN = """
from tests.crash import _tuners
from tests.fixed_time_toolchain import DeclaredToolchain

class _Plugin(DeclaredToolchain):
    def __init__(self):
        super().__init__(seconds=_tuners.MENU[self.number]._seconds, name=_tuners.MENU[self.number].name)
        self.worker_arguments = {}

class A(_Plugin):
    number = 0

class B(_Plugin):
    number = 1
"""


@pytest.mark.parametrize("interrupts", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_interrupted_at_random_moments_keeps_what_it_knows_and_exits_as_documented(
    tmp_path: Path, interrupts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, moments = uuid.uuid4().hex, random.Random(interrupts)
    (tmp_path / "fake_plugin.py").write_text(PLUGIN)
    about = tmp_path / "fake_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[collage.toolchains]\nfakea = fake_plugin:A\nfakeb = fake_plugin:B\n")
    model, db, out = tmp_path / "m.onnx", tmp_path / "t.sqlite", tmp_path / "m.collage"
    onnx.save(_tuners.model(), model)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {PROGRAM}"
    command = ["-c", program, "compile", model, "-o", out, "-t", "fakea", "-t", "fakeb"]
    command += ["--baseline", "none", "--db", db, "--json"]
    known: dict[str, list[object]] = {}
    for _ in range(interrupts):
        with start(mark, *command) as process:
            try:
                output, errors = process.communicate(timeout=moments.uniform(3.0, 15.0))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                output, errors = process.communicate(timeout=300)
        assert process.returncode in (0, 130, -signal.SIGINT), errors
        if process.returncode == 0:
            assert (out / "manifest.json").exists()
            assert json.loads(output)["kernels"]
        elif process.returncode == 130:
            assert errors.decode().splitlines()[-1].startswith("collage: interrupted; what was measured is kept")
        assert b"Traceback" not in errors or process.returncode == -signal.SIGINT, errors
        kept = rows(db) if db.exists() else {}
        assert {digest: kept.get(digest) for digest in known} == known
        known = kept
        assert_none_left(mark)
    with start(mark, *command) as process:
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    kernels = json.loads(output)["kernels"]
    assert {kernel["target"] for kernel in kernels} == {"llvm -compiler=fakea", "llvm -compiler=fakeb"}
    assert_none_left(mark)


def test_an_interrupt_waits_neither_for_the_job_under_way_nor_for_those_behind_it() -> None:
    toolchains, target = Registry(()), Target.parse("llvm -compiler=slow")
    toolchains.add(Slow(name="slow"))
    jobs = 12
    with Database("sqlite:///:memory:") as database:
        crew = WorkerPool(toolchains, database, Limits(), forgive=False, workers=None, say=lambda _: None)
        under_way = threading.Event()

        def ask() -> bool:
            under_way.set()
            return bool(crew.call(target, "availability", 60.0, target=str(target))["available"])

        def ask_again_and_again() -> None:
            for _ in range(jobs):
                with suppress(ToolchainError):
                    ask()

        def interrupt() -> None:
            under_way.wait()
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            crew.side_by_side({"slow": ask_again_and_again})
        assert time.monotonic() - began < jobs * 5.0 / 2
        assert ask()  # What comes after an interrupt is done as ever.
        crew.close()
