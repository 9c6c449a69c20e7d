"""Code that toolchains on torch share: availability, checks, and calls of a kernel."""

from __future__ import annotations

import contextlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.toolchains import Availability, Support, Unsupported
from collage.toolchains.sdk.import_probe import import_failure, install_command
from collage.toolchains.sdk.model_files import elem_type, one_line
from collage_torch.threads import import_torch, use_threads

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains import Compiled, Tensor
    from collage_torch.ops import Program

__all__ = ["TorchKernel", "check_by_running", "quiet", "support", "torch_availability", "torch_build"]

_CALLS = 5
"""Changes when kernels are computed by other calls of the same torch: timings of before are not comparable then."""
_TRIAL_ELEMENTS = 200_000_000
_TRIAL_SIZES = (2, 24)
"""Kernels with larger inputs are not tried on zeros."""


def torch_availability() -> Availability:
    """Version of torch, and whether it can be imported, without importing it here."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Availability(False, reason="torch is not installed", remedy=install_command("torch"))
    if (reason := import_failure("torch", import_torch)) is not None:
        return Availability(False, version, reason=reason, remedy=install_command("torch", again=True))
    return Availability(True, version, torch_build(version), ("CPU",))


def torch_build(version: str) -> str:
    """Return the build under which timings of torch's calls are filed."""
    return f"torch {version}, calls {_CALLS}"


def support(node: ir.Node) -> Support:
    """Return if the table of torch calls takes a node."""
    try:
        import_torch()
        from collage_torch.ops import unsupported

        graph = node.graph
        version = graph.opset_imports.get("") if graph is not None and hasattr(graph, "opset_imports") else None
        reason = unsupported(node, version)
    except Exception as error:
        reason = f"torch cannot be asked: {one_line(error)}"
    return Support(reason is None, reason)


def check_by_running(program: Program, kernel: ir.Model) -> None:
    """Run a program once on zeros, or on ones where zeros will not do, and compare types with the kernel's.

    Symbolic sizes are 2, or 24 where the kernel takes no such small ones.

    Only a run shows if torch has a kernel for a type or a mode. If shapes are computed from an input's values, a run on
    made-up values shows nothing.

    Raises:
        Unsupported: It fails on all, or yields other types or shapes than the kernel says.
    """
    if program.reads_values_on_host:
        return
    reason: BaseException | None = None
    for size, fill in product(_TRIAL_SIZES, (0, 1)):
        inputs = [_filled(value, size, fill) for value in kernel.graph.inputs]
        if any(x is None for x in inputs):
            return
        try:
            with quiet():
                outputs = program(*inputs)
        except Unsupported:
            raise
        except Exception as error:
            reason = error
            continue
        _check_outputs(outputs, kernel)
        return
    raise Unsupported(f"torch: {one_line(reason or ValueError('nothing was run'))}") from reason


def _filled(value: ir.Value, open_size: int, fill: int) -> Any:
    """Return a tensor of an input's type, with ``open_size`` for symbolic sizes; None if its rank is not known."""
    torch = import_torch()
    dtype = elem_type(value)
    if dtype is None or value.shape is None:
        return None
    shape = [size if isinstance(size, int) else open_size for size in value.shape]
    if np.prod(shape, dtype=np.float64) > _TRIAL_ELEMENTS:
        return None
    return torch.from_numpy(np.full(shape, fill, dtype.numpy()))


def _check_outputs(outputs: Sequence[Any], kernel: ir.Model) -> None:
    from collage_torch.ops import torch_dtype

    for value, y in zip(kernel.graph.outputs, outputs, strict=True):
        dtype = elem_type(value)
        if dtype is not None and y.dtype != torch_dtype(int(dtype)):
            raise Unsupported(f"torch makes {y.dtype} of {value.name!r}, a {dtype.name.lower()}")
        for wanted, size in zip(value.shape or (), y.shape, strict=value.shape is not None):
            if isinstance(wanted, int) and wanted != size:
                raise Unsupported(f"torch gives {value.name!r} the shape {list(y.shape)}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No gradients, and no warnings of torch's to the user."""
    torch = import_torch()
    with torch.inference_mode(), warnings.catch_warnings(action="ignore"):
        yield


class TorchKernel:
    """A torch callable with NumPy at both ends; memory is shared where it may be.

    Args:
        program: Takes and returns torch tensors.
        compiled: The compiled kernel that the callable was made from.
        threads: Threads that it may use.
        constants: Tensors in whose memory an output may lie.
    """

    reuses_outputs = False

    def __init__(
        self, program: Callable[..., Sequence[Any]], compiled: Compiled, threads: int, constants: Sequence[Any] = ()
    ) -> None:
        from collage_torch.ops import from_array

        self._no_gradients = import_torch()._C._InferenceMode  # torch.inference_mode is four times as slow
        self._program = program
        self._threads = threads
        self._from_array = from_array
        self._bound: list[tuple[Tensor, Any, int] | None] = [None] * len(compiled.inputs)
        self._constants = {_memory(x) for x in constants}

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the program."""
        use_threads(self._threads)
        with self._no_gradients(True):
            bound = [self._bind(i, x) for i, x in enumerate(inputs)]
            outputs = self._program(*[tensor for _, tensor, _ in bound])
            taken = self._constants | {memory for _, _, memory in bound}
            return [self._array(y, taken) for y in outputs]

    def _bind(self, i: int, x: Tensor) -> tuple[Tensor, Any, int]:
        """An array, the tensor that is made of it, and that one's memory."""
        known = self._bound[i]
        if known is not None and known[0] is x:
            return known
        tensor = self._from_array(x)
        made = x, tensor, _memory(tensor)
        # What was copied is not bound: the caller may change it in place.
        self._bound[i] = made if tensor.data_ptr() == x.ctypes.data else None
        return made

    def _array(self, y: Any, taken: set[int]) -> Tensor:
        """An output as an array in memory of its own, since callers may write to it."""
        y = y.contiguous()
        memory = _memory(y)
        if memory in taken:
            y = y.clone()
        taken.add(memory)
        array: Tensor = y.numpy()
        return array


def _memory(tensor: Any) -> int:
    """Return the address of the storage of a tensor, which other tensors may share."""
    address: int = tensor.untyped_storage().data_ptr()
    return address
