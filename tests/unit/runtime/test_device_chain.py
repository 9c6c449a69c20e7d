"""Chains on a device, tried on a pretended one that tells host arrays from its own tensors, and records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage._errors import Unsupported
from collage.runtime import Executor, Step
from collage.runtime._device_chain import DeviceChain, executor_of
from collage.runtime._single_kernel import SingleKernelExecutor


class Resident:
    """A tensor of the pretended device: no array, so that one in the wrong place fails."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


class PretendedDevice:
    """Replays what it recorded at the addresses that it saw, as a CUDA graph does."""

    def __init__(self, name: str = "pretended:0") -> None:
        self.name = name
        self.uploads = self.downloads = self.recordings = self.replays = 0
        self._tape: list[Callable[[], None]] | None = None

    def upload(self, x: np.ndarray[Any, Any]) -> Resident:
        assert type(x) is np.ndarray and self._tape is None
        self.uploads += 1
        return Resident(x.copy())

    def fill(self, tensor: Resident, x: Any) -> None:
        source = x.data if isinstance(x, Resident) else x
        if source.shape != tensor.shape:
            raise ValueError("another shape")
        tensor.data[...] = source

    def download(self, x: Resident) -> np.ndarray[Any, Any]:
        assert self._tape is None, "waits for the device while recording"
        self.downloads += 1
        return x.data.copy()

    def copy(self, tensor: Resident) -> Resident:
        return Resident(tensor.data.copy())

    def seconds(self, work: Callable[[], Any]) -> float:
        work()
        return 1e-3

    def evict(self, size_bytes: int) -> None:
        pass

    def views(self, model: Any) -> Any:
        raise Unsupported("it has none")

    def launch(self, work: Callable[[], np.ndarray[Any, Any]]) -> Resident:
        result = Resident(work())
        if self._tape is not None:
            self._tape.append(lambda: result.data.__setitem__(..., work()))
            result.data[...] = -1e9  # Recording computes nothing.
        return result

    def record(self, work: Callable[[], Sequence[Any]]) -> Any:
        self.recordings += 1
        device, self._tape = self, []
        try:
            outputs, tape = work(), self._tape
        finally:
            self._tape = None

        class Tape:
            def __init__(self) -> None:
                self.outputs = outputs

            def replay(self) -> None:
                device.replays += 1
                for launch in tape:
                    launch()

        return Tape()


class Affine:
    """``sum(inputs) * factor + 1``, on the device or from arrays."""

    reuses_outputs = False

    def __init__(self, device: PretendedDevice, factor: float, capturable: bool = True) -> None:
        self.device, self.capturable, self._factor = device, capturable, factor

    def on_device(self, inputs: Sequence[Any]) -> Sequence[Any]:
        assert all(type(x) is Resident for x in inputs)
        if not self.capturable:
            assert self.device._tape is None
        return [self.device.launch(lambda: sum(x.data for x in inputs) * self._factor + 1)]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [sum(inputs) * self._factor + 1]


class OnHost:
    reuses_outputs = False

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        assert all(type(x) is np.ndarray for x in inputs)
        return [sum(inputs) * self._factor + 1]


class Broken(Affine):
    def on_device(self, inputs: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError("out of memory")

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError("out of memory")


class Shrinking(Affine):
    """As many values as are positive: a shape that depends on data."""

    def on_device(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [Resident(inputs[0].data[inputs[0].data > 0])]


class RecordingHost:
    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.rescued: list[int] = []

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        assert all(type(x) is np.ndarray for x in inputs)
        return [sum(inputs) * 2 + 1]

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        self.rescued.append(position)
        return self.run(position, inputs)


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def chain_of(device: PretendedDevice, *capturable: bool) -> list[Step]:
    return [Step(f"k{i}", Affine(device, 2.0, flag), (f"v{i}",), (f"v{i + 1}",)) for i, flag in enumerate(capturable)]


def test_without_kernels_on_a_device_the_executor_is_the_plain_one() -> None:
    steps = [Step("k", OnHost(2), ("x",), ("y",)), Step("l", OnHost(2), ("y",), ("z",))]
    assert type(executor_of(steps, ["x"], ["z"], None)) is Executor
    assert type(executor_of(steps[:1], ["x"], ["y"], None)) is SingleKernelExecutor


def test_tensors_stay_and_the_whole_chain_is_one_recording() -> None:
    device = PretendedDevice()
    executor = executor_of(chain_of(device, True, True, True), ["v0"], ["v3"], None)
    for run in range(5):
        x = numbers(4, seed=run)
        (y,) = executor.run([x])
        np.testing.assert_allclose(y, ((x * 2 + 1) * 2 + 1) * 2 + 1)
    assert device.recordings == 1 and device.replays == 4
    assert device.downloads == 5


def test_outputs_outlive_the_next_run() -> None:
    device = PretendedDevice()
    executor = executor_of(chain_of(device, True, True), ["v0"], ["v2"], None)
    for _ in range(2):
        executor.run([numbers(4)])
    kept = executor.run([numbers(4, seed=1)])[0]
    before = kept.copy()
    executor.run([numbers(4, seed=2)])
    np.testing.assert_array_equal(kept, before)


def test_what_cannot_be_recorded_is_called_in_between() -> None:
    device = PretendedDevice()
    executor = executor_of(chain_of(device, True, False, True, True), ["v0"], ["v1", "v4"], None)
    for run in range(4):
        x = numbers(3, seed=run)
        first, last = executor.run([x])
        np.testing.assert_allclose(first, x * 2 + 1)
        np.testing.assert_allclose(last, x * 16 + 15)
    assert device.recordings == 2


def test_nothing_is_recorded_where_nothing_can_be() -> None:
    device = PretendedDevice()
    executor = executor_of(chain_of(device, False, False), ["v0"], ["v2"], None)
    for run in range(4):
        np.testing.assert_allclose(executor.run([numbers(3, seed=run)])[0], numbers(3, seed=run) * 4 + 3)
    assert device.recordings == 0


def test_every_set_of_shapes_has_its_own_recording() -> None:
    device = PretendedDevice()
    executor = executor_of(chain_of(device, True, True), ["v0"], ["v2"], None)
    for _ in range(3):
        for size in (2, 5):
            np.testing.assert_allclose(executor.run([numbers(size)])[0], numbers(size) * 4 + 3)
    assert device.recordings == 2
    for size in range(10, 40):
        for _ in range(2):
            executor.run([numbers(size)])
    assert device.recordings <= 8


def test_a_shape_that_depends_on_data_stops_the_replaying_not_the_run() -> None:
    device = PretendedDevice()
    steps = [
        Step("shrink", Shrinking(device, 1.0, capturable=False), ("x",), ("a",)),
        Step("affine", Affine(device, 2.0), ("a",), ("y",)),
    ]
    executor = executor_of(steps, ["x"], ["y"], None)
    for run in range(6):
        x = numbers(20, seed=run)
        np.testing.assert_allclose(executor.run([x])[0], x[x > 0] * 2 + 1)


def test_devices_and_the_host_take_turns() -> None:
    one, two = PretendedDevice("pretended:0"), PretendedDevice("pretended:1")
    kernels = [Affine(one, 2.0), OnHost(2.0), Affine(one, 2.0), Affine(two, 2.0), Affine(two, 2.0)]
    steps = [Step(f"k{i}", kernel, (f"v{i}",), (f"v{i + 1}",)) for i, kernel in enumerate(kernels)]
    executor = executor_of(steps, ["v0"], ["v5"], None)
    for run in range(4):
        x = numbers(3, seed=run)
        np.testing.assert_allclose(executor.run([x])[0], x * 32 + 31)


def test_a_kernel_that_fails_is_rescued_by_its_own_position() -> None:
    device = PretendedDevice()
    kernels = [OnHost(2.0), Affine(device, 2.0), Broken(device, 2.0), Affine(device, 2.0)]
    steps = [Step(f"k{i}", kernel, (f"v{i}",), (f"v{i + 1}",)) for i, kernel in enumerate(kernels)]
    host = RecordingHost(steps)
    executor = executor_of(steps, ["v0"], ["v4"], host)
    for run in range(3):
        x = numbers(3, seed=run)
        np.testing.assert_allclose(executor.run([x])[0], x * 16 + 15)
    assert set(host.rescued) == {2}
    with pytest.raises(RuntimeError, match="out of memory"):
        executor_of(steps, ["v0"], ["v4"], None).run([numbers(3)])


def test_empty_inputs_are_left_to_the_host() -> None:
    device = PretendedDevice()
    steps = chain_of(device, True, True)
    executor = executor_of(steps, ["v0"], ["v2"], RecordingHost(steps))
    assert executor.run_empty([np.zeros((0, 3))])[0].shape == (0, 3)
    assert device.uploads == 0


def test_a_trace_has_a_span_for_every_kernel() -> None:
    device = PretendedDevice()
    kernels = [Affine(device, 2.0), Affine(device, 2.0), OnHost(2.0), Affine(device, 2.0)]
    steps = [Step(f"k{i}", kernel, (f"v{i}",), (f"v{i + 1}",)) for i, kernel in enumerate(kernels)]
    outputs, spans = executor_of(steps, ["v0"], ["v4"], None).trace([numbers(3)])
    np.testing.assert_allclose(outputs[0], numbers(3) * 16 + 15)
    assert len(spans) == 4
    assert [end - began for began, end in (spans[0], spans[1], spans[3])] == [10**6] * 3


def test_a_chain_hands_on_only_what_is_used() -> None:
    device = PretendedDevice()
    chain = DeviceChain(chain_of(device, True, True, True), frozenset({"v1", "v3"}))
    assert (chain.inputs, chain.outputs) == (("v0",), ("v1", "v3"))


@given(st.data())
def test_random_graphs_over_host_and_devices(data: st.DataObject) -> None:
    """Whatever runs where, and whatever is recorded, values are those of running all kernels on the host."""
    devices = [PretendedDevice("pretended:0"), PretendedDevice("pretended:1")]
    names, steps, plain = ["x", "z"], [], []
    for i in range(data.draw(st.integers(1, 8))):
        inputs = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
        where = data.draw(st.sampled_from(["host", "first", "first", "second", "called"]))
        device = devices[where == "second"]
        kernel = OnHost(0.5) if where == "host" else Affine(device, 0.5, where != "called")
        steps.append(Step(f"k{i}", kernel, inputs, (f"v{i}",)))
        plain.append(Step(f"k{i}", OnHost(0.5), inputs, (f"v{i}",)))
        names.append(f"v{i}")
    outputs = data.draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=3, unique=True))
    mixed, alone = executor_of(steps, ["x", "z"], outputs, None), Executor(plain, ["x", "z"], outputs)
    for run in range(4):
        values = [numbers(3, seed=run), numbers(3, seed=run + 10)]
        for got, wanted in zip(mixed.run(values), alone.run(values), strict=True):
            np.testing.assert_allclose(got, wanted)
