"""Ray, as far as fleets use it: joining a cluster, its nodes, and the errors by which it is lost."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._distribution import WHERE, install_command
from collage._errors import CollageError, UsageError
from collage.fleet.machines import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MEASURE", "ClusterLost", "Node", "first_line", "join", "nodes", "resource_of", "token_environment"]

MEASURE = "measure"
"""The resource of a node that each task takes one of: as many models are compiled there at once. One is right."""

_STORE_BYTES = 256 << 20
_PREFIX = "machine:"
_ASKED_S = 15.0
_TOKEN_FILE = ".ray/auth_token"


class ClusterLost(CollageError):
    """The cluster does not answer, or has gone."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node that measures.

    Attributes:
        id: Ray's name for it.
        host: Its address.
        machine: Its type, as it states.
        slots: Number of tasks that it takes at once.
    """

    id: str
    host: str
    machine: str
    slots: int


def resource_of(machine: str) -> str:
    """Return the Ray resource that nodes of a type have."""
    return f"{_PREFIX}{machine}"


@contextmanager
def join(address: str, machines: Iterable[str] = (), slots: int = 1) -> Iterator[Any]:
    """Join a cluster within the ``with``, and return Ray's module.

    Args:
        address: ``ray://HOST:PORT``, ``HOST:PORT`` or ``auto``; ``local`` starts Ray on this machine.
        machines: The types that this machine is of if Ray is started here.
        slots: The number of tasks at once if Ray is started here.

    Raises:
        UsageError: Ray is not installed.
        ClusterLost: There is no cluster at this address.
    """
    if address != LOCAL:
        os.environ.update(token_environment(address))
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # What is timed must not give way to everything else.
        import ray
    except ImportError as error:
        raise UsageError(f"a fleet needs the package {error.name}: {install_command('fleet')}{WHERE}") from error
    resources = {**{resource_of(name): 1.0 for name in machines}, MEASURE: float(slots)}
    # One processor for each task: Ray starts a worker in advance for each processor that it is told of.
    own: Mapping[str, Any] = {
        "num_cpus": slots,
        "resources": resources,
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
    }
    try:
        with warnings.catch_warnings(action="ignore"):  # The error below says the same.
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(own if address == LOCAL else {}),
            )
    except Exception as error:
        raise ClusterLost(f"cannot reach Ray at {address}: {first_line(error)}{_token_hint(address, error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def nodes(ray: Any) -> list[Node]:
    """Return the living nodes that measure, one entry for each type that a node has.

    Raises:
        ClusterLost: The cluster does not answer.
    """
    try:
        told = ray.nodes()
    except Exception as error:
        raise ClusterLost(f"Ray does not answer: {first_line(error)}") from error
    return [
        Node(each["NodeID"], each["NodeManagerAddress"], name.removeprefix(_PREFIX), int(each["Resources"][MEASURE]))
        for each in told
        if each["Alive"] and each["Resources"].get(MEASURE, 0) >= 1
        for name in each["Resources"]
        if name.startswith(_PREFIX)
    ]


def token_environment(address: str) -> dict[str, str]:
    """Return the variable that has Ray send the token of this user, if there is one and the cluster wants it.

    Ray makes a token where it starts a cluster, and refuses callers and nodes without it. By itself it sends the token
    only to a cluster that it finds on this machine. A client with a token also demands one, so nodes of an open cluster
    could not answer it. So the head is asked first. Its server for clients ignores the token if the cluster is open.
    """
    if not _token_place() or os.environ.get("RAY_AUTH_MODE"):
        return {}
    return {"RAY_AUTH_MODE": "disabled" if not address.startswith("ray://") and _is_open(address) else "token"}


def _is_open(address: str) -> bool:
    """Return True if the head of a cluster answers without a token. Ray reads its mode once in each process."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    try:
        asked = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASKED_S)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def _token_place() -> str | None:
    """Return the place of the token that Ray would send: the order is Ray's."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if os.environ.get(name):
            return name
    file = Path.home() / _TOKEN_FILE
    return f"~/{_TOKEN_FILE}" if file.is_file() else None


def _token_hint(address: str, error: Exception) -> str:
    """Return advice about the token for a message. If a cluster refuses it, Ray only reports that it cannot connect."""
    if address == LOCAL or type(error) is not ConnectionError:
        return ""
    place = _token_place()
    if place is None:
        return f". There is no token here: if the cluster has one, copy ~/{_TOKEN_FILE} of its head to this machine"
    return f". The token in {place} was sent: it must be that of the cluster's head"


def first_line(error: BaseException) -> str:
    """Return a short form of an error of Ray, which may be long."""
    return " ".join(str(error).split())[:300] or type(error).__name__
