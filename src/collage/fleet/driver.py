"""The driver: hands tasks to Ray, and keeps the results.

Everything that must not be lost is in the database and in the output folder. So the command may end at any moment, as Ray's
own code has it do when the head is gone. The same command continues.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collage._errors import ArtefactError, CollageError
from collage._version import __version__
from collage.fleet.answers import Answer, read_answer
from collage.fleet.cluster import MEASURE, ClusterLost, Node, first_line, nodes, resource_of
from collage.fleet.models import read_files
from collage.fleet.node import compile_here
from collage.fleet.orders import Order, Work
from collage.fleet.returned import keep, most_bytes
from collage.fleet.tasks import Task, TaskStore, as_planned

__all__ = ["Driver"]

_LOOK_S = 1.0
_GRACE_S = 60.0
"""Seconds that starting a task may take besides its own limit."""
_FINAL_CODES = frozenset((2, 3, 4, 5))
"""Exit codes for faults of the model or the options. A second node tries such a task once more."""


@dataclass(slots=True)
class _Flight:
    """A task under way.

    Attributes:
        work: The task.
        deadline_s: When it must be back, by the monotonic clock.
        is_late: True if it was not, and was called off.
    """

    work: Work
    deadline_s: float
    is_late: bool = False


@dataclass(slots=True)
class _Queue:
    """The tasks of one type of machine.

    Attributes:
        waiting: Tasks that are to be handed out.
        flying: Number of those under way.
        refused: Nodes whose hardware differs from their stated type.
        is_missed: True if a message said that there is no such node.
    """

    waiting: deque[Work] = field(default_factory=deque)
    flying: int = 0
    refused: set[str] = field(default_factory=set)
    is_missed: bool = False


class Driver:
    """Hands out tasks until all are settled.

    Args:
        order: The tasks, and the limits that they run under.
        store: The states of the tasks.
        ray: The module, connected.
        say: Called with each line of progress.
        function: The work of a node.
    """

    def __init__(
        self,
        order: Order,
        store: TaskStore,
        ray: Any,
        say: Callable[[str], None],
        function: Callable[[dict[str, bytes], Mapping[str, Any]], dict[str, Any]] = compile_here,
    ) -> None:
        self._order = order
        self._store = store
        self._ray = ray
        self._say = say
        self._settled = 0
        self._remote = ray.remote(num_cpus=0, max_retries=0)(function)
        self._queues = {name: _Queue() for name in order.machines}
        known = {task.digest: task for task in store.of([each.task.digest for each in order.work])}
        self._tasks = {each.task.digest: as_planned(known[each.task.digest], each.task) for each in order.work}
        for each in order.work:
            if known[each.task.digest].state in ("waiting", "running"):
                self._queues[each.task.machine].waiting.append(each)
        self._flights: dict[Any, _Flight] = {}
        self._avoided: dict[str, set[str]] = {}
        self._models: dict[str, Any] = {}
        self._nodes: list[Node] = []
        self._looked_s = -_LOOK_S
        self._moved_s = time.monotonic()

    def run(self) -> None:
        """Hand out tasks until all are settled.

        Raises:
            ClusterLost: The cluster does not answer.
            CollageError: Nothing was settled for too long.
        """
        while self._flights or any(queue.waiting for queue in self._queues.values()):
            if time.monotonic() - self._looked_s >= _LOOK_S:
                self._look()
            self._hand_out()
            if self._flights:
                self._moved_s = time.monotonic()
            self._collect()
            if time.monotonic() - self._moved_s > self._order.patience_s and not self._flights:
                missing = ", ".join(sorted(name for name, queue in self._queues.items() if queue.waiting))
                raise CollageError(f"no node for {missing} came for {self._order.patience_s:.0f} s")

    def _look(self) -> None:
        """See which nodes there are, which tasks were cancelled, and which are overdue."""
        self._looked_s = now_s = time.monotonic()
        self._nodes = nodes(self._ray)
        cancelled = self._store.cancelled(str(self._order.folder))
        for queue in self._queues.values():
            queue.waiting = deque(work for work in queue.waiting if work.task.digest not in cancelled)
        for reference, flight in self._flights.items():
            is_overdue = now_s > flight.deadline_s and not flight.is_late
            flight.is_late |= is_overdue
            if is_overdue or flight.work.task.digest in cancelled:
                self._ray.cancel(reference, force=True)

    def _hand_out(self) -> None:
        """Give each type as many tasks as its nodes take at once, so that each begins when it is handed out."""
        most = sum({node.id: node.slots for node in self._nodes}.values())
        for name, queue in self._queues.items():
            fit = [node for node in self._nodes if node.machine == name and node.id not in queue.refused]
            slots = sum(node.slots for node in fit)
            if queue.waiting and not slots and not queue.is_missed:
                queue.is_missed = True
                self._say(f"waiting for a node of type {name}")
            # A node may be of several types, and takes no more for that.
            while queue.waiting and queue.flying < slots and len(self._flights) < most:
                self._start(queue.waiting.popleft(), queue, {node.id for node in fit})
                queue.is_missed = False

    def _start(self, work: Work, queue: _Queue, there: set[str]) -> None:
        self._tasks[work.task.digest] = self._store.change(self._tasks[work.task.digest], state="running")
        if self._tasks[work.task.digest].state == "cancelled":
            return
        task, machine = work.task, self._order.machines[work.task.machine]
        avoided = self._avoided.setdefault(task.digest, set())
        if avoided >= there:
            avoided.clear()
        job = {
            "machine": machine.name,
            "fingerprint": machine.fingerprint,
            "collage": __version__,
            "options": dict(machine.options),
            "db": self._order.db,
            "limit_s": self._order.limit_s,
            "most_bytes": most_bytes(work.model),
        }
        not_there = sorted((avoided | queue.refused) & {node.id for node in self._nodes})
        try:
            if task.model not in self._models:
                self._models[task.model] = self._ray.put(read_files(work.model))
            reference = self._remote.options(
                resources={resource_of(machine.name): 0.001, MEASURE: 1},
                **({"label_selector": {"ray.io/node-id": f"!in({','.join(not_there)})"}} if not_there else {}),
            ).remote(self._models[task.model], job)
        except CollageError as error:
            return self._settle_failure(work, str(error), is_final=True)
        except Exception as error:
            raise ClusterLost(f"Ray takes no task: {error}") from error
        self._flights[reference] = _Flight(work, time.monotonic() + self._order.limit_s + _GRACE_S)
        queue.flying += 1

    def _collect(self) -> None:
        """Take the results that have arrived."""
        if not self._flights:
            time.sleep(_LOOK_S / 4)
            return
        references = list(self._flights)
        try:
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
            if not ready:
                ready, _ = self._ray.wait(references, num_returns=1, timeout=_LOOK_S)
        except Exception as error:
            raise ClusterLost(f"Ray does not answer: {error}") from error
        for reference in ready:
            flight = self._flights.pop(reference)
            self._moved_s = time.monotonic()
            self._queues[flight.work.task.machine].flying -= 1
            self._land(reference, flight)
            self._forget(flight.work.task.model)

    def _land(self, reference: Any, flight: _Flight) -> None:
        errors = self._ray.exceptions
        work = flight.work
        try:
            found = self._ray.get(reference)
        except errors.RayTaskError as error:
            self._settle_failure(work, str(error).strip().splitlines()[-1])
        except errors.TaskCancelledError:
            self._settle_called_off(flight)
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        ) as error:
            if flight.is_late:
                self._settle_called_off(flight)
            else:
                self._settle_failure(work, f"the node was lost: {type(error).__name__}")
        except errors.TaskUnschedulableError:
            self._queues[work.task.machine].waiting.append(work)
        except Exception as error:
            if not isinstance(error, errors.RayError):
                raise ClusterLost(f"Ray lost a task: {error}") from error
            nodes(self._ray)  # It raises if the cluster is lost, and else the answer is at fault.
            self._settle_failure(work, f"the answer of a node cannot be read: {first_line(error)}")
        else:
            self._settle(work, read_answer(found))

    def _settle(self, work: Work, answer: Answer) -> None:
        queue = self._queues[work.task.machine]
        # A node that gives another name each time would be handed the task for ever.
        is_known = answer.node in {node.id for node in nodes(self._ray)} - queue.refused
        if answer.kind == "refused" and is_known:
            queue.refused.add(answer.node)
            queue.waiting.appendleft(work)
            self._say(f"refused a node: {answer.reason}")
            return
        self._avoided.setdefault(work.task.digest, set()).add(answer.node)
        if answer.kind != "done":
            is_final = answer.code in _FINAL_CODES
            return self._settle_failure(work, answer.reason, answer.host, is_final=is_final)
        task = self._tasks[work.task.digest]
        try:
            kept = keep(answer.artefact, work.model, self._order.machines[task.machine], self._order.folder / task.file)
        except ArtefactError as error:
            return self._settle_failure(work, f"{answer.host}: {error}", answer.host)
        self._finish(
            work,
            state="done",
            reason="",
            node=answer.host,
            artefact=kept.digest,
            time_us=kept.time_us,
            gain=kept.gain,
            versions=kept.versions,
            took_s=answer.took_s,
        )

    def _settle_called_off(self, flight: _Flight) -> None:
        if flight.is_late:
            self._settle_failure(flight.work, f"did not come back within {self._order.limit_s:.0f} s")
        else:
            self._finish(flight.work, state="cancelled", reason="cancelled")

    def _settle_failure(self, work: Work, reason: str, where: str = "", *, is_final: bool = False) -> None:
        task = self._tasks[work.task.digest]
        tries = task.tries + 1
        if tries < (min(2, self._order.tries) if is_final else self._order.tries):
            task = self._store.change(task, state="waiting", tries=tries, reason=reason, node=where)
            self._tasks[task.digest] = task
            if task.state == "cancelled":
                return
            self._queues[task.machine].waiting.append(work)
            self._say(f"{task.name} for {task.machine}: {reason}; trying again")
        else:
            self._finish(work, state="failed", tries=tries, reason=reason, node=where)

    def _finish(self, work: Work, **changes: Any) -> None:
        task = self._store.change(self._tasks[work.task.digest], **changes)
        self._tasks[task.digest] = task
        self._settled += 1
        self._say(f"[{self._settled}/{len(self._order.work)}] {_told(task)}")

    def _forget(self, model: str) -> None:
        """Let go of a model that no task under way needs: Ray then frees it."""
        if all(flight.work.task.model != model for flight in self._flights.values()):
            self._models.pop(model, None)


def _told(task: Task) -> str:
    where = f"{task.name} for {task.machine}"
    if task.state != "done":
        return f"{where}: {task.state}: {task.reason}"
    return f"{where}: {task.file}" + ("" if task.time_us is None else f", {task.time_us / 1e3:.3f} ms")
