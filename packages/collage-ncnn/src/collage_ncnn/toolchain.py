"""ncnn: sub-graphs of one image, whose 3x3 convolutions it computes by Winograd's algorithm.

Its compiled form is a text of layers and a file of their float32 weights. Weights are transformed for this processor when the
kernel is loaded.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.toolchains import (
    NOT_INSTALLED,
    Availability,
    Compiled,
    CompileError,
    HelperThreads,
    Layout,
    LoadOptions,
    OptionValues,
    Support,
    ToolchainBase,
    ToolchainError,
    Unsupported,
    check_options,
    kernel_name,
    load_threads,
    started_meanwhile,
)
from collage.toolchains.sdk.import_probe import import_failure, install_command
from collage.toolchains.sdk.in_place import InPlaceKernelBase
from collage.toolchains.sdk.model_files import one_line, usable_cores
from collage.toolchains.sdk.openmp import quiet_threads
from collage_ncnn.layers import param_text, weight_bytes
from collage_ncnn.lowering import lowered, refuse_node
from collage_ncnn.operator import shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, Tensor

__all__ = ["NcnnToolchain"]

_OPTIONS: OptionValues = {"threads": None, "precision": ("f32", "bf16")}
_OLDEST = 13
"""The operator set from which on attributes and inputs are those that the translation reads."""
_MALFORMED = (ArithmeticError, LookupError, OSError, TypeError, ValueError)
"""Errors of reading an operator that does not follow ONNX's definition, or whose weights are missing."""


class NcnnToolchain(ToolchainBase):
    """Compiles and runs kernels with ncnn."""

    name = "ncnn"
    targets = ("llvm -compiler=ncnn",)
    options = {
        "threads": "number of threads (default: one for each physical core)",
        "precision": "f32 or bf16: the type that weights and results are held in (default f32)",
    }
    on_default_menu = False

    def availability(self) -> Availability:
        """Return the version, without importing ncnn in this process."""
        try:
            version = importlib.metadata.version("ncnn")
        except importlib.metadata.PackageNotFoundError:
            return Availability(False, reason=NOT_INSTALLED, remedy=install_command("ncnn"))
        if (reason := import_failure("ncnn", _import)) is not None:
            return Availability(False, reason=reason, remedy=install_command("ncnn", again=True))
        return Availability(True, version, f"ncnn {version}", ("CPU",))

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return the answer of the translation itself, which needs no library."""
        try:
            reason = refuse_node(node)
        except _MALFORMED as error:
            reason = f"ncnn: {node.op_type} is not as ONNX defines it: {one_line(error)}"
        return Support(reason is None, reason)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the layers and weights, and have ncnn read them."""
        check_options(target, _OPTIONS)
        name = kernel_name(kernel)
        if (opset := kernel.graph.opset_imports.get("", _OLDEST)) < _OLDEST:
            raise Unsupported(f"ncnn is given operators as of operator set {_OLDEST}, not {opset}")
        try:
            network = lowered(_recognised(kernel).graph)
            shapes = [shape_of(value) for value in kernel.graph.outputs]
        except _MALFORMED as error:
            raise Unsupported(f"ncnn: an operator is not as ONNX defines it: {one_line(error)}") from error
        if [math.prod(shape) for shape in shapes] != [math.prod(blob.shape) for blob in network.outputs]:
            raise Unsupported(f"ncnn makes results of shapes other than {[list(shape) for shape in shapes]}")
        files = f"{name}.ncnn.param", f"{name}.ncnn.bin"
        (workspace / files[0]).write_text(param_text(network.layers))
        with (workspace / files[1]).open("wb") as file:
            file.writelines(weight_bytes(network.layers))
        _net(workspace, files, target, LoadOptions(threads=1))
        return Compiled(
            self.name,
            str(target),
            files,
            tuple(str(value.name) for value in kernel.graph.inputs),
            tuple(str(value.name) for value in kernel.graph.outputs),
            metadata={
                "inputs": [None if blob is None else [blob.name, list(blob.shape)] for blob in network.inputs],
                "outputs": [[blob.name, list(blob.shape)] for blob in network.outputs],
                "shapes": [list(shape) for shape in shapes],
            },
        )

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Read the network, which packs and transforms its weights."""
        check_options(target, _OPTIONS)
        return _NetKernel(_net(workspace, compiled.files, target, options), compiled)


class _NetKernel(InPlaceKernelBase):
    """A network whose results are copied from ncnn's layout with padded channels to the output arrays."""

    def __init__(self, net: _Net, compiled: Compiled) -> None:
        told = compiled.metadata
        super().__init__([Layout("float32", tuple(shape)) for shape in told["shapes"]])
        self._net = net
        places = net.places()
        self._inputs = [
            (i, places[blob[0]], tuple(blob[1])) for i, blob in enumerate(told["inputs"]) if blob is not None
        ]
        self._outputs = [(places[name], tuple(shape)) for name, shape in told["outputs"]]

    def run_into(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Run the network. See ``InPlaceKernel``."""
        ncnn = self._net.ncnn
        # Both must live as long as the run: a tensor of ncnn only points to them.
        given = [(place, np.asarray(inputs[i], order="C").reshape(shape)) for i, place, shape in self._inputs]
        with self._net.run() as extractor:
            tensors = [(place, ncnn.Mat(x)) for place, x in given]
            for place, tensor in tensors:
                extractor.input(place, tensor)
            for (place, shape), y in zip(self._outputs, outputs, strict=True):
                found = ncnn.Mat()
                if (code := extractor.extract(place, found)) != 0:
                    raise ToolchainError(f"ncnn cannot compute the kernel: it returns {code}")
                result = np.asarray(found)
                if result.shape != shape or result.dtype != np.float32:
                    raise ToolchainError(f"ncnn makes {result.dtype} {list(result.shape)} where {list(shape)} belongs")
                np.copyto(y.reshape(shape), result)


class _Net:
    """A network in memory, with the memory that its runs take from."""

    def __init__(self, target: Target, options: LoadOptions) -> None:
        self.ncnn = _import(options.exclusive)
        self._threads = load_threads(target, options) or usable_cores()
        # A result in memory of the network's own would be copied once more when it leaves it. What the network itself holds
        # must not lie in here: it may end last.
        self._results, self._scratch = self.ncnn.PoolAllocator(), self.ncnn.PoolAllocator()
        self.net = self.ncnn.Net()
        settings = self.net.opt
        settings.num_threads = self._threads
        settings.use_vulkan_compute = False
        settings.use_packing_layout = True
        for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "int8_inference"):
            setattr(settings, f"use_{name}", False)
        narrow = target.option("precision") == "bf16"
        settings.use_bf16_packed = settings.use_bf16_storage = narrow

    def places(self) -> dict[str, int]:
        """Return the number of each blob by name."""
        return {blob.name: place for place, blob in enumerate(self.net.blobs())}

    @contextlib.contextmanager
    def run(self) -> Iterator[Any]:
        """Return the extractor of one run."""
        with _team.of(self._threads):
            extractor = self.net.create_extractor()
            extractor.set_blob_allocator(self._results)
            extractor.set_workspace_allocator(self._scratch)
            try:
                yield extractor
            finally:
                extractor.clear()


class _Team(threading.local):
    """The calling thread's helpers: each thread that calls OpenMP has its own."""

    def __init__(self) -> None:
        self._size = 1
        self._helpers = HelperThreads()

    @contextlib.contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Keep helpers off the calling thread's processor, and collect those that start in a first run."""
        if size > self._size:
            with started_meanwhile() as started:
                yield
            self._helpers.add(started)
            self._size = size
        else:
            if size > 1:
                self._helpers.move_off()
            yield


_team = _Team()


def _net(workspace: Path, files: Sequence[str], target: Target, options: LoadOptions) -> _Net:
    net = _Net(target, options)
    param, weights = (str(workspace / name) for name in files)
    for read, path in ((net.net.load_param, param), (net.net.load_model, weights)):
        if (code := read(path)) != 0:
            raise CompileError(f"ncnn cannot read {Path(path).name}: it returns {code}")
    return net


def _import(exclusive: bool = False) -> Any:
    """Import ncnn. Its threads are quiet between two runs unless the first import is ``exclusive``."""
    with contextlib.nullcontext() if exclusive else quiet_threads():
        import ncnn

    return ncnn


def _recognised(kernel: ir.Model) -> ir.Model:
    """Return a kernel in which GELU is one operator, as ncnn has it."""
    from collage.transform import PassContext, RecogniseGelu

    with PassContext(opt_level=3):
        return RecogniseGelu()(kernel)
