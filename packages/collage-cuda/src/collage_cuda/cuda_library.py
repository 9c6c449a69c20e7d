"""The base of libraries of operators on the device: a kernel is one group of nodes that is one call, through torch.

Their compiled form is the kernel's ONNX file: constants are put on the device when it is loaded, and algorithms are chosen
on the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from collage.toolchains import (
    Availability,
    CollageError,
    Compiled,
    CompileError,
    LoadOptions,
    PatternEntry,
    Support,
    Unsupported,
)
from collage.toolchains.sdk.model_files import check_options, elem_type, one_line, save_kernel
from collage_cuda import cuda_support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues, Tensor
    from collage_torch.ops import Fused

__all__ = ["PRECISIONS", "TorchCudaLibrary", "try_on_zeros"]

PRECISIONS = ("f32", "tf32", "f16")
_OPTIONS: OptionValues = {"precision": PRECISIONS}
_TRIAL_ELEMENTS = 200_000_000
"""Kernels with larger inputs are not tried on zeros."""


class TorchCudaLibrary(cuda_support.CudaToolchain):
    """Runs kernels as calls of one library.

    Attributes:
        packages: Distributions that bring the library along, one for each version of CUDA.
        operators: Operators that can be in a kernel.
        heads: Operators with which a call begins.
        what: Name of the kind of kernel, for people.
    """

    packages: ClassVar[tuple[str, ...]]
    operators: ClassVar[frozenset[str]]
    heads: ClassVar[frozenset[str]]
    what: ClassVar[str]
    options: Mapping[str, str] = {
        "precision": "f32; tf32: products of 10-bit mantissas, added up in f32; f16: in half precision (default f32)"
    }
    optimises_whole_graphs = False
    on_default_menu = False

    def patterns(self) -> Mapping[str, Any]:
        """The operators of each call, by the call's name."""
        raise NotImplementedError

    def group(self, head: ir.Node, device: str, precision: str) -> Fused | None:
        """Return the call that begins with a node, its constants put on the device; None if there is none."""
        raise NotImplementedError

    def pattern_table(self) -> Sequence[PatternEntry]:
        """The calls, none of whose inner results is used elsewhere."""
        from collage.pattern import NonLeafExternUse

        rows = self.patterns()
        for pattern in rows.values():
            pattern.add_graph_constraint(NonLeafExternUse(False))
        return [PatternEntry(f"{self.name}.{call}", pattern) for call, pattern in rows.items()]

    def program(self, model: ir.Model, device: str, precision: str) -> Any:
        """Return a function of tensors on the device that computes a kernel by calls of the library.

        Raises:
            Unsupported: A node of it is in no call.
        """
        from collage_torch.ops import Program

        heads = [node for node in model.graph if node.op_type in self.heads]
        groups = [group for node in heads if (group := self.group(node, device, precision)) is not None]
        taken = {node for group in groups for node in group.nodes}
        if not groups:
            raise Unsupported(f"{self.name} takes {self.what}")
        for node in model.graph:
            if node not in taken:
                raise Unsupported(f"{self.name} has no single call for {node.op_type} with the operators around it")
        program = Program(model, fuse=lambda _: groups)
        program.place(device)
        return program

    def availability(self) -> Availability:
        """Version of the library, and the missing parts."""
        version = next(filter(None, map(cuda_support.package_version, self.packages)), None)
        torch = cuda_support.package_version("torch")
        version = version or (f"with torch {torch}" if torch else None)
        return cuda_support.cuda_availability(version, f"{self.name} {version}, torch {torch}", reduced=PRECISIONS[1:])

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return if the operator may be in one of its kernels. The patterns define the operators around it."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in self.operators:
            return Support(False, f"{self.name} takes {self.what}, not {node.op_type}")
        for value in (*node.inputs[:1], *node.outputs[:1]):
            dtype = elem_type(value) if value is not None else None
            if dtype is not None and dtype.name != "FLOAT":
                return Support(False, f"{self.name} is used for f32 ({value} is {dtype.name.lower()})")
        return Support(True)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the kernel, and run it once to see that the library takes it."""
        check_options(target, _OPTIONS)
        for node in kernel.graph:
            if not (found := self.supports(node, target)).ok:
                raise Unsupported(str(found.reason))
        files = save_kernel(kernel, workspace)
        cuda_support.require_gpu()
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        compiled = Compiled(self.name, str(target), files, inputs, outputs, portable=True, metadata={"model": files[0]})
        try_on_zeros(self.load(compiled, target, workspace, LoadOptions()), kernel, self.name)
        return compiled

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Put the constants on the device."""
        import onnx_ir as ir

        check_options(target, _OPTIONS)
        precision = target.option("precision") or "f32"
        device = cuda_support.cuda_device()
        model = ir.load(workspace / compiled.metadata["model"])
        try:
            program = self.program(model, device.name, precision)
        except CollageError:
            raise
        except Exception as error:
            raise CompileError(f"{self.name}: {one_line(error)}") from error
        return cuda_support.CudaKernel(program, device, tf32=precision == "tf32")


def try_on_zeros(kernel: Kernel, model: ir.Model, name: str) -> None:
    """Run a kernel once on zeros, with 2 for symbolic sizes, and compare types and shapes of outputs with its model.

    Raises:
        Unsupported: It fails, or yields other types or shapes.
    """
    zeros = [_zeros(value) for value in model.graph.inputs]
    if any(x is None for x in zeros):
        return
    try:
        outputs = kernel([x for x in zeros if x is not None])
    except CollageError:
        raise
    except Exception as error:
        raise Unsupported(f"{name}: {one_line(error)}") from error
    for value, y in zip(model.graph.outputs, outputs, strict=True):
        dtype = elem_type(value)
        if dtype is not None and y.dtype != dtype.numpy():
            raise Unsupported(f"{name} makes {y.dtype} of {value.name!r}, a {dtype.name.lower()}")
        fits = value.shape is None or [
            s if isinstance(s, int) else n for s, n in zip(value.shape, y.shape, strict=False)
        ]
        if fits is not True and fits != list(y.shape):
            raise Unsupported(f"{name} gives {value.name!r} the shape {list(y.shape)}")


def _zeros(value: ir.Value) -> Tensor | None:
    dtype = elem_type(value)
    if dtype is None or value.shape is None:
        return None
    shape = [size if isinstance(size, int) else 2 for size in value.shape]
    return None if np.prod(shape, dtype=np.float64) > _TRIAL_ELEMENTS else np.zeros(shape, dtype.numpy())
