"""A fleet on one machine whose nodes, head and database are killed: every model ends as in a calm run."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash._fleets import Site, fingerprint_on, new_database, patiently, plan_of, processors
from tests.crash._leftovers import assert_none_left

pytestmark = pytest.mark.slow
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the package ray is not installed")

CHAINS = [list(chain) for chain in itertools.islice(itertools.permutations(("Relu", "Exp", "Abs", "Neg"), 3), 10)]
NODES = ("small", "small", "big")


class Machines:
    """Nodes that stand for machines: each has a machine lock of its own; small ones have one processor."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.all = sorted(os.sched_getaffinity(0))
        self._environment = monkeypatch
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.nodes: list[Any] = []
        self.start()

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"small": fingerprint_on({self.all[0]}), "big": fingerprint_on(set(self.all))}

    def start(self) -> None:
        for name, value in self.site.environment.items():
            self._environment.setenv(name, value)
        quick = {
            "gcs_rpc_server_reconnect_timeout_s": 5,
            "health_check_period_ms": 500,
            "health_check_timeout_ms": 2000,
        }
        head = {"gcs_server_port": self.port, "num_cpus": 0, "include_dashboard": False, "_system_config": quick}
        self.cluster = patiently(lambda: cluster_utils.Cluster(initialize_head=True, head_node_args=head))
        self.nodes = []
        for number in range(len(NODES)):
            self.add(number)

    def add(self, number: int) -> None:
        """Start a node, or one that stands for the same machine again."""
        self._environment.setenv("COLLAGE_TEST_LOCKS", str(self.site.locks(f"node{number}")))
        resources = {f"machine:{NODES[number]}": 1, "measure": 1}
        with processors({self.all[0]} if NODES[number] == "small" else set(self.all)):
            node = patiently(lambda: self.cluster.add_node(wait=False, num_cpus=1, resources=resources))
        self.nodes[number : number + 1] = [node]

    def kill(self, number: int) -> None:
        node = self.nodes[number]
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self.cluster.worker_nodes.discard(node)

    def kill_all(self) -> None:
        for node in self.cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self.cluster.head_node = None
        self.cluster.worker_nodes = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two types of machines need two processors")
    site = Site(tmp_path)
    # A user who has a token, as Ray makes one for a cluster of this machine, in a cluster that has none.
    token = tmp_path / "home" / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("0123456789abcdef" * 2)
    site.environment["HOME"] = str(tmp_path / "home")
    machines = Machines(site, monkeypatch)
    yield machines
    machines.kill_all()
    assert_none_left(site.mark)


def calm_plans(machines: Machines, models: list[Path], postgres: str) -> dict[str, Any]:
    """What each model ends as where nothing happens; and no kernel is measured twice, on however many nodes."""
    site = machines.site
    fleet = site.fleet_file(machines.fingerprints)
    db = new_database(postgres)
    told = site.run("compile", *models, "--on", machines.address, "--machines", fleet, "--db", db, "-o", "calm")
    assert {task["state"] for task in told["tasks"]} == {"done"}
    measured = site.measured()
    assert measured and len(set(measured)) == len(measured)
    (site.folder / "measured").unlink()
    return plans(site.folder / "calm")


def plans(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): plan_of(path) for path in sorted(folder.rglob("*.zip"))}


@pytest.mark.parametrize("count", [2, 10])
def test_nodes_and_the_head_are_killed_at_random_moments(count: int, machines: Machines, postgres: str) -> None:
    site, moments = machines.site, random.Random(count)
    models = site.models(CHAINS[:count])
    began = time.monotonic()
    calm = calm_plans(machines, models, postgres)
    takes_s = time.monotonic() - began
    assert len(calm) == 2 * count
    fleet, db = site.fleet_file(machines.fingerprints), new_database(postgres)
    words = ("--on", machines.address, "--machines", fleet, "--db", db, "-o", "out", "--tries", "50", "--json")
    with site.start("compile", *models, *words) as process:
        for event in ["node", "head", *["node"] * (count // 2)]:
            try:
                process.wait(moments.uniform(0.1, 0.5) * takes_s)
                break
            except subprocess.TimeoutExpired:
                pass
            if event == "head":
                machines.kill_all()
                machines.start()
            else:
                number = moments.randrange(len(NODES))
                machines.kill(number)
                machines.add(number)
        _, errors = process.communicate(timeout=1800)
    if process.returncode != 0:  # A command ends with its head, and the same command continues.
        told = site.run("compile", *models, *words[:-1])
        assert {task["state"] for task in told["tasks"]} == {"done"}, errors.decode()
    assert plans(site.folder / "out") == calm
    measured = site.measured()
    assert len(set(measured)) == len(measured), "measured again, though it was known"


def test_the_command_is_killed_and_continues(machines: Machines, postgres: str) -> None:
    site = machines.site
    models = site.models(CHAINS[:3])
    fleet, db = site.fleet_file(machines.fingerprints), new_database(postgres)
    words = ("compile", *models, "--on", machines.address, "--machines", fleet, "--db", db, "-o", "out")
    with site.start(*words) as process:
        while not list((site.folder / "out").rglob("*.zip")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in (site.folder / "out").rglob("*.zip")}
    told = site.run(*words)
    assert {task["state"] for task in told["tasks"]} == {"done"} and len(told["tasks"]) == 6
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    measured = site.measured()
    assert len(set(measured)) == len(measured)


def test_a_node_of_another_fingerprint_gets_nothing(machines: Machines, postgres: str) -> None:
    site = machines.site
    (model,) = site.models(CHAINS[:1])
    fleet, db = site.fleet_file({"small": machines.fingerprints["big"]}), new_database(postgres)
    with site.start(
        *("compile", model, "--on", machines.address, "--machines", fleet, "--db", db, "-o", "out", "--patience", "5s")
    ) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert b"refused a node" in errors and b"no node for small" in errors
    assert not site.measured()
    told = site.run("status", "--db", db)
    assert [task["state"] for task in told["tasks"]] == ["running"] or told["tasks"][0]["state"] == "waiting"


def test_one_model_is_compiled_there_from_here(machines: Machines) -> None:
    """With a database that is a file here: timings come back, and the second time nothing is measured."""
    site = machines.site
    (model,) = site.models(CHAINS[:1])
    fleet = site.fleet_file(machines.fingerprints)
    words = [
        "compile",
        str(model),
        "--on",
        machines.address,
        "--machine",
        "small",
        "--machines",
        str(fleet),
        "--db",
        "t",
    ]
    for number in range(2):
        done = subprocess.run(
            [*site.command, *words, "-o", f"{number}.zip", "--json"],
            capture_output=True,
            env={**os.environ, **site.environment},
            cwd=site.folder,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr.decode()
    measured = site.measured()
    assert measured and len(set(measured)) == len(measured)
    assert plan_of(site.folder / "0.zip") == plan_of(site.folder / "1.zip")


def test_the_database_is_killed_and_restarted(machines: Machines) -> None:
    """The one exception of measuring once: a restart lets go of the claims to kernels that are being timed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pgserver", reason="the package pgserver is not installed")
    site = machines.site
    models = site.models(CHAINS[:2])
    folder = Path(tempfile.mkdtemp(prefix="collage-postgres-"))
    server = pgserver.get_server(folder)
    try:
        fleet, db = site.fleet_file(machines.fingerprints), new_database(server.get_uri())
        with site.start(
            *("compile", *models, "--on", machines.address, "--machines", fleet, "--db", db, "-o", "out", "--json")
        ) as process:
            while len(site.measured()) < 2:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            os.kill(server.get_pid(), signal.SIGQUIT)  # It drops everything, as in a crash.
            known = set(site.measured())
            time.sleep(2.0)
            server.ensure_postgres_running()
            _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors.decode()
        told = site.run("status", "--db", db)
        assert [task["state"] for task in told["tasks"]] == ["done"] * 4
        measured = site.measured()
        assert all(measured.count(key) == 1 for key in known), "acknowledged, and lost"
        assert len(measured) - len(set(measured)) <= len(NODES)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_embedded_cluster_gives_what_the_plain_command_gives(tmp_path: Path) -> None:
    """With real toolchains of this machine, and no cluster but the one that the command starts and ends."""
    site = Site(tmp_path)
    models = site.models(CHAINS[:2])
    fleet = tmp_path / "fleet.toml"
    here = fingerprint_on(set(os.sched_getaffinity(0)))
    fleet.write_text(f'[compile]\ntarget = ["onnxruntime"]\n[machines.here]\nfingerprint = "{here}"\n')
    told = site.run("compile", *models, "--machines", fleet, "--db", "fleet.sqlite", "-o", "out")
    assert [task["state"] for task in told["tasks"]] == ["done"] * 2
    for model in models:
        plain = tmp_path / f"{model.stem}.zip"
        subprocess.run(
            [*site.command, "compile", model, "-o", plain, "-t", "onnxruntime", "--db", "plain.sqlite", "-q"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **site.environment},
            cwd=tmp_path,
        )
        assert plan_of(tmp_path / "out" / model.stem / "here.collage.zip") == plan_of(plain)
    assert_none_left(site.mark)
