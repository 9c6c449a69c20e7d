"""The queue of graphs that are compiled in the background: one thread, and one process that does the work.

Exporting a graph keeps Python's lock for seconds, and every operator of PyTorch that runs in another thread would wait for
it. So a worker process compiles. It fills the cache of graphs, as a process that waits for its graphs does. It runs at a
low priority. When it has been idle for a while, it ends. It also ends when this process does.
"""

from __future__ import annotations

import atexit
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from collage._errors import CollageError, UsageError
from collage.integrations._argument_copies import ArgumentCopies
from collage.integrations._compiled_graph import CompiledGraph, Variant
from collage.integrations._graph_file import read_graph, write_graph
from collage.integrations._graph_inputs import integer_inputs
from collage.integrations._torch_graph import PureGraph
from collage.report import SpecialisedRow
from collage.runtime import Executable
from collage.system.codec import from_json
from collage.system.forks import in_forks
from collage.system.scratch import make_scratch, remove_scratch
from collage.workers.worker import Worker

__all__ = ["CallerState", "CompileRequest", "CompileService", "Queue", "background"]

_IDLE_S = 20.0
"""Seconds after which the idle process ends. It takes about five seconds to start."""

_LONGEST_S = 6 * 3600.0
"""Seconds after which a process that does not answer is killed."""

_END_S = 5.0
"""Seconds that the end of this process waits for the thread, which may be loading a library."""

# A tenth of the share of the calls of the user, if both want all cores. At the lowest priority it may never finish.
_NICENESS = 10
_SERVICE = "collage.integrations._background:CompileService"
_GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class CallerState:
    """The state of PyTorch that results or speed depend on, in the thread that calls.

    Attributes:
        threads: Number of PyTorch's threads.
        dtype: Type of new tensors.
        autocast: Type of operators under autocast; empty if that is off.
    """

    threads: int
    dtype: str
    autocast: str

    @staticmethod
    def here() -> CallerState:
        """Return that of this thread."""
        autocast = str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else ""
        return CallerState(torch.get_num_threads(), str(torch.get_default_dtype()), autocast)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread run operators in the same way, without gradients."""
        autocast = _dtype(self.autocast) if self.autocast else torch.bfloat16
        with torch.no_grad(), torch.autocast("cpu", autocast, enabled=bool(self.autocast)):
            yield


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """The facts that the process needs beside the graph and its arguments.

    Attributes:
        graph_key: Name of the graph in the cache.
        cache_dir: Folder of the cache.
        options: Options of ``torch.compile``.
        mode: Its mode.
        changed: Positions of weights that were changed, once for each change.
        state: The state of PyTorch.
        specialises: The graph, which is in the cache, gets a plan for the lengths of the arguments.
    """

    graph_key: str
    cache_dir: str
    options: dict[str, Any]
    mode: str | None
    changed: tuple[int, ...]
    state: CallerState
    specialises: bool = False


class Queue:
    """Jobs that run one after the other in a thread, which starts with the first one and ends after the last one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._worker = Worker(_SERVICE)
        self._folder: Path | None = None
        self._is_ending = False
        self._process = os.getpid()

    def put(self, job: Callable[[], None]) -> None:
        """Add a job."""
        with self._lock:
            self._jobs.put(job)
            if self._thread is None and not self._is_ending:
                self._thread = threading.Thread(target=self._work, name="collage background", daemon=True)
                self._thread.start()

    @property
    def folder(self) -> Path:
        """A folder that lasts as long as this process."""
        with self._lock:
            if self._folder is None:
                self._folder = make_scratch()
            return self._folder

    def compile(self, request: CompileRequest, graph: torch.fx.GraphModule, copies: ArgumentCopies) -> dict[str, Any]:
        """Have the process compile a graph into the cache, and return its answer; see ``CompileService.compile``.

        Raises:
            ModelError: The graph cannot be sent to another process.
            ToolchainError: The process ended.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            write_graph(graph, folder / _GRAPH)
            copies.write(folder)
            answer: dict[str, Any] = self._worker.call(
                "compile", _LONGEST_S, folder=str(folder), request=asdict(request)
            )
            return answer
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def end(self) -> None:
        """Kill the process with everything that it started, and take no more jobs."""
        if os.getpid() != self._process:
            return  # A fork, which has none of it.
        self._is_ending = True
        self._jobs.put(_nothing)  # The thread may be waiting for one.
        self._worker.interrupt()
        if self._thread is not None:
            self._thread.join(_END_S)
        self._worker.kill()
        if self._folder is not None:
            remove_scratch(self._folder)

    def _work(self) -> None:
        while not self._is_ending:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._worker.kill()
                        self._thread = None
                        return
                continue
            job()


_queue: list[Queue] = []
_queue_lock = threading.Lock()


def background() -> Queue:
    """Return the queue of this process."""
    with _queue_lock:
        if not _queue:
            _queue.append(Queue())
            atexit.register(_queue[0].end)
        return _queue[0]


class CompileService:
    """The service of the process."""

    def __init__(self) -> None:
        # Calls of the user are not to be slowed down. Processes that measure inherit it.
        os.nice(_NICENESS)

    def compile(self, folder: str, request: dict[str, Any]) -> dict[str, Any]:
        """Compile a graph, compare its results with PyTorch's, race with PyTorch, and note all that in the cache.

        Returns:
            ``lines`` tell the decisions. ``left`` are the reasons for which it is left to PyTorch. ``wrong`` is an error in
            the options.
        """
        known: CompileRequest = from_json(CompileRequest, request)
        torch.set_num_threads(known.state.threads)
        torch.set_default_dtype(_dtype(known.state.dtype))
        compiled = _RequestedGraph(read_graph(Path(folder) / _GRAPH), known)
        wrong = ""
        with known.state.entered():
            try:
                compiled(*ArgumentCopies.read(Path(folder)))
            except UsageError as error:
                wrong = str(error)
        return {"lines": compiled.lines, "left": compiled.left, "wrong": wrong}


class _RequestedGraph(CompiledGraph):
    """A graph of another process."""

    _keeps_changed = True

    def __init__(self, graph: torch.fx.GraphModule, known: CompileRequest) -> None:
        super().__init__(graph, {**known.options, "cache_dir": known.cache_dir}, known.mode)
        self._graph_key = known.graph_key
        self._changes.update(known.changed)
        self._specialises = known.specialises
        self.lines: list[str] = []
        self.left: list[str] = []

    def _compile(self, pure: PureGraph, arguments: Sequence[Any], bound: Sequence[int]) -> Variant:
        variant = super()._compile(pure, arguments, bound)
        if self._specialises and self._cache is not None and variant.key is not None:
            lengths = pure.lengths(arguments)
            try:
                row = self._specialise(variant.executable, [arguments[i] for i in variant.varying])
                self._check(pure, variant, arguments, self._computed(pure, variant, arguments))
                self._cache.keep(variant.key, variant.executable)
            except CollageError as error:
                row = SpecialisedRow({}, reason=str(error))
                variant = super()._compile(pure, arguments, bound)  # Without the plan.
            gain = row.reason or f"{row.ratio.value if row.ratio else 1.0:.2f} times as fast"
            self._tell(f"a plan for the lengths {lengths}: {gain}")
            variant.specialised = (*variant.specialised, lengths)
            self._note_lengths(variant)
        return variant

    def _specialise(self, executable: Executable, arguments: Sequence[Any]) -> SpecialisedRow:
        """Add a plan for the lengths of these arguments if it is faster there."""
        from collage.compiler.pipeline import specialise  # Late: the compiler takes seconds to import.

        options, names = self._settings["options"], [port.name for port in executable.inputs]
        shapes = {n: tuple(v.shape) for n, v in zip(names, arguments, strict=True) if isinstance(v, torch.Tensor)}
        options = replace(options, inputs={**integer_inputs(names, arguments), **options.inputs})
        return specialise(executable, shapes, self._settings["targets"], options=options)

    def _check_lengths(self, arguments: Any) -> None:
        """Do nothing: the other process has done it."""

    def _tell(self, line: str) -> None:
        self.lines.append(line)

    def _warn(self, reason: str) -> None:
        self.left.append(reason)


def _nothing() -> None: ...


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))


in_forks(_queue.clear)  # A fork has no thread of the queue.
