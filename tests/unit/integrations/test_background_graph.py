"""PyTorch serves until a graph is compiled in the background; results are right all the time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import psutil
import pytest
import torch
from tests.unit.integrations.torch_modules import Broadcast, Counter, Normal, Rebound

import collage
import collage.compiler.pipeline
from collage._errors import ToolchainError, UsageError
from collage.frontend import fix_lengths, read_model
from collage.integrations import _background, _background_graph, _compiled_graph
from collage.integrations._argument_copies import ArgumentCopies
from collage.integrations._background import CompileRequest, CompileService, Queue, background
from collage.integrations._graph_file import write_graph
from collage.integrations._torch_options import has_to_wait
from collage.report import Ratio, SpecialisedRow
from collage.testing import executable_of

OPTIONS: dict[str, Any] = {"targets": ["onnxruntime"]}


class Events:
    """The events of the background, which waits at ``gate``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.compiled = 0
        self.runs = 0
        self.break_results = False

    def finish(self) -> None:
        """Let it work, and wait until it has nothing to do."""
        self.gate.set()
        done = threading.Event()
        background().put(done.set)
        assert done.wait(300)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Events]:
    """The work is done in the thread of the queue, and what is exported runs on ONNX Runtime."""
    happened = Events()

    def compile(model: Any, *_: Any, **__: Any) -> Any:
        happened.compiled += 1
        executable = executable_of(model, "onnxruntime")
        executable.recipe = replace(executable.recipe, model={"sha256": "5" * 64})  # Without one, no plan is added.
        return executable

    def compile_here(
        _: Queue, request: CompileRequest, graph: torch.fx.GraphModule, copies: ArgumentCopies
    ) -> dict[str, Any]:
        assert happened.gate.wait(300)
        folder = tmp_path / str(happened.compiled)
        folder.mkdir(exist_ok=True)
        write_graph(graph, folder / "graph")
        copies.write(folder)
        return CompileService.__new__(CompileService).compile(str(folder), asdict(request))

    computed = _compiled_graph.CompiledGraph._computed

    def counted(self: Any, *arguments: Any) -> Any:
        happened.runs += type(self) is _background_graph.BackgroundGraph
        results = computed(self, *arguments)
        return [value + 1 for value in results] if happened.break_results else results

    monkeypatch.setattr(collage.compiler.pipeline, "compile", compile)
    monkeypatch.setattr(Queue, "compile", compile_here)
    monkeypatch.setattr(_compiled_graph.CompiledGraph, "_computed", counted)
    monkeypatch.setattr(_background_graph, "MOST_RACES", 0)
    monkeypatch.setattr(_compiled_graph, "MOST_RACES", 0)
    torch._dynamo.reset()
    _compiled_graph._SEEN.clear()
    yield happened
    happened.finish()


def checked(make: Callable[[], torch.nn.Module]) -> tuple[Any, Any, Callable[[torch.Tensor], None]]:
    """Return a module, the same one compiled, and a function that calls both and compares all that they do."""
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    inner = make()
    compiled = torch.compile(inner, backend="collage", options=OPTIONS)

    def call(x: torch.Tensor) -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x.clone()), plain(x.clone()), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(inner.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)

    return plain, inner, call


def test_pytorch_serves_until_it_is_compiled_and_state_goes_on(events: Events) -> None:
    _, _, call = checked(Counter)
    for _ in range(3):
        call(torch.randn(2))
    assert (events.compiled, events.runs) == (0, 0)
    events.finish()
    for _ in range(3):
        call(torch.randn(2))
    assert (events.compiled, events.runs) == (1, 3)


@pytest.mark.parametrize("wait", [False, True])
def test_a_call_that_pytorch_refuses_too_says_nothing_of_others(events: Events, wait: bool) -> None:
    table = torch.nn.Embedding(4, 2)
    compiled = torch.compile(table, backend="collage", options={**OPTIONS, "wait": wait})
    events.gate.set()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="collage leaves")
        for index in (9, 1, 2, 9, 3):
            indices = torch.tensor([0, index])
            if index == 9:
                with pytest.raises(IndexError):
                    compiled(indices)
            else:
                torch.testing.assert_close(compiled(indices), table(indices))
            events.finish()
    assert events.compiled
    assert wait or events.runs == 3  # The calls after the first good one.


def test_a_buffer_that_is_replaced_at_each_call_becomes_an_input(events: Events) -> None:
    _, _, call = checked(Rebound)
    for _ in range(5):
        call(torch.randn(2, 3))
        events.finish()
    events.runs = 0
    call(torch.randn(2, 3))
    assert events.runs == 1


def test_lengths_that_grow_are_compiled_as_soon_as_two_were_compared(events: Events) -> None:
    _, _, call = checked(Broadcast)
    events.gate.set()
    for length in (2, 4, 5):
        call(torch.randn(length, 3))
        events.finish()
    events.runs = 0
    for length in range(6, 21):
        call(torch.randn(length, 3))
    assert (events.compiled, events.runs) == (2, 15)


@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
def test_lengths_whose_calls_took_long_get_plans(
    events: Events, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_right: bool
) -> None:
    plans: list[int] = []

    def specialise(executable: Any, shapes: Any, *_: Any, **__: Any) -> SpecialisedRow:
        ((name, (length, _)),) = shapes.items()
        plans.append(length)
        model = read_model(executable.workspace / executable.recipe.model_file)
        made = executable_of(
            fix_lengths(model if is_right else doubled(model), {executable.inputs[0].shape[0]: length}), "onnxruntime"
        )
        made.recipe = replace(made.recipe, model=executable.recipe.model)
        row = SpecialisedRow({name: length}, ratio=Ratio(1.5, 1.4, 1.6))
        executable.add_plans([made], replace(executable.report, specialised=(row,)))
        return row

    monkeypatch.setattr(collage.compiler.pipeline, "specialise", specialise)
    events.gate.set()
    module, x = torch.nn.Linear(4, 4).eval(), {length: torch.randn(length, 4) for length in (2, 3, 8)}
    given: dict[str, Any] = {**OPTIONS, "specialise": 2, "cache_dir": tmp_path / "cache"}

    def run(*lengths: int) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="collage", options=given, dynamic=True)
        with torch.no_grad():
            for length in lengths:
                torch.testing.assert_close(compiled(x[length]), module(x[length]))
                events.finish()

    run(2, 2, 3, 3, 3, 2, 8, 8)
    assert plans == [2, 3]
    (artefact,) = (tmp_path / "cache").glob("*.collage")
    assert len(collage.load(artefact).specialised) == 2 * is_right
    run(8, 3, 2)
    assert (events.compiled, len(plans)) == (1, 2)  # As the cache has it.


def test_a_process_that_dies_over_a_plan_costs_only_the_plan(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = Queue.compile, list[bool]()

    def compile_here(queue: Queue, request: CompileRequest, *rest: Any) -> dict[str, Any]:
        asked.append(request.specialises)
        if request.specialises:
            raise ToolchainError("the process ended")
        return plain(queue, request, *rest)

    monkeypatch.setattr(Queue, "compile", compile_here)
    events.gate.set()
    module, x = torch.nn.Linear(4, 4).eval(), torch.randn(3, 4)
    compiled = torch.compile(module, backend="collage", options={**OPTIONS, "specialise": 1}, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="collage leaves")
        for _ in range(5):
            torch.testing.assert_close(compiled(x), module(x))
            events.finish()
    assert asked == [False, True] and events.runs == 4


def doubled(model: Any) -> Any:
    """Return a model whose outputs are twice those of another one."""
    proto = ir.to_proto(model)
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == proto.graph.output[0].name:
                node.output[i] = "half"
    proto.graph.node.append(onnx.helper.make_node("Add", ["half", "half"], [proto.graph.output[0].name]))
    return ir.from_proto(proto)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_weights_that_change_meanwhile_count(events: Events, name: str) -> None:
    plain, inner, call = checked(lambda: Normal(False))
    for number in range(4):
        call(torch.randn(3, 4))
        with torch.no_grad():
            for module in (plain, inner):
                getattr(module.linear, name).add_(number + 1)
        events.finish()
    call(torch.randn(3, 4))
    events.finish()
    events.runs = 0
    call(torch.randn(3, 4))
    assert events.runs == 1


def test_in_inference_mode_it_switches_too(events: Events) -> None:
    module = Normal(False)
    compiled = torch.compile(module, backend="collage", options=OPTIONS)
    with torch.inference_mode():
        x = torch.randn(3, 4)
        compiled(x)
        events.finish()
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert events.runs == 1


def test_several_threads_call(events: Events) -> None:
    module = Normal(False)
    compiled = torch.compile(module, backend="collage", options=OPTIONS)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                with torch.no_grad():
                    x = torch.randn(3, 4)
                    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
        except BaseException as error:
            faults.append(error)

    # PyTorch cannot export in a thread while others call, so both take turns here. Another process exports otherwise.
    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events.finish()
    assert not faults
    assert events.compiled == 1
    assert events.runs == 4 * 30


def test_a_difference_and_an_export_that_fails_are_warned_of_at_a_later_call(events: Events) -> None:
    events.gate.set()
    _, _, call = checked(lambda: Normal(False))
    events.break_results = True
    call(torch.randn(3, 4))
    events.finish()
    with pytest.warns(RuntimeWarning, match="differ"):
        call(torch.randn(3, 4))
    function = torch.compile(lambda x: torch.linalg.eigvals(x).real, backend="collage", options=OPTIONS)
    function(torch.eye(3))
    events.finish()
    with pytest.warns(RuntimeWarning, match="collage leaves a graph to PyTorch"):
        torch.testing.assert_close(function(torch.eye(3)), torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(torch.eye(3))


def test_options_that_another_process_cannot_have_wait() -> None:
    assert not has_to_wait({"targets": ["onnxruntime"], "threads": 2, "dims": {"n": 3}})
    assert has_to_wait({"wait": True})
    assert has_to_wait({"workers": {}})
    torch._dynamo.reset()
    with pytest.raises(UsageError, match=r"need \{'wait': True\}"):
        torch.compile(torch.nn.ReLU(), backend="collage", options={"workers": {}, "wait": False})(torch.ones(2))


EXITS = """
import psutil, sys, time, torch
compiled = torch.compile(torch.nn.Linear(4, 4), backend="collage", options={"targets": ["onnxruntime"], "cache_dir": None})
with torch.no_grad():
    compiled(torch.ones(2, 4))
while len(processes := psutil.Process().children(recursive=True)) < 2:
    time.sleep(0.05)
print(*(process.pid for process in processes))
"""


@pytest.mark.slow
def test_a_process_that_exits_while_it_compiles_leaves_no_others() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", EXITS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLLAGE_DB": "sqlite:///:memory:"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    left = {int(pid) for pid in done.stdout.split()}
    assert len(left) >= 2
    deadline = time.monotonic() + 60
    while left := {pid for pid in left if psutil.pid_exists(pid)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_queue_that_ends_has_neither_thread_nor_folder() -> None:
    queue, done = Queue(), threading.Event()
    folder = queue.folder
    queue.put(done.set)
    assert done.wait(60) and folder.is_dir()
    queue.end()
    assert not folder.exists()
    assert queue._thread is not None and not queue._thread.is_alive()


def test_a_fork_neither_waits_for_a_thread_that_it_lacks_nor_believes_it_at_work() -> None:
    graph = _background_graph.BackgroundGraph(torch.fx.symbolic_trace(torch.nn.ReLU()), OPTIONS, None)
    graph._is_asked = True
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with graph._lock:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    if not (child := os.fork()):
        os._exit(0 if graph._lock.acquire(timeout=5) and not graph.is_being_compiled else 1)
    is_over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert graph.is_being_compiled


def test_the_state_of_a_caller_is_taken_over() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        state = _background.CallerState.here()
    with state.entered():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert not torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
