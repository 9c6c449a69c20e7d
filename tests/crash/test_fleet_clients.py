"""A head that `ray start` starts, with its server for clients: callers outside of the cluster, with its token and without."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.crash._fleets import Site, fingerprint_on, new_database, patiently, plan_of
from tests.crash._leftovers import assert_none_left, marked

pytestmark = pytest.mark.slow
pytest.importorskip("ray", reason="the package ray is not installed")

TOKEN = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Head:
    site: Site
    address: str


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(params=["token", "open"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Head]:
    site = Site(tmp_path)
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    if request.param == "token":
        (home / ".ray" / "auth_token").write_text(TOKEN)
    # Paths of sockets are short, and those of pytest are not.
    scratch = tempfile.mkdtemp(prefix="ray-")
    site.environment |= {"HOME": str(home), "COLLAGE_DB": str(tmp_path / "own.sqlite")}
    # Three attempts of a second each, in place of half a minute.
    site.environment |= {f"RAY_CLIENT_{which}_CONNECTION_TIMEOUT_S": "1" for which in ("INITIAL", "MAX")}
    port = free_port()
    words = ["start", "--head", f"--port={free_port()}", f"--ray-client-server-port={port}", f"--temp-dir={scratch}"]
    words += ["--num-cpus=1", '--resources={"machine:here": 1, "measure": 1}', "--include-dashboard=false"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    started = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", *words, f"--object-store-memory={100 << 20}"],
        env={**outside, **site.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    try:
        assert started.returncode == 0, started.stderr.decode()
        yield Head(site, f"ray://127.0.0.1:{port}")
    finally:
        for process in marked(site.mark):
            try:
                process.kill()
            except psutil.Error:
                continue
        shutil.rmtree(scratch, ignore_errors=True)
    assert_none_left(site.mark)


def test_a_fleet_is_compiled_from_outside(head: Head, postgres: str) -> None:
    site = head.site
    (node,) = patiently(lambda: site.run("machines", "--on", head.address))["nodes"]
    assert node["machines"] == ["here"]
    assert node["fingerprint"] == fingerprint_on(set(os.sched_getaffinity(0)))
    models = site.models([("Relu", "Exp", "Abs"), ("Exp", "Relu", "Abs")])
    fleet = site.fleet_file({"here": node["fingerprint"]})
    told = site.run(
        "compile",
        *models,
        *("--on", head.address, "--machines", fleet, "--db", new_database(postgres), "-o", "out"),
    )
    assert [task["state"] for task in told["tasks"]] == ["done"] * 2
    measured = site.measured()
    assert measured and len(set(measured)) == len(measured)
    words = (
        "compile",
        models[0],
        "--on",
        head.address,
        "--machine",
        "here",
        "--machines",
        fleet,
        "-o",
        "one.zip",
        "-q",
    )
    environment = {**os.environ, **site.environment}
    patiently(lambda: subprocess.run([*site.command, *map(str, words)], check=True, env=environment, cwd=site.folder))
    assert plan_of(site.folder / "one.zip") == plan_of(site.folder / "out" / "m0" / "here.collage.zip")


def test_a_caller_without_the_token_is_told_where_it_is(head: Head, tmp_path: Path) -> None:
    own, site = tmp_path / "home" / ".ray" / "auth_token", head.site
    has_token = own.exists()
    own.unlink(missing_ok=True)
    for wrong, said in (
        (None, b"There is no token here: if the cluster has one, copy ~/.ray/auth_token of its head to this machine"),
        ("0" * 32, b"The token in ~/.ray/auth_token was sent: it must be that of the cluster's head"),
    ):
        if wrong is not None:
            own.write_text(wrong)
        for _ in range(1 if has_token else 5):  # On a busy machine Ray gives up a start after three seconds here.
            with site.start("machines", "--on", head.address) as process:
                output, errors = process.communicate(timeout=120)
            if process.returncode == 0:
                break
        if has_token:
            assert process.returncode == 1
            assert errors.count(b"\n") == 1 and said in errors
        else:  # A cluster without a token takes callers with any.
            assert process.returncode == 0 and b'[machines."here"]' in output, errors.decode()
