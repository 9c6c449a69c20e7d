from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collage.runtime import Executor, Step


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
