"""One kernel that is the whole model: what ``Executor`` returns, by a shorter way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from collage._errors import ToolchainError
from collage.runtime import Executor, Step
from collage.runtime._single_kernel import SingleKernelExecutor
from collage.toolchains import Layout


class Allocating:
    """Says that it allocates, whatever its function does."""

    reuses_outputs = False

    def __init__(self, function: Callable[..., Sequence[Any]], allocates: bool = True) -> None:
        self.function, self.allocates_outputs = function, allocates

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return self.function(*inputs)


class InPlace:
    """Adds its input up over the runs, in the memory that it is given."""

    reuses_outputs = True
    layouts = (Layout("float32", (2,)),)
    breaks = False

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        raise AssertionError("a kernel that writes in place was called otherwise")

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if self.breaks:
            raise RuntimeError("broken")
        outputs[0][...] = inputs[0] + 1


class Passing:
    """A host that returns what it is given."""

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        return list(inputs)

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        return list(inputs)


class Twice(Passing):
    """A host that returns its input twice."""

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        return [*inputs, *inputs]


def suits(kernel: Any, inputs: str, outputs: str, wanted: str) -> bool:
    step = Step("k", kernel, tuple(inputs.split()), tuple(outputs.split()))
    return SingleKernelExecutor.suits([step], inputs.split(), wanted.split())


def executor(kernel: Any, outputs: str = "y", host: Any = None) -> Executor:
    return SingleKernelExecutor([Step("k", kernel, ("x",), tuple(outputs.split()))], ["x"], outputs.split(), host)


def test_it_suits_one_kernel_whose_outputs_are_the_model_s() -> None:
    kernel = Allocating(lambda x: [x + 1])
    assert suits(kernel, "x", "y", "y") and suits(InPlace(), "x", "y", "y")
    assert suits(Allocating(lambda x: [x], allocates=False), "x", "y", "y")
    assert suits(kernel, "x", "y z", "z y")
    assert not suits(kernel, "x", "y z", "y")
    assert not suits(kernel, "x x", "y", "y")
    assert not suits(kernel, "x", "y", "y y")
    assert not suits(kernel, "x", "x", "x")
    assert not SingleKernelExecutor.suits([], ["x"], ["x"])
    kernel.reuses_outputs = True
    assert not suits(kernel, "x", "y", "y")


def test_outputs_of_a_kernel_that_allocates_are_handed_on_as_they_are() -> None:
    kept = [np.zeros(2), np.zeros(2)]
    assert executor(Allocating(lambda _: kept), "y z").run([np.ones(2)]) is kept


@pytest.mark.parametrize("inputs", ["a b c", "c a b", "b a c"])
@pytest.mark.parametrize("outputs", ["p q r", "r p q", "q p r"])
@pytest.mark.parametrize("breaks", [False, True])
def test_the_kernel_may_have_an_order_of_its_own(inputs: str, outputs: str, breaks: bool) -> None:
    origins = {"p": "a", "q": "b", "r": "c"}

    def compute(*given: Any) -> list[Any]:
        named = dict(zip(inputs.split(), given, strict=True))
        return [named[origins[name]] for name in outputs.split()]

    def fail(*given: Any) -> list[Any]:
        raise RuntimeError("broken")

    class Host(Passing):
        def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
            return compute(*inputs)

    kernel = Allocating(fail if breaks else compute)
    steps = [Step("k", kernel, tuple(inputs.split()), tuple(outputs.split()))]
    values = [np.full(1, 1.0), np.full(2, 2.0), np.full(3, 3.0)]
    made = SingleKernelExecutor(steps, ["a", "b", "c"], ["p", "q", "r"], Host()).run(values)
    for result, value in zip(made, values, strict=True):
        np.testing.assert_array_equal(result, value)
        assert np.shares_memory(result, value) != breaks  # What the host returns is copied where it is an input.


def test_what_is_written_in_place_is_in_the_model_s_order() -> None:
    class Two(InPlace):
        layouts = (Layout("float32", (2,)), Layout("float32", (2,)))

        def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            outputs[0][...], outputs[1][...] = inputs[0] + 1, inputs[0] + 2

    step = Step("k", Two(), ("x",), ("y", "z"))
    z, y = SingleKernelExecutor([step], ["x"], ["z", "y"], None).run([np.zeros(2, "f")])
    np.testing.assert_array_equal([y, z], [[1, 1], [2, 2]])


def test_outputs_of_others_are_looked_at() -> None:
    x = np.ones(2)
    (y,) = executor(Allocating(lambda x: [x], allocates=False)).run([x])
    assert y is not x
    np.testing.assert_array_equal(y, x)


def test_what_is_written_in_place_is_the_caller_s() -> None:
    run = executor(InPlace()).run
    first = run([np.float32([1, 2])])[0]
    second = run([np.float32([3, 4])])[0]
    np.testing.assert_array_equal(first, [2, 3])
    np.testing.assert_array_equal(second, [4, 5])
    first[:] = 9
    np.testing.assert_array_equal(second, [4, 5])


@pytest.mark.parametrize("in_place", [False, True])
def test_what_the_host_returns_is_looked_at_whatever_the_kernel_says(in_place: bool) -> None:
    def fail(x: Any) -> Any:
        raise RuntimeError("broken")

    kernel = Allocating(fail)
    if in_place:
        kernel = InPlace()
        kernel.breaks = True
    x = np.ones(2, "f")
    for run in (executor(kernel, host=Passing()).run, executor(kernel, host=Passing()).run_empty):
        (y,) = run([x])
        y[:] = 7
        np.testing.assert_array_equal(x, [1, 1])
    with pytest.raises(RuntimeError, match="broken"):
        executor(kernel).run([x])


@pytest.mark.parametrize("count", [1, 3])
def test_a_kernel_that_returns_another_number_of_outputs_has_failed(count: int) -> None:
    kernel = Allocating(lambda x: [x + 1] * count)
    with pytest.raises(ToolchainError, match=f"a kernel of 2 outputs returned {count}"):
        executor(kernel, "y z").run([np.zeros(2, np.float32)])
    assert len(executor(kernel, "y z", Twice()).run([np.zeros(2, np.float32)])) == 2
