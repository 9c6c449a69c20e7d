"""NVIDIA devices: availability, tensors that stay on a device, and kernels on such tensors.

Every CUDA toolchain shares one carrier of memory, streams, events and graphs: a CUDA build of PyTorch. Its tensors speak
DLPack, its allocator knows about graphs, and all work goes to its current stream, so that kernels of different toolchains
follow each other without waiting for the host.

The check of availability imports nothing: it asks the driver directly, and reads the metadata of packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.toolchains import Availability, ToolchainBase, Unsupported

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Device, Recording, Tensor

__all__ = [
    "RECORD",
    "Absence",
    "CudaKernel",
    "CudaToolchain",
    "Gpu",
    "TorchDevice",
    "cuda_availability",
    "cuda_device",
    "find_gpu",
    "package_version",
    "queue_of",
    "ran_on",
    "require_gpu",
    "settings",
    "tensor_cores",
    "torch_cuda",
]

_DRIVER = "libcuda.so.1"
_ATTRIBUTES = {"major": 75, "minor": 76, "multiprocessors": 16}
"""Numbers of ``CUdevice_attribute`` in the driver's interface."""
RECORD = Path(__file__).with_name("_ran_on.json")
_NO_DRIVER = "install the NVIDIA driver; in a container, start it with the GPU passed through"


@dataclass(frozen=True, slots=True)
class Absence:
    """Something that is missing, and the remedy."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first device that the driver shows this process.

    Attributes:
        name: Its name, such as ``NVIDIA H200``.
        capability: Compute capability, such as (9, 0).
        multiprocessors: Number of streaming multiprocessors.
        driver: The newest CUDA version that the driver runs, such as ``13.0``.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    driver: str

    @property
    def arch(self) -> str:
        """The architecture as compilers write it, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def __str__(self) -> str:
        return f"{self.name} ({self.arch}), driver for CUDA {self.driver}"


@functools.cache
def find_gpu() -> Gpu | Absence:
    """The device, or why there is none; never raises."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return Absence(f"no NVIDIA driver ({_DRIVER} is not found)", _NO_DRIVER)
    try:
        return _ask(driver)
    except (_DriverError, AttributeError) as error:
        return Absence(f"the NVIDIA driver shows no device: {error}", "check nvidia-smi and CUDA_VISIBLE_DEVICES")


class _DriverError(Exception):
    pass


def _ask(driver: ctypes.CDLL) -> Gpu:
    def call(name: str, *arguments: Any) -> None:
        if code := getattr(driver, name)(*arguments):
            text = ctypes.c_char_p()
            driver.cuGetErrorString(code, ctypes.byref(text))
            raise _DriverError(text.value.decode() if text.value else f"{name} returned {code}")

    def number(name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        call(name, ctypes.byref(value), *arguments)
        return value.value

    call("cuInit", 0)
    if number("cuDeviceGetCount") < 1:
        raise _DriverError("it finds no device")
    device = number("cuDeviceGet", 0)
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), device)
    facts = {key: number("cuDeviceGetAttribute", attribute, device) for key, attribute in _ATTRIBUTES.items()}
    version = number("cuDriverGetVersion")
    return Gpu(
        name.value.decode(errors="replace"),
        (facts["major"], facts["minor"]),
        facts["multiprocessors"],
        f"{version // 1000}.{version % 1000 // 10}",
    )


def require_gpu() -> Gpu:
    """The device.

    Raises:
        Unsupported: There is none, or no CUDA build of torch to carry tensors.
    """
    for found in (find_gpu(), torch_cuda()):
        if isinstance(found, Absence):
            raise Unsupported(f"{found.reason}; {found.remedy}")
    gpu = find_gpu()
    assert isinstance(gpu, Gpu)
    return gpu


@functools.cache
def torch_cuda() -> str | Absence:
    """The version of CUDA that the installed torch was built with, or why there is none; does not import it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Absence("torch is not installed, which carries tensors on the device", "install a CUDA build of torch")
    text = Path(spec.origin).with_name("version.py").read_text(errors="replace")
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    if found is None:
        reason = f"torch {package_version('torch')} is built without CUDA"
        return Absence(reason, "install a CUDA build of torch in its place")
    return found[1]


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cuda_availability(
    version: str | None, build: str, *conditions: Absence | None, reduced: Sequence[str] = ()
) -> Availability:
    """Return if a toolchain can be used on the device: package, driver, device and torch must all be there.

    Args:
        version: Version of the toolchain, None if it is not installed.
        build: Everything besides the device that its timings depend on.
        conditions: Further things that may be missing; None if one is there.
        reduced: Values of its option ``precision`` besides f32.
    """
    gpu, carrier = find_gpu(), torch_cuda()
    missing = list(dict.fromkeys(found for found in (*conditions, gpu, carrier) if isinstance(found, Absence)))
    if missing:
        reason, remedy = ("; ".join(parts) for parts in zip(*((m.reason, m.remedy) for m in missing), strict=True))
        return Availability(False, version, build, reason=reason, remedy=remedy)
    return Availability(
        True, version, f"{build}, torch for CUDA {carrier}, {gpu}", (str(gpu),), precisions=tensor_cores(reduced)
    )


def tensor_cores(precisions: Sequence[str]) -> tuple[str, ...]:
    """Return the precisions that the device computes faster than f32: from capability 8.0 on, all of those given."""
    gpu = find_gpu()
    return tuple(precisions) if isinstance(gpu, Gpu) and gpu.capability >= (8, 0) else ()


@functools.cache
def _runs() -> Mapping[str, str]:
    runs: Mapping[str, str] = json.loads(RECORD.read_text())
    return runs


def ran_on(stem: str) -> str | None:
    """The device on which the contract tests of a target last passed; None if they never ran on one.

    ``make gpu`` writes the file, which is then committed by hand.
    """
    return _runs().get(stem)


class CudaToolchain(ToolchainBase):
    """Answers that are the same for every toolchain with a target of the device."""

    @property
    def reserves_address_space(self) -> bool:
        """True if there is a device: its driver maps it into the process."""
        return isinstance(find_gpu(), Gpu)

    def ran_on(self, target: Target) -> str | None:
        """Return the device on which the tests of the target have passed."""
        return ran_on(str(replace(target, options=()))) if target.kind == "cuda" else super().ran_on(target)


class TorchDevice:
    """A device whose tensors are torch's.

    The processor counts as a device too, so that code can be tested without a GPU.

    Args:
        name: Torch's name, such as ``cuda:0``.
    """

    def __init__(self, name: str) -> None:
        import torch

        self.name = name
        self._torch = torch
        self._is_cuda = name.startswith("cuda")
        self._clutter: Any = None

    def upload(self, x: Tensor) -> Any:
        """A tensor with an array's values."""
        from collage_torch.ops import from_array

        return from_array(np.asarray(x, order="C")).to(self.name)

    def download(self, x: Any) -> Tensor:
        """An array with a tensor's values, in memory of its own; waits for the work before."""
        array: Tensor = x.detach().to("cpu", copy=True).contiguous().numpy()
        return array

    def fill(self, tensor: Any, x: Any) -> None:
        """Overwrite a tensor with the values of an array, or of another tensor.

        Raises:
            ValueError: The shapes differ.
        """
        from collage_torch.ops import from_array

        if tuple(tensor.shape) != tuple(x.shape):
            raise ValueError(f"the shape {list(x.shape)} is not {list(tensor.shape)}")
        with self._torch.inference_mode():
            tensor.copy_(from_array(x) if isinstance(x, np.ndarray) else x)

    def copy(self, tensor: Any) -> Any:
        """The same values in memory of their own, in row-major order."""
        return tensor.clone(memory_format=self._torch.contiguous_format)

    def views(self, model: ir.Model) -> CudaKernel:
        """Views of tensors that stay on the device, through torch's calls for them."""
        from collage_torch.ops import Program

        program = Program(model)
        program.place(self.name)
        return CudaKernel(lambda *inputs: [y.contiguous() for y in program(*inputs)], self)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Seconds that the device spends on ``work``, by its own clock."""
        if not self._is_cuda:
            before = time.perf_counter()
            work()
            return time.perf_counter() - before
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds * 1e-3

    def evict(self, size_bytes: int) -> None:
        """Write this much memory, so that the caches are flushed."""
        torch = self._torch
        if self._clutter is None or self._clutter.numel() < size_bytes:
            self._clutter = torch.zeros(size_bytes, dtype=torch.uint8, device=self.name)
        self._clutter[:size_bytes].add_(1)

    def record(self, work: Callable[[], Sequence[Any]]) -> Recording:
        """Record ``work`` as a CUDA graph: its launches, at the addresses that it uses now.

        Raises:
            Unsupported: The device records nothing.
            RuntimeError: ``work`` takes a step that cannot be recorded, such as waiting for a result.
        """
        if not self._is_cuda:
            raise Unsupported(f"{self.name} records no graphs")
        torch = self._torch
        current, aside = torch.cuda.current_stream(self.name), torch.cuda.Stream(self.name)
        aside.wait_stream(current)
        with torch.cuda.stream(aside), torch.inference_mode():
            work()  # Libraries choose algorithms and reserve memory in a first run.
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile: only what this one does must be fit to be recorded.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"), torch.inference_mode():
            outputs = work()
        return _Graph(graph, outputs)


class _Graph:
    """A CUDA graph, and the tensors that it writes."""

    def __init__(self, graph: Any, outputs: Sequence[Any]) -> None:
        self._graph = graph
        self.outputs = outputs

    def replay(self) -> None:
        """Launch all recorded work."""
        self._graph.replay()


@contextlib.contextmanager
def queue_of(device: TorchDevice, *, fixed: bool = False) -> Iterator[int]:
    """The handle of a stream for a toolchain's work, in order with torch's work before and after.

    The default stream does not work: some toolchains wait for it after every call, others take its handle, 0, for none.
    Tensors must be allocated before, so that they belong to torch's stream.

    Args:
        device: The device.
        fixed: Always the same stream, for libraries that are bound to one stream; else torch's current stream if possible.
    """
    import torch

    current = torch.cuda.current_stream(device.name)
    if current.cuda_stream and not fixed:
        yield current.cuda_stream
        return
    aside = _aside(device.name)
    aside.wait_stream(current)
    yield aside.cuda_stream
    current.wait_stream(aside)


@functools.cache
def _aside(name: str) -> Any:
    import torch

    return torch.cuda.Stream(name)


@functools.cache
def cuda_device() -> TorchDevice:
    """The device of this process."""
    return TorchDevice("cuda:0")


class CudaKernel:
    """A function of tensors on the device as a kernel.

    Args:
        run: Takes and returns contiguous tensors on the device; launches its work on torch's current stream.
        device: The device.
        capturable: True if every call with inputs of one shape makes the same launches.
        tf32: True if torch's own calls may round products to TF32.
    """

    reuses_outputs = False

    def __init__(
        self, run: Callable[..., Sequence[Any]], device: TorchDevice, *, capturable: bool = True, tf32: bool = False
    ) -> None:
        self.device: Device = device
        self.capturable = capturable
        self._run = run
        self._tf32 = tf32

    def on_device(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run on tensors of the device, and return such tensors without waiting for them."""
        with settings(self._tf32):
            return self._run(*inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run on arrays of the host."""
        made = self.on_device([self.device.upload(x) for x in inputs])
        return [self.device.download(y) for y in made]


@contextlib.contextmanager
def settings(tf32: bool) -> Iterator[None]:
    """Settings that torch has once for the process: rounding, and if cuDNN tries its algorithms first.

    The older of its two ways to set rounding is the one that leaves both in agreement; torch's operators refuse to run
    where they are not.
    """
    import torch

    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = tf32, tf32, True
    try:
        with torch.inference_mode():
            yield
    finally:
        products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
