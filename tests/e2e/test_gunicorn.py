"""Four workers of gunicorn serve one artefact of three toolchains: under load, killed and restarted, on one processor.

Slow, since each server loads the artefact once for itself and once in each worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.testing import executable_of
from tests.unit.runtime.test_forks import model

pytest.importorskip("gunicorn")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="finds workers in /proc"),
]

WORKERS = 4
ROOT = Path(__file__).parents[2]
Ask = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "m.collage"
    executable_of(model(), [([0, 1], "llvm"), ([2], "onnxruntime"), ([3], "openvino")]).save(path)
    return path


@pytest.fixture(scope="module")
def samples(artefact: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs, and the outputs that NumPy computes from them."""
    weights = {tensor.name: tensor for tensor in model().graph.initializer}
    w, v = (np.frombuffer(weights[name].raw_data, np.float32).reshape(weights[name].dims) for name in "wv")
    rng = np.random.default_rng(2)
    found = []
    for _ in range(16):
        x = rng.standard_normal((64, 256)).astype(np.float32)
        z = np.maximum(x, 0) @ w
        e = np.exp(z - z.max(1, keepdims=True))
        found.append((x, (e / e.sum(1, keepdims=True)) @ v))
    return found


class Server:
    """A gunicorn with preloading."""

    def __init__(self, artefact: Path, application: str, folder: Path, *more: str, preexec: Any = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", str(WORKERS), *more]
        command += ["--bind", self.url.removeprefix("http://"), "--chdir", str(folder), application]
        environment = {**os.environ, "MODEL": str(artefact), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{folder}"}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=preexec, text=True)

    def get(self, path: str, data: bytes | None = None, kind: str = "application/octet-stream") -> bytes:
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())

    def wait(self, path: str) -> None:
        for _ in range(240):
            assert self.process.poll() is None, "gunicorn ended"
            with contextlib.suppress(OSError):
                self.get(path)
                return
            time.sleep(0.5)
        raise AssertionError("gunicorn does not answer")

    def workers(self) -> set[int]:
        """Return the numbers of the workers' processes."""
        pid = self.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def all_workers(self) -> set[int]:
        """Return the numbers of the workers' processes as soon as there are as many as there are to be."""
        for _ in range(120):
            if len(found := self.workers()) == WORKERS:
                return found
            time.sleep(0.5)
        raise AssertionError(f"there are {len(found)} workers")

    def stop(self) -> None:
        """End it as systems do, and see that all of it ends."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=90)
        assert self.process.returncode == 0, said


@contextlib.contextmanager
def serving(*arguments: Any, **options: Any) -> Iterator[Server]:
    server = Server(*arguments, **options)
    try:
        yield server
    finally:
        for pid in server.workers() if server.process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.process.kill()
        server.process.wait()


def under_load(ask: Ask, samples: list[Any], count: int = 120, clients: int = 8) -> list[str]:
    """Return what is wrong with answers to many clients at once; a connection that breaks is tried again."""

    def once(number: int) -> str:
        x, y = samples[number % len(samples)]
        for _ in range(20):
            try:
                return "" if np.allclose(ask(x), y, rtol=1e-3, atol=1e-5) else f"answer {number} is wrong"
            except (urllib.error.URLError, ConnectionError, OSError):
                time.sleep(0.25)
        return f"answer {number} never came"

    with ThreadPoolExecutor(clients) as pool:
        return [fault for fault in pool.map(once, range(count)) if fault]


def test_workers_answer_under_load_and_after_they_were_killed(
    artefact: Path, samples: list[Any], tmp_path: Path
) -> None:
    with serving(artefact, "gunicorn_app:app", Path(__file__).parent) as server:

        def ask(x: np.ndarray) -> np.ndarray:
            return np.frombuffer(server.get("/", x.tobytes()), np.float32).reshape(64, 64)

        server.wait("/who")
        first = server.all_workers()
        assert under_load(ask, samples) == []
        assert server.workers() == first, "no worker died or was replaced"
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(under_load, ask, samples)
            for pid in sorted(first):
                time.sleep(0.1)
                os.kill(pid, signal.SIGKILL)
            assert load.result() == []
        now = server.all_workers()
        assert not now & first
        assert under_load(ask, samples) == []
        answered = {json.loads(server.get("/who"))["pid"] for _ in range(40)}
        assert answered <= now
        server.stop()


def test_the_example_serves(artefact: Path, samples: list[Any]) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn_worker")
    folder = ROOT / "examples" / "docker"
    with serving(artefact, "fastapi_server:app", folder, "-k", "uvicorn_worker.UvicornWorker") as server:

        def ask(x: np.ndarray) -> np.ndarray:
            body = json.dumps({"inputs": {"x": x.tolist()}}).encode()
            return np.array(json.loads(server.get("/run", body, "application/json"))["outputs"]["y"], np.float32)

        server.wait("/ready")
        assert under_load(ask, samples, count=40) == []
        with pytest.raises(urllib.error.HTTPError, match="422"):
            server.get("/run", b'{"inputs": {"z": [1.0]}}', "application/json")
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        server.wait("/ready")
        assert under_load(ask, samples, count=40) == []
        server.stop()


def test_on_one_processor_it_serves_and_says_what_it_found(artefact: Path, samples: list[Any]) -> None:
    processor = min(os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("the artefact was made for one processor")
    with serving(
        artefact,
        "gunicorn_app:app",
        Path(__file__).parent,
        preexec=lambda: os.sched_setaffinity(0, {processor}),
    ) as server:

        def ask(x: np.ndarray) -> np.ndarray:
            return np.frombuffer(server.get("/", x.tobytes()), np.float32).reshape(64, 64)

        server.wait("/who")
        (note,) = json.loads(server.get("/who"))["notes"]
        assert "here are 1" in note
        assert under_load(ask, samples, count=40) == []
        server.stop()
