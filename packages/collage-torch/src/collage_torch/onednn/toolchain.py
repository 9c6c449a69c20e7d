"""oneDNN: library calls for whole sub-graphs, through PyTorch's fused operators, weights packed in advance.

Its compiled form is the kernel's ONNX file; weights are packed when it is loaded, for the processor found there.
Everything that oneDNN has no call for runs as the torch operator of the shared table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collage.toolchains import Availability, CollageError, Compiled, CompileError, LoadOptions, Support, ToolchainBase
from collage.toolchains.sdk.model_files import check_options, one_line, save_kernel
from collage_torch.kernel import (
    TorchKernel,
    check_by_running,
    quiet,
    support,
    torch_availability,
)
from collage_torch.threads import import_torch, set_threads

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues
    from collage_torch.ops import Program

__all__ = ["OneDnnToolchain"]

_OPTIONS: OptionValues = {"threads": None}


class OneDnnToolchain(ToolchainBase):
    """Runs kernels as calls of oneDNN's fused operators."""

    name = "onednn"
    targets = ("llvm -libs=onednn",)
    on_default_menu = False
    options = {"threads": "number of threads (default: one for each physical core); one number for the whole process"}

    def availability(self) -> Availability:
        """Version of torch, which brings oneDNN along."""
        return torch_availability()

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return if the table of torch calls takes an operator."""
        return support(node)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the kernel, and run it once to see that torch takes it."""
        check_options(target, _OPTIONS)
        files = save_kernel(kernel, workspace)
        check_by_running(_program(workspace / files[0]), kernel)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), files, inputs, outputs, portable=True, metadata={"model": files[0]})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Pack the weights."""
        check_options(target, _OPTIONS)
        threads = set_threads(target, options)
        program = _program(workspace / compiled.metadata["model"])
        return TorchKernel(program.forward, compiled, threads, program.constants())


def _program(path: Path) -> Program:
    import onnx_ir as ir

    import_torch()
    from collage_torch.onednn.fusion import find_groups
    from collage_torch.ops import Program

    try:
        with quiet():
            return Program(ir.load(path), fuse=find_groups)
    except CollageError:
        raise
    except Exception as error:
        raise CompileError(f"onednn: {one_line(error)}") from error
