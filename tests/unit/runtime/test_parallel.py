"""Kernels on devices: wiring against a dictionary, parallelism by rendezvous, errors, affinities, scopes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import ToolchainError
from collage.report import Report
from collage.runtime import CopyRecord, DeviceLayout, KernelRecord, Port, Recipe, Step
from collage.runtime._parallel import (
    CoreSets,
    DeviceExecutor,
    PlacedStep,
    checked_steps,
    devices_used,
    missing_cores,
    shared_memory_steps,
)
from collage.toolchains import Compiled

ONE, TWO = "cpu:0", "cpu:1"


class Calls:
    """A kernel from a function of arrays."""

    reuses_outputs = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        made = self._function(*inputs)
        return made if isinstance(made, tuple) else (made,)


def step(
    device: str, name: str, function: Callable[..., Any], reads: Sequence[str], makes: Sequence[str]
) -> PlacedStep:
    return PlacedStep(Step(name, Calls(function), tuple(reads), tuple(makes)), device)


@pytest.fixture
def devices() -> CoreSets:
    return CoreSets({ONE: (), TWO: ()})


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_wiring_computes_what_a_dictionary_does(data: st.DataObject) -> None:
    names = ["x0", "x1"]
    expected = {"x0": 3, "x1": 5}
    steps = []
    for i in range(data.draw(st.integers(1, 14))):
        reads = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        weight = data.draw(st.integers(-3, 3))

        def compute(*given: int, weight: int = weight) -> tuple[int, int]:
            total = sum(given) + weight
            return total % 1009, (total * 7) % 1009

        makes = [f"v{i}", f"w{i}"]
        device = data.draw(st.sampled_from([ONE, TWO, "cuda:0"]))
        steps.append(step(device, f"k{i}", compute, reads, makes))
        expected |= dict(zip(makes, compute(*(expected[name] for name in reads)), strict=True))
        names += makes
    outputs = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    executor = DeviceExecutor(steps, ["x0", "x1"], outputs, CoreSets(dict.fromkeys([ONE, TWO, "cuda:0"], ())))
    for _ in range(3):
        assert list(executor.run([3, 5])) == [expected[name] for name in outputs]
    made, spans = executor.trace([3, 5])
    assert list(made) == [expected[name] for name in outputs]
    assert len(spans) == len(steps)
    assert all(0 < began <= ended for began, ended in spans)


def test_independent_kernels_of_two_devices_run_at_once(devices: CoreSets) -> None:
    meeting = threading.Barrier(2, timeout=60)

    def meet(x: int) -> int:
        meeting.wait()
        return x + 1

    steps = [step(ONE, "a", meet, ["x"], ["p"]), step(TWO, "b", meet, ["x"], ["q"])]
    steps.append(step(ONE, "c", lambda p, q: p + q, ["p", "q"], ["y"]))
    # One after the other, the first would wait for the second for ever.
    assert list(DeviceExecutor(steps, ["x"], ["y"], devices).run([1])) == [4]


def test_a_ready_kernel_does_not_wait_for_one_that_is_not(devices: CoreSets) -> None:
    second_is_done = threading.Event()

    def slow(x: int) -> int:
        assert second_is_done.wait(60)
        return x

    steps = [
        step(TWO, "slow", slow, ["x"], ["p"]),
        step(ONE, "waits", lambda p: p + 1, ["p"], ["q"]),
        step(ONE, "ready", lambda x: (second_is_done.set(), x)[1], ["x"], ["r"]),
    ]
    assert list(DeviceExecutor(steps, ["x"], ["q", "r"], devices).run([5])) == [6, 5]


def test_an_error_ends_the_run_when_all_is_at_rest_and_the_next_run_is_right(devices: CoreSets) -> None:
    state = {"fail": True, "busy": False}

    def failing(x: int) -> int:
        if state["fail"]:
            raise ToolchainError("kernel k gave up")
        return x

    def slow(x: int) -> int:
        state["busy"] = True
        time.sleep(0.1)
        state["busy"] = False
        return x

    steps = [
        step(ONE, "k", failing, ["x"], ["p"]),
        step(TWO, "slow", slow, ["x"], ["q"]),
        step(ONE, "last", lambda p, q: p + q, ["p", "q"], ["y"]),
    ]
    executor = DeviceExecutor(steps, ["x"], ["y"], devices)
    with pytest.raises(ToolchainError, match="kernel k gave up"):
        executor.run([1])
    assert not state["busy"]
    state["fail"] = False
    assert list(executor.run([2])) == [4]


def test_a_run_that_is_interrupted_twice_ends_when_all_is_at_rest(devices: CoreSets) -> None:
    interrupts: list[int] = []
    at_rest: list[bool] = []

    def interrupt(*_: object) -> None:
        interrupts.append(1)
        raise KeyboardInterrupt

    def slow(x: int) -> int:
        for count in (1, 2):
            while len(interrupts) < count:  # A signal just before the main thread waits is handled after the next one.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(0.05)
        time.sleep(0.1)
        at_rest.append(True)
        return x + 1

    executor = DeviceExecutor([step(ONE, "a", slow, ["x"], ["y"])], ["x"], ["y"], devices)
    usual = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            executor.run([1])
        assert at_rest == [True]
    finally:
        signal.signal(signal.SIGINT, usual)


def test_the_host_stands_in_for_a_kernel_that_fails(devices: CoreSets) -> None:
    class Host:
        def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
            return [np.zeros(0)]

        def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
            assert str(error) == "no"
            return [10 * inputs[0]]

    def failing(x: Any) -> Any:
        raise RuntimeError("no")

    executor = DeviceExecutor([step(TWO, "k", failing, ["x"], ["y"])], ["x"], ["y"], devices, Host())
    assert list(executor.run([4])) == [40]
    assert executor.run_empty([np.ones((0, 3))])[0].shape == (0,)


def test_a_kernel_that_returns_too_little_is_named(devices: CoreSets) -> None:
    executor = DeviceExecutor([step(ONE, "k", lambda x: (x,), ["x"], ["y", "z"])], ["x"], ["y"], devices)
    with pytest.raises(ToolchainError, match="k returned 1 values of 2"):
        executor.run([4])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin threads")
def test_a_device_is_its_cores_and_the_caller_keeps_his() -> None:
    core = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    seen = DeviceExecutor(
        [step(TWO, "k", lambda x: os.sched_getaffinity(0), ["x"], ["y"])], ["x"], ["y"], CoreSets({TWO: (core,)})
    ).run([1])
    assert list(seen) == [{core}]
    assert os.sched_getaffinity(0) == before


def test_threads_end_with_their_executor() -> None:
    executor = DeviceExecutor(
        [step(ONE, "k", lambda x: x, ["x"], ["y"])], ["x"], ["y"], CoreSets({"cpu:77": (), ONE: ()})
    )
    executor.run([1])
    threads = [thread for thread in threading.enumerate() if thread.name == "collage cpu:77"]
    assert len(threads) == 1
    del executor
    gc.collect()
    threads[0].join(60)
    assert not threads[0].is_alive()


def kernel(name: str, device: str, reads: dict[str, str | None], makes: str) -> KernelRecord:
    compiled = Compiled("fake", "llvm -compiler=fake", ("f",), tuple(reads), (makes,))
    return KernelRecord(
        name, "llvm -compiler=fake", tuple(reads), (makes,), compiled, device, tuple(reads.values()), (device,)
    )


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        (Port("x", "float32", (2,)),),
        (Port("y", "float32", (2,)),),
        (kernel("a", TWO, {"x": TWO}, "p"), kernel("b", ONE, {"p_here": ONE}, "y")),
        0,
        "model.onnx",
        {},
        {},
        Report(),
        DeviceLayout({ONE: (0,), TWO: (1,)}, (CopyRecord("p", "p_here", TWO, ONE),), {"x": TWO}),
    )


def test_a_recipe_with_devices_is_read_as_it_was_written(recipe: Recipe) -> None:
    assert Recipe.from_json(recipe.as_json()) == recipe
    recipe.check_wiring()


def test_without_devices_a_recipe_says_nothing_of_them() -> None:
    bare = KernelRecord("k", "llvm", ("x",), ("y",), Compiled("tvm", "llvm", ("f",), ("x",), ("y",)))
    data = Recipe((), (), (bare,), 0, "m.onnx", {}, {}).as_json()
    assert "devices" not in data
    assert {"device", "reads", "writes"}.isdisjoint(data["kernels"][0])


def test_copies_cost_nothing_where_memory_is_shared_and_copy_in_debug_mode(recipe: Recipe, devices: CoreSets) -> None:
    seen = []

    def keep(x: Any) -> Any:
        seen.append(x)
        return x

    kernels = [Calls(keep), Calls(keep)]
    for make, is_same in ((shared_memory_steps, True), (checked_steps, False)):
        steps, outputs = make(recipe, kernels)
        arrivals = None if is_same else recipe.devices.inputs
        DeviceExecutor(steps, ["x"], outputs, devices, arrivals=arrivals).run([np.ones(2)])
        assert (seen[-1] is seen[-2]) == is_same


def test_a_tensor_of_another_scope_is_refused_in_debug_mode(recipe: Recipe, devices: CoreSets) -> None:
    steps, outputs = checked_steps(recipe, [Calls(lambda x: x), Calls(lambda x: x)])
    executor = DeviceExecutor(steps, ["x"], outputs, devices, arrivals={"x": ONE})
    with pytest.raises(ToolchainError, match=r"a reads 'x' in cpu:1, and got a tensor in cpu:0"):
        executor.run([np.ones(2)])


def test_an_output_may_be_wanted_on_a_device_that_computes_nothing(recipe: Recipe) -> None:
    layout = recipe.devices
    delivered = CopyRecord("y", "y_there", ONE, "cpu:2")
    far = replace(
        recipe, outputs=(Port("y_there", "float32", (2,)),), devices=replace(layout, copies=(*layout.copies, delivered))
    )
    steps, outputs = checked_steps(far, [Calls(lambda x: x + 1), Calls(lambda x: 2 * x)])
    devices = CoreSets({name: () for name in devices_used(far)})
    executor = DeviceExecutor(steps, ["x"], outputs, devices, arrivals={"x": TWO})
    np.testing.assert_array_equal(executor.run([np.ones(2)])[0], [4, 4])


def test_a_read_that_no_copy_serves_is_found_before_anything_is_loaded(recipe: Recipe) -> None:
    data = recipe.as_json()
    data["devices"]["copies"] = []
    data["kernels"][1]["inputs"] = ["p"]
    with pytest.raises(ValueError, match="'b' reads 'p' in cpu:0, but it is in cpu:1"):
        Recipe.from_json(data).check_wiring()


def test_cores_that_are_not_here_are_told(recipe: Recipe) -> None:
    assert "device cpu:0 is the cores 4000, and this process may use" in str(
        missing_cores(DeviceLayout({ONE: (4000,)}))
    )
    mine = tuple(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
    assert missing_cores(DeviceLayout({ONE: mine} if mine else {})) is None
