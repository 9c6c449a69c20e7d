"""Figures of an executable as it is used: throughput, latencies under load, resident set, and bytes of the artefact."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.cost.objective import Figures
from collage.measure.session import MeasureSession
from collage.runtime import Executable, Recipe, write_condensed
from collage.system.scratch import scratch
from collage.target import HOST_TOOLCHAIN
from collage.toolchains import Registry
from collage.workers.machine_lock import build_lock, measurement_lock
from collage.workers.worker import Worker

__all__ = [
    "ARTEFACT_AT_ONCE",
    "VENDOR_AT_ONCE",
    "artefact_bytes",
    "executable_arguments",
    "measure_figures",
    "measure_original",
    "resident_bytes",
    "serving",
]

Arguments = Mapping[str, Any]

ARTEFACT_AT_ONCE = "collage.measure._concurrent_worker:ConcurrentArtefactWorker"
CONCURRENT = "collage.measure._concurrent_worker:ConcurrentExecutableWorker"
ORIGINAL_AT_ONCE = "collage.measure._concurrent_worker:OriginalAtOnceWorker"
VENDOR_AT_ONCE = "collage.measure._concurrent_worker:ConcurrentVendorWorker"
_RESIDENT = "collage.measure._resident_worker:ResidentArtefact"
_RESIDENT_ORIGINAL = "collage.measure._resident_worker:ResidentOriginal"
_TIMEOUT_S = 300.0
_LEAST_S, _MOST_S = 1.5, 15.0
_ENOUGH_RUNS = 200
"""Runs after which the ninety-ninth percentile has two runs above it."""
_SERVED = frozenset(("p50", "p90", "p95", "p99", "throughput"))


def executable_arguments(recipe: Recipe, session: MeasureSession, toolchains: Registry) -> dict[str, Any]:
    """Return the arguments of ``ExecutableWorker``, JSON values."""
    # The host stands in for kernels that fail, as it does where the recipe is deployed.
    factories = {name: toolchains.factory(name) for name in {*recipe.toolchains, HOST_TOOLCHAIN}}
    return {
        "recipe": recipe.as_json(),
        "workspace": str(session.workspace),
        "values": session.value_folders,
        "weights": session.weights,
        "lengths": [str(folder) for folder in session.length_folders],
        "factories": factories,
    }


def measure_figures(
    recipe: Recipe, quantities: Collection[str], session: MeasureSession, toolchains: Registry
) -> Figures:
    """Measure an executable, in fresh processes, with as many streams as its recipe says.

    Args:
        recipe: The recipe of the executable.
        quantities: Names of the quantities to measure; see ``QUANTITIES``.
        session: Holds the workspace and the inputs.
        toolchains: The registry of its toolchains.

    Raises:
        ToolchainError: It cannot be loaded or run.
    """
    figures = Figures()
    if _SERVED & set(quantities):
        arguments = executable_arguments(recipe, session, toolchains)
        figures = _served(serving(CONCURRENT, arguments))
    if "rss" in quantities:
        figures = replace(figures, rss_bytes=resident_bytes(recipe, session, toolchains))
    if "size" in quantities:
        with scratch() as folder:
            condensed = write_condensed(recipe, session.workspace, folder)
            figures = replace(figures, size_bytes=float(artefact_bytes(condensed, folder)))
    return figures


def measure_original(path: Path, quantities: Collection[str], session: MeasureSession, threads: int) -> Figures:
    """Measure a model's file on ONNX Runtime with its defaults; only memory and size, and only if they are requested.

    Raises:
        ToolchainError: It cannot be loaded or run.
    """
    figures = Figures()
    if "rss" in quantities:
        inputs = [str(values.folder) for values, _ in session.occasions]
        worker = Worker(_RESIDENT_ORIGINAL, {"path": str(path), "inputs": inputs, "threads": threads})
        with worker, build_lock():
            figures = replace(figures, rss_bytes=float(worker.call("largest_bytes", _TIMEOUT_S)))
    if "size" in quantities:
        figures = replace(figures, size_bytes=float(path.stat().st_size))
    return figures


def serving(service: str, arguments: Arguments, seconds: float | None = None) -> Mapping[str, Any]:
    """Return the result of ``serve`` of a service after some seconds; None is as many as its percentiles need.

    Raises:
        ToolchainError: It cannot be loaded or run.
    """
    with Worker(service, dict(arguments)) as worker:
        with build_lock():
            first = worker.call("serve", _TIMEOUT_S, seconds=0.0)
        if seconds is None:
            seconds = min(max(_LEAST_S, _ENOUGH_RUNS / first["runs_per_s"]), _MOST_S)
        with measurement_lock():
            found: Mapping[str, Any] = worker.call("serve", _TIMEOUT_S + seconds, seconds=seconds)
        return found


def _served(found: Mapping[str, Any]) -> Figures:
    names = ("runs_per_s", "p50_s", "p90_s", "p95_s", "p99_s")
    return Figures(**{name: float(found[name]) for name in names})


def resident_bytes(recipe: Recipe, session: MeasureSession, toolchains: Registry) -> float:
    """Return the largest resident set of a fresh process that loads the artefact and runs it in every context.

    Raises:
        ToolchainError: It cannot be loaded or run.
    """
    with scratch() as folder:
        artefact = Executable(recipe, session.workspace, toolchains=toolchains, is_lazy=True).save(folder / "artefact")
        told = {
            "artefact": str(artefact),
            "inputs": [str(values.folder) for values, _ in session.occasions],
            "factories": {name: toolchains.factory(name) for name in {*recipe.toolchains, HOST_TOOLCHAIN}},
        }
        with Worker(_RESIDENT, told) as worker, build_lock():
            return float(worker.call("largest_bytes", _TIMEOUT_S))


def artefact_bytes(recipe: Recipe, workspace: Path) -> int:
    """Return the bytes of all files of an artefact, as a folder."""
    with scratch() as folder:
        artefact = Executable(recipe, workspace, is_lazy=True).save(folder / "artefact")
        return sum(entry.stat().st_size for entry in artefact.iterdir())
