"""A cluster that consists of this process, in which each task comes to the end that a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """The base of all others."""


ERRORS = SimpleNamespace(
    RayError=RayError,
    **{
        name: type(name, (RayError,), {})
        for name in (
            "RayTaskError",
            "TaskCancelledError",
            "WorkerCrashedError",
            "NodeDiedError",
            "OutOfMemoryError",
            "ObjectLostError",
            "TaskUnschedulableError",
        )
    },
)


class Reference:
    def __init__(self, node: str, job: Mapping[str, Any], files: dict[str, bytes]) -> None:
        self.node, self.job, self.files = node, job, files
        self.is_cancelled = False


class FakeRay:
    """Ray as the driver sees it.

    Args:
        ends: Called with the node, the job and the files when a task is waited for; returns what the node sends, raises what
            Ray raises, or returns None as long as the task is under way.
        nodes: The type of each node.
    """

    exceptions = ERRORS

    def __init__(self, ends: Callable[[Reference], Any], nodes: Mapping[str, str]) -> None:
        self.ends = ends
        self.types = dict(nodes)
        self.busy: list[Reference] = []
        self.most_at_once = 0
        self.started: list[tuple[str, str]] = []
        self.held = 0

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "NodeManagerAddress": name,
                "Alive": True,
                "Resources": {f"machine:{type_}": 1.0, "measure": 1.0, "CPU": 1.0},
            }
            for name, type_ in self.types.items()
        ]

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda function: SimpleNamespace(options=self._options)

    def _options(self, resources: Mapping[str, float], label_selector: Mapping[str, str] | None = None) -> Any:
        (type_,) = [name.removeprefix("machine:") for name in resources if name.startswith("machine:")]
        avoided = (label_selector or {}).get("ray.io/node-id", "!in()")[4:-1].split(",")

        def remote(files: Any, job: Mapping[str, Any]) -> Reference:
            taken = {reference.node for reference in self.busy}
            free = [n for n, its in self.types.items() if its == type_ and n not in avoided and n not in taken]
            assert free, "handed out more than the nodes take"
            reference = Reference(free[0], job, files)
            self.busy.append(reference)
            self.most_at_once = max(self.most_at_once, len(self.busy))
            self.started.append((free[0], job["machine"]))
            return reference

        return SimpleNamespace(remote=remote)

    def put(self, value: Any) -> Any:
        return value

    def wait(self, references: list[Reference], num_returns: int, timeout: float) -> tuple[list[Reference], Any]:
        ready = [reference for reference in references if reference.is_cancelled or self._end(reference) is not None]
        return ready, [reference for reference in references if reference not in ready]

    def _end(self, reference: Reference) -> Any:
        try:
            return self.ends(reference)
        except Exception as error:
            return error

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        self.busy.remove(reference)
        if reference.is_cancelled:
            raise ERRORS.TaskCancelledError
        end = self._end(reference)
        if isinstance(end, Exception):
            raise end
        return end

    def cancel(self, reference: Reference, force: bool) -> None:
        assert force
        reference.is_cancelled = True
