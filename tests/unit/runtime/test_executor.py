from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.runtime import Executor, Step
from collage.toolchains import Layout


class Fake:
    def __init__(self, function: Callable[..., Sequence[Any]], reuses: bool = False) -> None:
        self.function, self.reuses_outputs = function, reuses
        self.seen: list[Any] = []

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.seen.append(list(inputs))
        return self.function(*inputs)


def step(name: str, kernel: Fake, inputs: str, outputs: str) -> Step:
    return Step(name, kernel, tuple(inputs.split()), tuple(outputs.split()))


def test_values_flow_between_kernels() -> None:
    double, add = Fake(lambda x: [2 * x, -x]), Fake(lambda a, b: [a + b])
    executor = Executor([step("k", double, "x", "a b"), step("l", add, "a x", "y")], ["x"], ["y", "b"])
    y, b = executor.run([np.float32([1, 2])])
    np.testing.assert_array_equal(y, [3, 6])
    np.testing.assert_array_equal(b, [-1, -2])


def test_a_kernel_that_is_the_whole_model_is_called_directly() -> None:
    kernel = Fake(lambda a, b: [a - b])
    executor = Executor([step("k", kernel, "a b", "y")], ["a", "b"], ["y"])
    assert executor.run([5, 3]) == [2]


def test_the_model_s_order_of_inputs_and_outputs_wins() -> None:
    kernel = Fake(lambda b, a: [b, a])
    executor = Executor([step("k", kernel, "b a", "p q")], ["a", "b", "unused"], ["q", "p", "q"])
    assert executor.run(["A", "B", "U"]) == ["A", "B", "A"]


def test_outputs_outlive_the_next_run() -> None:
    memory = np.zeros(2, "f")

    def fill(x: Any) -> Any:
        memory[:] = x
        return [memory]

    executor = Executor([step("k", Fake(fill, reuses=True), "x", "y")], ["x"], ["y"])
    first = executor.run([np.float32(1)])[0]
    executor.run([np.float32(2)])
    np.testing.assert_array_equal(first, [1, 1])


def test_an_output_that_is_an_input_is_a_copy() -> None:
    x = np.ones(2)
    executor = Executor([], ["x"], ["x"])
    result = executor.run([x])[0]
    assert result is not x
    np.testing.assert_array_equal(result, x)


def test_outputs_are_apart_from_inputs_and_each_other_whatever_a_kernel_returns() -> None:
    twice = Executor([step("k", Fake(lambda x: [y := x + 1, y]), "x", "a b")], ["x"], ["a", "b"])
    a, b = twice.run([np.zeros(2)])
    a[:] = 7
    np.testing.assert_array_equal(b, [1, 1])
    part = Executor([step("k", Fake(lambda x: [y := x + 1, y[:1]]), "x", "a b")], ["x"], ["a", "b"])
    a, b = part.run([np.zeros(2)])
    a[:] = 7
    np.testing.assert_array_equal(b, [1])
    x = np.ones(2)
    (y,) = Executor([step("k", Fake(lambda x: [x]), "x", "y")], ["x"], ["y"]).run([x])
    y[:] = 7
    np.testing.assert_array_equal(x, [1, 1])


class Filling:
    """Writes its input into the memory that it is given."""

    layouts = (Layout(np.dtype("f"), (2,)),)
    reuses_outputs = False

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        outputs[0][:] = inputs[0]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [inputs[0].copy()]


def test_a_run_s_own_memory_does_not_leave_it() -> None:
    passes_on = Fake(lambda h: [h])
    steps = [Step("fill", Filling(), ("x",), ("h",)), step("k", passes_on, "h", "y")]
    executor = Executor(steps, ["x"], ["y"])
    (first,) = executor.run([np.ones(2, "f")])
    executor.run([np.full(2, 2, "f")])
    np.testing.assert_array_equal(first, [1, 1])


def test_values_are_let_go_after_their_last_use() -> None:
    made: list[weakref.ref[np.ndarray]] = []

    class Plain:
        reuses_outputs = False

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function = function

        def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
            return [self.function(inputs[0])]

    def make(_: Any) -> Any:
        value = np.ones(10)
        made.append(weakref.ref(value))
        return value

    gone: list[bool] = []
    steps = [
        Step("make", Plain(make), ("x",), ("a",)),
        Step("use", Plain(lambda a: float(a.sum())), ("a",), ("b",)),
        Step("look", Plain(lambda b: gone.append(made[0]() is None) or b), ("b",), ("y",)),
    ]
    assert Executor(steps, ["x"], ["y"]).run([np.ones(1)]) == [10.0]
    assert gone == [True]


@st.composite
def wirings(draw: st.DrawFn) -> tuple[list[tuple[list[str], list[str]]], list[str], list[str]]:
    """Random steps over named values: several outputs, values used twice or never, outputs that are inputs."""
    inputs = [f"x{i}" for i in range(draw(st.integers(1, 3)))]
    values = list(inputs)
    wires = []
    for i in range(draw(st.integers(0, 8))):
        read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        made = [f"v{i}_{j}" for j in range(draw(st.integers(1, 3)))]
        wires.append((read, made))
        values += made
    return wires, inputs, draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))


def mix(read: Sequence[Any], count: int) -> list[Any]:
    return [sum(read) * (j + 2) + j for j in range(count)]


class Instead:
    """A host that computes the same."""

    def __init__(self, wires: list[tuple[list[str], list[str]]]) -> None:
        self.wires, self.asked = wires, 0

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        self.asked += 1
        return mix(inputs, len(self.wires[position][1]))

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        return self.run(position, inputs)


@given(wirings(), st.booleans(), st.sets(st.integers(0, 7)), st.integers(0, 2))
def test_random_wirings_equal_a_dictionary(
    wiring: tuple[list[tuple[list[str], list[str]]], list[str], list[str]], reuses: bool, broken: set[int], size: int
) -> None:
    """Whether memory is reused, kernels fail, or tensors are empty."""
    wires, inputs, outputs = wiring

    def kernel(position: int, count: int) -> Fake:
        memory = [np.zeros(size) for _ in range(count)]

        def call(*read: Any) -> list[Any]:
            if position in broken:
                raise ValueError("broken")
            made = mix(read, count)
            if not reuses:
                return made
            for place, value in zip(memory, made, strict=True):
                place[:] = value
            return list(memory)

        return Fake(call, reuses)

    host = Instead(wires)
    steps = [Step(f"k{i}", kernel(i, len(made)), tuple(read), tuple(made)) for i, (read, made) in enumerate(wires)]
    executor = Executor(steps, inputs, outputs, host)
    for seed in range(2):
        feeds = list(np.random.default_rng(seed).random((len(inputs), size)))
        values = dict(zip(inputs, feeds, strict=True))
        for read, made in wires:
            values |= zip(made, mix([values[name] for name in read], len(made)), strict=True)
        expected = [values[name] for name in outputs]
        traced, spans = executor.trace(feeds)
        assert len(spans) == len(wires)
        for found in (executor.run(feeds), executor.run_empty(feeds), traced):
            for actual, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(actual, wanted)
            assert not any(actual is feed for actual in found for feed in feeds)
    assert bool(host.asked) == (any(i in broken for i in range(len(wires))) or (size == 0 and bool(wires)))


def test_without_a_host_a_failure_is_the_run_s() -> None:
    def fail(x: Any) -> Any:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Executor([step("k", Fake(fail), "x", "y")], ["x"], ["y"]).run([np.ones(1)])
