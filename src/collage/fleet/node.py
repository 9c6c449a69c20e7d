"""One task on a node: the ordinary command, in a process of its own.

A toolchain that crashes takes its worker along, perhaps the command, and never the Ray worker. The command ends when the Ray
worker does, however that one ends.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage._version import __version__
from collage.database import Database, await_server
from collage.database.database import file_url
from collage.fleet.machines import options_text
from collage.fleet.models import write_files
from collage.system.machine import this_machine
from collage.system.scratch import scratch

__all__ = ["compile_here", "describe_here"]

_PROGRAM = (
    "from collage.workers.lifeline import end_with_parent; end_with_parent(); from collage.cli import main; main()"
)
_MOST_REASON = 2000
_OUT = "artefact.zip"
_OPTIONS = "options.toml"


def describe_here() -> dict[str, Any]:
    """Return this node's description of itself: types and fingerprint."""
    machine = this_machine()
    return {
        "fingerprint": machine.fingerprint,
        "host": platform.node(),
        "cpu": machine.cpu,
        "cores": machine.cores,
        "collage": __version__,
    }


def compile_here(files: dict[str, bytes], job: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a model on this node.

    Args:
        files: The files of the model, the ONNX file first.
        job: ``fingerprint`` and ``collage``, which this node must have; ``options``; ``db``, the URL of the database, or None
            with ``rows``, timings as text; ``limit_s``; ``most_bytes``, which the artefact may have; and ``machine``, the type.

    Returns:
        ``kind``: ``done``, ``failed``, ``late``, or ``refused`` if the fingerprint or the version differ. Besides that the
        facts of ``describe_here``, the ``reason`` of a failure, and the ``artefact``.
    """
    here = {**describe_here(), "node": _node_id()}
    if (reason := _why_refused(here, job)) is not None:
        return {**here, "kind": "refused", "reason": reason}
    started = time.monotonic()
    found = _compiled(files, job)
    took_s = time.monotonic() - started
    _count(str(job["machine"]), str(found["kind"]), took_s)
    return {**here, **found, "took_s": took_s}


def _why_refused(here: Mapping[str, Any], job: Mapping[str, Any]) -> str | None:
    if here["fingerprint"] != job["fingerprint"]:
        return (
            f"{here['host']} says that it is of type {job['machine']}, whose fingerprint is {job['fingerprint']}, and has "
            f"{here['fingerprint']} ({here['cpu']}, {here['cores']} cores)"
        )
    if here["collage"] != job["collage"]:
        return f"{here['host']} has Collage {here['collage']}, and the driver has {job['collage']}"
    return None


def _compiled(files: dict[str, bytes], job: Mapping[str, Any]) -> dict[str, Any]:
    with scratch() as folder:
        (folder / "model").mkdir()
        write_files(files, folder / "model")
        (folder / _OPTIONS).write_text(options_text(job["options"]), encoding="utf-8")
        if job.get("rows"):
            _take_rows(folder / "timings.sqlite", job["rows"])
        if job["db"]:
            await_server(job["db"])
        db = job["db"] or file_url(folder / "timings.sqlite")
        code, said = _run(folder, next(iter(files)), db, float(job["limit_s"]))
        if code is None:
            return {"kind": "late", "reason": f"compiling took longer than {job['limit_s']:.0f} s"}
        if code:
            return {"kind": "failed", "code": code, "reason": _reason(code, said)}
        size = (folder / _OUT).stat().st_size
        if size > job["most_bytes"]:
            reason = f"the artefact has {size:,} bytes, and may have {job['most_bytes']:,}"
            return {"kind": "failed", "code": 0, "reason": reason}
        found = {"kind": "done", "artefact": (folder / _OUT).read_bytes()}
        return found if job["db"] else {**found, "rows": _rows_of(folder / "timings.sqlite")}


def _run(folder: Path, model: str, db: str, limit_s: float) -> tuple[int | None, str]:
    """Run the command; return its exit code, None if it took too long, and the end of its output."""
    # Not "--db": other users may read a command line, and a URL may hold a password.
    environment = {**os.environ, "COLLAGE_DB": db}
    words = [
        "compile",
        str(folder / "model" / model),
        "-o",
        str(folder / _OUT),
        "--config",
        str(folder / _OPTIONS),
        "-q",
    ]
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        said.seek(max(0, said.seek(0, os.SEEK_END) - _MOST_REASON))
        return code, said.read().decode(errors="replace")


def _reason(code: int, said: str) -> str:
    if code < 0:
        return f"the command was ended by signal {-code}: {said.strip()}".rstrip(": ")
    lines = [line for line in said.splitlines() if line.startswith("collage: ")]
    return lines[-1].removeprefix("collage: ") if lines else f"the command ended with code {code}: {said.strip()}"


def _take_rows(file: Path, text: str) -> None:
    import io

    from collage.database.export import import_lines

    with Database(str(file)) as database:
        import_lines(database, io.StringIO(text), "timings sent here")


def _rows_of(file: Path) -> str:
    from collage.database.export import export_lines

    with Database(str(file), reading=True) as database:
        return "\n".join(export_lines(database)) + "\n"


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _count(machine: str, kind: str, took_s: float) -> None:
    """Count a task for Prometheus, which asks each node of a cluster."""
    import ray
    from ray.util.metrics import Counter, Histogram

    if ray.is_initialized():
        tags = {"machine": machine, "outcome": kind}
        Counter("collage_fleet_tasks", "Compilations that ended on this node.", tuple(tags)).inc(1.0, tags)
        bounds = [1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0]
        Histogram("collage_fleet_task_seconds", "Seconds of a compilation.", bounds, tuple(tags)).observe(took_s, tags)
