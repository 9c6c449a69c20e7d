"""One model, compiled and measured on a machine of another type; the artefact comes back."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collage._errors import ArtefactError, CollageError, UsageError
from collage._version import __version__
from collage.database.database import Database
from collage.database.export import Moved, export_lines, import_lines
from collage.fleet.answers import Answer, read_answer
from collage.fleet.cluster import MEASURE, ClusterLost, first_line, join, nodes, resource_of
from collage.fleet.machines import LOCAL, MachineType
from collage.fleet.models import describe_model, read_files
from collage.fleet.node import compile_here, describe_here
from collage.fleet.returned import Kept, keep, most_bytes
from collage.fleet.tasks import absolute_url, is_file

__all__ = ["MOST_ROWS", "compile_on", "describe_nodes", "take_rows"]

MOST_ROWS = 100_000
"""Timings and facts that may come back: a compilation makes thousands of them."""

_MOST_TEXT = 256 << 20
_LOOK_S = 1.0
_GRACE_S = 60.0
_TRIES = 3
"""Nodes that may be lost while they compile the model."""


def compile_on(
    path: Path,
    machine: MachineType,
    output: Path,
    *,
    address: str = LOCAL,
    db: str | None = None,
    limit_s: float = 4 * 3600.0,
    patience_s: float = 600.0,
    say: Callable[[str], None] = lambda _: None,
) -> Kept:
    """Compile a model on a node of a type. Nodes that are not of it are refused, and of lost nodes the next one takes over.

    A database on a server is used by the node itself. If it is a file here, the timings of this type are sent along,
    and new ones come back.

    Args:
        path: An ONNX file, which is read through the front door here first.
        machine: The type of machine, with the options.
        output: Path of the artefact, which ends with ``.zip``.
        address: See ``collage.fleet.cluster.join``.
        db: The database; None is the user's own.
        limit_s: Seconds that it may take.
        patience_s: Seconds to wait for a node.
        say: Called with each line of progress.

    Raises:
        UsageError: Options make no sense.
        ModelError: The model is not valid, or not safe.
        ArtefactError: The node did not return an artefact of this model.
        CollageError: It could not be compiled there.
    """
    if output.suffix != ".zip":
        raise UsageError(f"an artefact comes back as one file: name {output} with .zip at its end")
    model = describe_model(path)
    db = absolute_url(db)
    job = {
        "machine": machine.name,
        "fingerprint": machine.fingerprint,
        "collage": __version__,
        "options": dict(machine.options),
        "db": None if is_file(db) else db,
        "rows": _rows_for(db, machine) if is_file(db) else None,
        "limit_s": limit_s,
        "most_bytes": most_bytes(model),
    }
    with join(address, [machine.name]) as ray:
        found = _sent(ray, read_files(model), job, limit_s + _GRACE_S, patience_s, say)
    if found.kind != "done":
        raise CollageError(f"{found.host or 'the node'} could not compile {path}: {found.reason}")
    kept = keep(found.artefact, model, machine, output)
    if is_file(db):
        with Database(db) as database:
            moved = take_rows(database, found.rows, machine.fingerprint)
        say(f"{moved.taken} new timings and facts came back")
    return kept


def describe_nodes(address: str, machines: list[str]) -> list[dict[str, Any]]:
    """Return the description of each node of a cluster: its types, and its fingerprint."""
    with join(address, machines) as ray:
        remote = ray.remote(num_cpus=0, max_retries=0)(describe_here)
        types: dict[str, list[str]] = {}
        for node in nodes(ray):
            types.setdefault(node.id, []).append(node.machine)
        asked = {id_: remote.options(label_selector={"ray.io/node-id": id_}).remote() for id_ in types}
        try:
            return [{**ray.get(asked[id_], timeout=60), "node": id_, "machines": types[id_]} for id_ in types]
        except Exception as error:
            raise ClusterLost(f"a node does not answer: {error}") from error


def take_rows(database: Database, text: Any, fingerprint: str) -> Moved:
    """Take the timings and facts that a node sends, if they are of its own type and not too many.

    Raises:
        ArtefactError: They are too many, or belong to other machines, and none is taken.
        UsageError: The text holds no timings, and nothing is taken.
    """
    if not isinstance(text, str) or len(text) > _MOST_TEXT or text.count("\n") > MOST_ROWS:
        raise ArtefactError(f"a node sends more than {MOST_ROWS:,} timings and facts; none is taken")
    for line in io.StringIO(text):  # The lines of ``import_lines``: ``splitlines`` also ends one at other characters.
        try:
            told = json.loads(line)
            parts = told["timing"]["parts"] if "timing" in told else told["fact"]["name"] if "fact" in told else {}
            machine = parts["machine"] if "timing" in told else parts.get("machine", fingerprint)
        except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
            continue  # ``import_lines`` says what is wrong with it.
        if machine != fingerprint:
            raise ArtefactError("a node sends timings or facts of machines that are not of its type; none is taken")
    return import_lines(database, io.StringIO(text), "timings of a node")


def _rows_for(db: str, machine: MachineType) -> str:
    """Return the timings of a type of machine as text."""
    with Database(db) as database:
        head, *lines, _ = export_lines(database)
    kept = [line for line in lines if line.startswith('{"timing"') and f'"{machine.fingerprint}"' in line]
    return "\n".join([head, *kept[-MOST_ROWS:], json.dumps({"end": len(kept[-MOST_ROWS:])})]) + "\n"


def _sent(
    ray: Any,
    files: dict[str, bytes],
    job: dict[str, Any],
    limit_s: float,
    patience_s: float,
    say: Callable[[str], None],
) -> Answer:
    """Send a job to nodes of its type until one finishes it or reports a failure."""
    errors = ray.exceptions
    lost = 0
    remote = ray.remote(num_cpus=0, max_retries=0)(compile_here)
    refused: set[str] = set()
    deadline = time.monotonic() + patience_s
    contents = ray.put(files)
    while True:
        fit = [node for node in nodes(ray) if node.machine == job["machine"] and node.id not in refused]
        if not fit:
            if time.monotonic() > deadline:
                raise CollageError(f"no node of type {job['machine']} came for {patience_s:.0f} s")
            time.sleep(_LOOK_S)
            continue
        say(f"compiling on a node of type {job['machine']}")
        selector = {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(refused))})"}} if refused else {}
        reference = remote.options(resources={resource_of(job["machine"]): 0.001, MEASURE: 1}, **selector).remote(
            contents, job
        )
        try:
            answer = read_answer(ray.get(reference, timeout=limit_s))
        except Exception as error:
            with contextlib.suppress(Exception):  # The cluster itself may be lost.
                ray.cancel(reference, force=True)
            reason, lost = f"the node was lost: {first_line(error)}", lost + 1
            is_node = isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError | errors.ObjectLostError)
            if lost >= _TRIES or not is_node:
                raise CollageError(reason) from error
            say(f"{reason}; trying again")
            continue
        if answer.kind != "refused" or answer.node not in {node.id for node in fit}:
            return answer
        say(f"refused a node: {answer.reason}")
        refused.add(answer.node)
