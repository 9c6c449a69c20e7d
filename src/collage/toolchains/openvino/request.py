"""Inference requests of OpenVINO as kernels: inputs without copies, outputs in place, and the plugin's threads."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import Unsupported
from collage.toolchains._contract import Compiled, Layout
from collage.toolchains.openvino.integers import LIMITS, WIDE
from collage.toolchains.sdk.in_place import InPlaceKernelBase, layouts_of
from collage.toolchains.sdk.thread_affinity import HelperThreads, computed_meanwhile, own_threads, started_meanwhile

if TYPE_CHECKING:
    from collage.toolchains._contract import Kernel, Tensor

__all__ = ["AS_INT32", "THREADS", "PluginThreads", "SharedModel", "fits", "kernel_of", "port_of_name"]

AS_INT32 = tuple(name.lower() for name in WIDE)
"""Integer types that the plugin computes in 32 bits."""

_WATCHED = range(2, 5)
"""Runs of a model that are watched for helper threads. In the first one, other threads may just be starting."""
_MOST_LENGTHS = 1024
"""Sets of lengths that a request knows to be right, or a model to be wrong."""
_Lengths = tuple[tuple[int, ...], ...]


class PluginThreads:
    """OpenVINO's threads in this process: all models share those that compute; each has some that hardly do.

    Attributes:
        helpers: Threads that were seen to compute while a kernel ran.
    """

    def __init__(self) -> None:
        self.helpers = HelperThreads()
        self._known: set[int] = set()

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Notice threads that the caller has OpenVINO start."""
        with started_meanwhile() as started:
            yield
        self._known = (self._known | started) & own_threads()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch which threads help with a run."""
        with self.noticed(), computed_meanwhile(self._known) as helping:
            yield
        self.helpers.add(helping)


THREADS = PluginThreads()
"""The plugin's threads in this process."""


class SharedModel:
    """A compiled model, shared by all contexts, that is compiled anew after a run that failed.

    The plugin's operators remember the lengths of the run before, and the memory. An operator that failed reads memory that
    is gone, in the next run of lengths that it remembers, whatever the request.

    Args:
        compiler: Compiles the model.

    Attributes:
        model: The compiled model, None once a run failed.
        wrong: Sets of lengths that failed. They are not run again.
    """

    def __init__(self, compiler: Callable[[], Any]) -> None:
        self.model: Any = compiler()
        self.wrong: set[_Lengths] = set()
        self._compiler = compiler
        self._turn = threading.Lock()

    def current(self) -> Any:
        """Return the model, compiled anew if a run failed."""
        with self._turn:
            if self.model is None:
                self.model = self._compiler()
            return self.model

    def drop(self, model: Any, lengths: _Lengths | None) -> None:
        """Have a model compiled anew, of which a run failed; on lengths that always fail, unless they are None."""
        with self._turn:
            if self.model is model:
                self.model = None
            if lengths is not None and len(self.wrong) < _MOST_LENGTHS:
                self.wrong.add(lengths)


class _Request:
    """One inference request, called below its Python checks, with inputs shared.

    Setting an input takes longer than a small kernel, so an array that was set before is not set again.
    """

    def __init__(self, shared: SharedModel, compiled: Compiled, threads: PluginThreads | None) -> None:
        from openvino import Tensor as OvTensor

        self.tensor = OvTensor
        self._shared = shared
        self._model: Any = None
        model = shared.current()
        self.precision: str = model.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self._threads = threads
        self._runs = 0
        ports = port_of_name(model)
        self._ports = [ports.get(name) for name in compiled.inputs]
        # A request only points to the memory of its inputs, so that copies must be kept.
        self._held: list[Tensor | None] = [None] * len(self._ports)
        types = [value.get_element_type().to_dtype().name for value in model.inputs]
        indices = frozenset(compiled.metadata.get("indices", ()))
        self._limits = list(compiled.metadata.get("limits", ())) or [LIMITS[0]] * len(self._ports)
        self._checked = [
            i
            for i, (port, limit) in enumerate(zip(self._ports, self._limits, strict=True))
            if port is not None and i not in indices
            if types[port] in AS_INT32 or (types[port] == "int32" and limit < LIMITS[0])
        ]
        # OpenVINO's call that waits loses the errors of a model with a single thread, and returns what an earlier run did.
        # Errors at run time follow from lengths, or from values on which lengths depend.
        is_alone = model.get_property("INFERENCE_NUM_THREADS") == 1
        self._loses_errors = is_alone and not compiled.metadata.get("fixed")
        self._by_values = bool(compiled.metadata.get("by_values")) or not all("float" in name for name in types)
        self._right: set[_Lengths] = set()
        self._is_static = [port is not None and model.inputs[port].partial_shape.is_static for port in self._ports]
        self.renew()

    def renew(self) -> bool:
        """Make a request of the shared model, unless there is one. Return True if it is new: then nothing is set."""
        if self._model is not None and self._model is self._shared.model:
            return False
        from openvino._pyopenvino import InferRequest

        self._model = self._shared.current()
        self.request = self._model.create_infer_request()
        self._infer = functools.partial(InferRequest.infer, self.request, {})
        self._set: list[Tensor | None] = [None] * len(self._ports)
        return True

    def run(self, inputs: Sequence[Tensor], in_place: bool) -> list[Tensor]:
        """Run on the inputs that were set; outputs are copied, or stay where they were set to and are not returned.

        Raises:
            RuntimeError: The model does not take these lengths.
        """
        if self._shared.wrong and _lengths(inputs) in self._shared.wrong:
            raise RuntimeError("openvino failed on these lengths before")
        try:
            if self._loses_errors and (self._by_values or _lengths(inputs) not in self._right):
                return self._run_apart(inputs, in_place)
            made = self._run(in_place)
        except Exception:
            self._shared.drop(self._model, None if self._by_values else _lengths(inputs))
            raise
        return [] if in_place else list(made.values())

    def _run_apart(self, inputs: Sequence[Tensor], in_place: bool) -> list[Tensor]:
        """Run in a thread of the plugin's, which keeps errors."""
        self.request.start_async()
        self.request.wait()
        if len(self._right) < _MOST_LENGTHS:
            self._right.add(_lengths(inputs))
        return [] if in_place else [np.array(tensor.data) for tensor in self.request.output_tensors]

    def _run(self, in_place: bool) -> Any:
        if (threads := self._threads) is not None:
            if self._runs < _WATCHED[-1]:
                self._runs += 1
                with threads.watched() if self._runs in _WATCHED else contextlib.nullcontext():
                    return self._infer(in_place, False)
            threads.helpers.move_off()
        return self._infer(in_place, False)

    def read(self, inputs: Sequence[Tensor]) -> None:
        """Set the inputs."""
        for i in self._checked:
            _refuse_large(inputs[i], self._limits[i])
        for i, (x, known) in enumerate(zip(inputs, self._set, strict=True)):
            if x is not known:
                self._read(i, x)

    def _read(self, i: int, x: Tensor) -> None:
        port = self._ports[i]
        if port is None:
            return
        # NumPy has two 64-bit integers, long and long long; OpenVINO knows one, other runtimes may return the other.
        canonical = np.dtype(x.dtype.name)
        is_shared = x.flags.c_contiguous and x.flags.writeable
        held = self._held[i] = x.view(canonical) if is_shared else np.array(x, canonical, order="C")
        self.request.set_input_tensor(port, self.tensor(held, shared_memory=True))
        # What was copied must be copied again, and an array of no fixed shape may be given another.
        self._set[i] = x if is_shared and self._is_static[i] else None


class _RequestKernel:
    """A request whose outputs are copied: their sizes vary, and with them their places, or they are inputs."""

    reuses_outputs = False
    allocates_outputs = True

    def __init__(self, request: _Request) -> None:
        self._request = request
        self.precision = request.precision

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        self._request.renew()
        self._request.read(inputs)
        return self._request.run(inputs, in_place=False)


class _InPlaceRequestKernel(InPlaceKernelBase):
    """A request that writes to the caller's arrays."""

    def __init__(self, request: _Request, layouts: Sequence[Layout]) -> None:
        super().__init__(layouts)
        self._request = request
        self.precision = request.precision

    def run_into(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        if self._request.renew():
            self._written = [None] * len(self._written)
        self._request.read(inputs)
        self._write_to(outputs)
        self._request.run(inputs, in_place=True)

    def _handle(self, y: Tensor) -> object:
        return self._request.tensor(y, shared_memory=True)

    def _bind_output(self, i: int, handle: object) -> None:
        self._request.request.set_output_tensor(i, handle)


def kernel_of(shared: SharedModel, compiled: Compiled, threads: PluginThreads | None) -> Kernel:
    """Return a compiled model as a kernel; it writes in place if all its shapes are fixed.

    Args:
        shared: OpenVINO's compiled model.
        compiled: Names of inputs and outputs, and the limit of integers.
        threads: The threads to move off the caller's processors; None leaves them to the plugin.
    """
    request, layouts = _Request(shared, compiled, threads), _layouts(shared.current(), compiled)
    return _RequestKernel(request) if layouts is None else _InPlaceRequestKernel(request, layouts)


def _layouts(model: Any, compiled: Compiled) -> tuple[Layout, ...] | None:
    """Layouts of the outputs, if all are fixed and none is an input."""
    if set(compiled.inputs) & set(compiled.outputs) or not all(port.partial_shape.is_static for port in model.outputs):
        return None
    dtypes = [port.get_element_type().to_dtype().name for port in model.outputs]
    return layouts_of(dtypes, [tuple(port.shape) for port in model.outputs])


def _lengths(inputs: Sequence[Tensor]) -> _Lengths:
    return tuple(x.shape for x in inputs)


def fits(x: Tensor, limit: int = LIMITS[0]) -> bool:
    """Return True if all integers of an array lie from ``-limit - 1`` to ``limit``."""
    # The bits of all of them together are no less than the largest: one look at each is enough.
    if x.size == 0 or 0 <= np.bitwise_or.reduce(x, axis=None) <= limit:
        return True
    return bool(x.max() <= limit and x.min() >= ~limit)


def _refuse_large(x: Tensor, limit: int) -> None:
    if not fits(x, limit):
        raise Unsupported(
            f"openvino's CPU plugin computes {x.dtype} in 32 bits or float32, and an input is beyond {limit}"
        )


def port_of_name(model: Any) -> Mapping[str, int]:
    """Input ports by name; inputs without a use have no name."""
    return {name: port for port, value in enumerate(model.inputs) for name in value.get_names()}
