"""Fleets on one machine: a cluster of several nodes, toolchains with declared times, and tiny models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import sqlalchemy as sa

from tests.crash import _tuners
from tests.crash._leftovers import VARIABLE

ROOT = Path(__file__).parents[2]
PLUGIN = """
import os
from pathlib import Path
from collage.measure.session import MeasureSession
from collage.workers import machine_lock
from tests.crash import _tuners
from tests.fixed_time_toolchain import DeclaredToolchain

# Nodes stand for machines, which have a lock each. So do tests that run at the same time.
machine_lock._FOLDER = Path(os.environ["COLLAGE_TEST_LOCKS"])

settle = MeasureSession._settle

def told(self, key, job, made, patience_s):
    outcome = settle(self, key, job, made, patience_s)
    if outcome is not None and outcome.ok and not outcome.recorded:
        with open(os.environ["COLLAGE_TEST_MEASURED"], "a") as file:
            file.write(key.digest + "\\n")
    return outcome

MeasureSession._settle = told

class _Plugin(DeclaredToolchain):
    def __init__(self):
        super().__init__(seconds=_tuners.MENU[self.number]._seconds, name=_tuners.MENU[self.number].name)
        self.worker_arguments = {}

class A(_Plugin):
    number = 0

class B(_Plugin):
    number = 1
"""
COMMAND = [sys.executable, "-c", "from collage.cli import main; main()"]


def patiently(start: Callable[[], Any], tries: int = 5) -> Any:
    """On a busy machine Ray gives up a start that takes longer than half a minute."""
    for left in range(tries, 0, -1):
        try:
            return start()
        except Exception:
            if left == 1:
                raise
            time.sleep(1.0)
    return None


class Site:
    """A folder with everything that a fleet needs, and an environment that all of its processes inherit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = COMMAND
        self.mark = uuid.uuid4().hex
        plugin = folder / "plugin"
        about = plugin / "fake_plugin-1.0.dist-info"
        about.mkdir(parents=True)
        (plugin / "fake_plugin.py").write_text(PLUGIN)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[collage.toolchains]\nfakea = fake_plugin:A\nfakeb = fake_plugin:B\n")
        paths = os.pathsep.join(map(str, (plugin, ROOT / "src", ROOT)))
        self.environment = {
            "PYTHONPATH": paths,
            VARIABLE: self.mark,
            "COLLAGE_TEST_MEASURED": str(folder / "measured"),
            "COLLAGE_TEST_LOCKS": str(self.locks("driver")),
            "RAY_worker_niceness": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def locks(self, node: str) -> Path:
        path = self.folder / "locks" / node
        path.mkdir(parents=True, exist_ok=True)
        return path

    def measured(self) -> list[str]:
        """Return the keys of kernels that were timed, one for each time."""
        return (self.folder / "measured").read_text().split() if (self.folder / "measured").exists() else []

    def models(self, chains: Sequence[Sequence[str]]) -> list[Path]:
        paths = []
        for number, operators in enumerate(chains):
            path = self.folder / f"m{number}.onnx"
            onnx.save(_tuners.model(tuple(operators)), path)
            paths.append(path)
        return paths

    def fleet_file(self, fingerprints: dict[str, str]) -> Path:
        path = self.folder / "fleet.toml"
        machines = "".join(f'[machines.{name}]\nfingerprint = "{told}"\n' for name, told in fingerprints.items())
        path.write_text(f'[compile]\ntarget = ["fakea", "fakeb"]\nbaseline = "none"\n{machines}')
        return path

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, "fleet", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment},
            cwd=self.folder,
        )

    def run(self, *words: str | Path, code: int = 0) -> Any:
        with self.start(*words, "--json") as process:
            output, errors = process.communicate(timeout=600)
        assert process.returncode == code, errors.decode()
        return json.loads(output)


@contextmanager
def processors(numbers: set[int]) -> Iterator[None]:
    """Have processes started within the ``with`` run on these processors only, and so have another fingerprint."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, numbers)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def fingerprint_on(numbers: set[int]) -> str:
    program = "from collage.system.machine import this_machine; print(this_machine().fingerprint)"
    with processors(numbers):
        told = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    return told.stdout.strip()


def new_database(postgres: str) -> str:
    server = sa.make_url(postgres).set(drivername="postgresql+psycopg")
    name = f"fleet_{uuid.uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server.set(database=name, drivername="postgresql").render_as_string(hide_password=False)


def plan_of(artefact: Path) -> list[Any]:
    """Return what an artefact runs, in order: timings differ from run to run, and the plan must not."""
    import zipfile

    with zipfile.ZipFile(artefact) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        files = {name: facts["sha256"] for name, facts in manifest["files"].items() if name.startswith("collage_")}
    return [[kernel["target"], kernel["inputs"], kernel["outputs"]] for kernel in manifest["kernels"]] + [files]
