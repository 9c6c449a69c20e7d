"""Builds side by side: each kernel is built once, by as many workers as pay off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from collage._errors import CompileError, ToolchainError
from collage.measure import builder
from collage.measure.builder import Builds
from collage.measure.jobs import Counters, Job
from collage.measure.worker_pool import Limits
from collage.system.machine import this_machine
from collage.target import Target
from collage.testing._toolchain_kernels import kernel

FIRST, SECOND = Target.parse("llvm -compiler=first"), Target.parse("llvm -compiler=second")


class Pool:
    """Workers that take a moment for a build, in place of processes."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int, str]] = []
        self._lock = threading.Lock()

    def call(self, target: Target, method: str, timeout_s: float, /, *, lane: int = 0, **params: Any) -> Any:
        assert method == "build"
        time.sleep(0.02)
        with self._lock:
            self.done.append((target.toolchain, lane, params["kernel"]))
        if "bad" in params["kernel"]:
            raise CompileError("refused")
        return {"file": params["kernel"]}

    def side_by_side(self, work: Mapping[str, Callable[[], None]]) -> None:
        with ThreadPoolExecutor(max_workers=min(len(work), 4)) as pool:
            for done in [pool.submit(part) for part in work.values()]:
                done.result()


def job(name: str, target: Target) -> Job:
    model = kernel(name, "(float[2] x) => (float[2] y) {y = Relu (x)}")
    return Job(model, name, target, ("x",), ("y",), 0.0)


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def builds(pool: Pool, tmp_path: Path) -> Builds:
    return Builds(pool, tmp_path, Counters(), threads=0, limits=Limits(), say=lambda _: None)  # type: ignore[arg-type]


def names(jobs: list[Job]) -> list[str]:
    return [f"{each.kernel.graph.name}.in.onnx" for each in jobs]


@pytest.mark.parametrize("pays_off_s", [0.0, 100.0])
def test_each_kernel_is_built_once_and_results_keep_their_order(
    builds: Builds, pool: Pool, monkeypatch: pytest.MonkeyPatch, pays_off_s: float
) -> None:
    monkeypatch.setattr(builder, "_WORTH_A_LANE_S", pays_off_s)
    jobs = [job(f"k{i}", (FIRST, SECOND)[i % 3 == 0]) for i in range(12)] + [job("bad", FIRST)]
    made = builds.build_all(jobs)
    assert [each.result["file"] for each in made[:-1] if isinstance(each.result, dict)] == names(jobs[:-1])
    assert isinstance(made[-1].result, ToolchainError)
    assert sorted(file for _, _, file in pool.done) == sorted(names(jobs))
    lanes = {lane for toolchain, lane, _ in pool.done if toolchain == "first"}
    assert (len(lanes) > 1) == (not pays_off_s and this_machine().cores > 1)


def test_what_was_built_ahead_is_not_built_again(builds: Builds, pool: Pool) -> None:
    jobs = [job("k", FIRST), job("bad", SECOND)]
    builds.build_ahead(jobs)
    later = [builds.build_all([each])[0] for each in jobs]
    assert len(pool.done) == 2
    assert later[0].result == {"file": "k.in.onnx"} and isinstance(later[1].result, CompileError)
    assert later[0].build_s >= 0.02
    builds.build_all(jobs[1:])  # What failed is tried again when it is asked for again.
    assert len(pool.done) == 3


def test_a_kernel_is_written_beside_its_weights(builds: Builds, tmp_path: Path) -> None:
    file = builds.write(job("k", FIRST).kernel)
    assert ir.load(tmp_path / file).graph.name == "k"
