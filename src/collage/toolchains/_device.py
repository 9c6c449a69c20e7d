"""The contract for kernels that keep their tensors on a device: the device, its recordings, and such kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Tensor

__all__ = ["Device", "DeviceKernel", "Recording"]


class Recording(Protocol):
    """A recorded sequence of device work, such as a CUDA graph, that one call replays.

    Attributes:
        outputs: The tensors that it writes, the same ones each time.
    """

    outputs: Sequence[Any]

    def replay(self) -> None:
        """Start the whole recording on the device, without waiting for it."""
        ...


class Device(Protocol):
    """Memory and a queue of work, both apart from the host's. Its tensors speak DLPack and are row-major.

    Attributes:
        name: Name such as ``cuda:0``. Devices of equal name share memory and queue.
    """

    name: str

    def upload(self, x: Tensor) -> Any:
        """A tensor with an array's values."""
        ...

    def fill(self, tensor: Any, x: Any) -> None:
        """Overwrite a tensor with the values of an array, or of another tensor. Raise if shapes differ."""
        ...

    def download(self, x: Any) -> Tensor:
        """An array with a tensor's values, in memory of its own."""
        ...

    def copy(self, tensor: Any) -> Any:
        """A tensor with the same values in memory of its own."""
        ...

    def views(self, model: ir.Model) -> DeviceKernel:
        """Return a kernel for operators that only view their inputs. Raise ``Unsupported`` if it has none."""
        ...

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the seconds that the device takes for ``work``, by its own clock."""
        ...

    def evict(self, size_bytes: int) -> None:
        """Touch this much memory, so that the caches of the device are flushed."""
        ...

    def record(self, work: Callable[[], Sequence[Any]]) -> Recording:
        """Record the device work that ``work`` starts. May raise anything: some work cannot be recorded."""
        ...


@runtime_checkable
class DeviceKernel(Protocol):
    """A kernel that also takes and returns tensors of a device, so that these need not leave it between two kernels.

    Optional: the runtime asks for it, and calls any other kernel with arrays.

    Attributes:
        device: The device that it runs on.
        capturable: True if calls on inputs of equal shapes have the device do the same work, and never wait for it, so
            that they can be recorded with their neighbours' and replayed.
    """

    reuses_outputs: bool
    device: Device
    capturable: bool

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run on arrays; see ``Kernel``."""
        ...

    def on_device(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run on tensors of the device, and return such; their work may still be going on."""
        ...
