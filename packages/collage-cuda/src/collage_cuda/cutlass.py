"""CUTLASS: matrix products with constant weights, bias and activation, from NVIDIA's templates, compiled with nvcc.

Its compiled form is a shared library and the kernel's ONNX file, which holds the weights. A library holds several tilings;
on the first call for a number of rows the device tries them, and the fastest stays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import Availability, Compiled, LoadOptions, PatternEntry, Support, Unsupported
from collage.toolchains.sdk.libraries import path_to_load
from collage.toolchains.sdk.model_files import check_options, elem_type, kernel_name, save_kernel
from collage_cuda import cuda_support
from collage_cuda.cuda_library import try_on_zeros
from collage_cuda.cutlass_source import ACTIVATIONS, Build, find_headers, find_nvcc, tilings
from collage_cuda.linear_group import Linear, find_linear

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues

__all__ = ["CutlassToolchain"]

_PRECISIONS = ("f32", "tf32")
_OPTIONS: OptionValues = {"precision": _PRECISIONS}
_OPERATORS = frozenset(("MatMul", "Gemm", "Add", "Relu", "Gelu"))
_TRIALS = 3


class CutlassToolchain(cuda_support.CudaToolchain):
    """Compiles products with CUTLASS."""

    name = "cutlass"
    targets = ("cuda -compiler=cutlass",)
    options = {"precision": "f32; tf32: products of 10-bit mantissas on tensor cores, added up in f32 (default f32)"}
    optimises_whole_graphs = False
    on_default_menu = False

    def availability(self) -> Availability:
        """Version of the headers, and whether there is nvcc."""
        version = cuda_support.package_version("nvidia-cutlass")
        missing = None
        if find_headers() is None:
            missing = cuda_support.Absence("CUTLASS's headers are not installed", "pip install nvidia-cutlass")
        elif find_nvcc() is None:
            missing = cuda_support.Absence("no nvcc, which compiles its kernels", "install the CUDA toolkit")
        return cuda_support.cuda_availability(version, f"nvidia-cutlass {version}", missing, reduced=_PRECISIONS[1:])

    def pattern_table(self) -> Sequence[PatternEntry]:
        """Products with constant weights, and the operators of their epilogue."""
        from collage.pattern import NonLeafExternUse, is_const, is_op, maybe, wildcard

        product = is_op("MatMul")(wildcard(), is_const())
        linear = is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const()) | is_op("Gemm")(
            wildcard(), is_const(), maybe(is_const())
        )
        rows = {
            "cutlass.matmul": product,
            "cutlass.linear": linear,
            "cutlass.linear_relu": is_op("Relu")(linear | product),
            "cutlass.linear_gelu": is_op("Gelu")(linear | product).with_attr("approximate", "none"),
        }
        for pattern in rows.values():
            pattern.add_graph_constraint(NonLeafExternUse(False))
        return [PatternEntry(label, pattern) for label, pattern in rows.items()]

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return if the operator may be in one of its kernels. The patterns define the operators around it."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS:
            return Support(False, f"cutlass is used for products with constant weights, not for {node.op_type}")
        dtype = elem_type(node.outputs[0])
        if dtype is not None and dtype.name != "FLOAT":
            return Support(False, f"cutlass is used for f32 ({node.outputs[0].name!r} is {dtype.name.lower()})")
        return Support(True)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Generate the product's source and compile it for the device."""
        check_options(target, _OPTIONS)
        name = kernel_name(kernel)
        linear = self._linear(kernel.graph, target)
        found = self.availability()
        if not found.available:
            raise Unsupported(f"cutlass: {found.reason}; {found.remedy}")
        aligned = not any(size % 4 for size in linear.w.shape)
        tf32 = target.option("precision") == "tf32"
        library = Build(linear.activation, aligned, tf32, cuda_support.require_gpu().arch).library()
        options = "".join(f".{option}={value}" for option, value in target.options)
        path = workspace / f"{name}.cutlass{options}.so"
        draft = path.with_suffix(".draft")
        draft.write_bytes(library)
        draft.replace(path)
        files = save_kernel(kernel, workspace)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        metadata = {"library": path.name, "model": files[0]}
        compiled = Compiled(self.name, str(target), (path.name, *files), inputs, outputs, metadata=metadata)
        try_on_zeros(self.load(compiled, target, workspace, LoadOptions()), kernel, self.name)
        return compiled

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Load the library, and put weights and bias on the device."""
        import onnx_ir as ir

        check_options(target, _OPTIONS)
        device = cuda_support.cuda_device()
        linear = self._linear(ir.load(workspace / compiled.metadata["model"]).graph, target)
        entry = ctypes.CDLL(path_to_load(workspace / compiled.metadata["library"])).collage_product
        entry.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 3, ctypes.c_void_p]
        product = _Product(entry, linear, device, tilings(target.option("precision") == "tf32"))
        return cuda_support.CudaKernel(product, device)

    def _linear(self, graph: ir.Graph, target: Target) -> Linear:
        """The one product that a kernel is.

        Raises:
            Unsupported: It is another.
        """
        nodes = list(graph)
        for node in nodes:
            if not (found := self.supports(node, target)).ok:
                raise Unsupported(str(found.reason))
        first = next((node for node in nodes if node.op_type in ("MatMul", "Gemm")), None)
        linear = None if first is None else find_linear(first, frozenset(ACTIVATIONS))
        if linear is None or len(linear.nodes) != len(nodes) or len(graph.inputs) != 1 or len(graph.outputs) != 1:
            raise Unsupported("cutlass is used for one product with constant weights, a bias, and Relu or exact Gelu")
        return linear


class _Product:
    """``activation(x @ w + b)`` with the tiling that was fastest for this number of rows."""

    def __init__(self, entry: Any, linear: Linear, device: cuda_support.TorchDevice, count: int) -> None:
        import torch

        self._torch = torch
        self._entry = entry
        self._device = device
        self._count = count
        self._w = torch.from_numpy(linear.w).to(device.name).contiguous()
        bias = torch.zeros(linear.w.shape[1]) if linear.b is None else torch.from_numpy(linear.b)
        self._b = bias.to(device.name).contiguous()
        self._tiling: dict[int, int] = {}

    def __call__(self, x: Any) -> Sequence[Any]:
        k, n = self._w.shape
        x = x.clone() if x.data_ptr() % 16 else x
        y = self._torch.empty((*x.shape[:-1], n), dtype=self._torch.float32, device=self._device.name)
        rows = x.numel() // k
        if rows:
            if rows not in self._tiling:
                self._tiling[rows] = self._fastest(x, y, rows)
            self._run(self._tiling[rows], x, y, rows)
        return [y]

    def _fastest(self, x: Any, y: Any, rows: int) -> int:
        """Try all tilings that take the shapes; a first run of each warms up."""
        seconds = {}
        for tiling in range(self._count):
            try:
                run = partial(self._run, tiling, x, y, rows)
                times = [self._device.seconds(run) for _ in range(_TRIALS)]
            except Unsupported:
                continue
            seconds[tiling] = min(times[1:])
        if not seconds:
            raise Unsupported("cutlass: none of its tilings takes the shapes")
        return min(seconds, key=lambda tiling: seconds[tiling])

    def _run(self, tiling: int, x: Any, y: Any, rows: int) -> None:
        k, n = self._w.shape
        stream = self._torch.cuda.current_stream(self._device.name).cuda_stream
        pointers = (x.data_ptr(), self._w.data_ptr(), self._b.data_ptr(), y.data_ptr())
        if status := self._entry(tiling, *pointers, rows, n, k, stream):
            raise Unsupported(f"cutlass: tiling {tiling} returned status {status}")
