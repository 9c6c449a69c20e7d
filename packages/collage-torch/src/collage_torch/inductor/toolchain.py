"""Inductor: sub-graphs compiled ahead of time by PyTorch's own compiler, weights frozen into a shared library.

Its compiled form is native code for this machine, made by AOTInductor and a C++ compiler; loading it compiles nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import (
    Availability,
    CollageError,
    Compiled,
    CompileError,
    LoadOptions,
    Support,
    ToolchainBase,
    Unsupported,
)
from collage.toolchains.sdk.libraries import path_to_load
from collage.toolchains.sdk.model_files import check_options, kernel_name, one_line, refuse_operators, save_kernel
from collage_torch.inductor.compiler import caches_in, folder_for, hide_folders, quiet_compiler
from collage_torch.kernel import (
    TorchKernel,
    check_by_running,
    support,
    torch_availability,
)
from collage_torch.threads import import_torch, set_threads

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues
    from collage_torch.ops import Program

__all__ = [
    "InductorToolchain",
]

_OPTIONS: OptionValues = {"threads": None}
_COMPILERS = ("g++", "clang++")
_UNROLLED = frozenset(("LSTM", "GRU", "RNN"))
_MOST_STEPS = 8
"""Each is written out in C++, and compiled."""


class InductorToolchain(ToolchainBase):
    """Compiles kernels with AOTInductor for the CPU."""

    name = "inductor"
    targets: tuple[str, ...] = ("llvm -compiler=inductor",)
    on_default_menu = False
    options = {
        "threads": "number of threads (default: one for each physical core); one number for the whole process",
    }

    def availability(self) -> Availability:
        """Version of torch, and whether there is a C++ compiler."""
        found = torch_availability()
        if found.available and not any(map(shutil.which, _COMPILERS)):
            return replace(
                found,
                available=False,
                reason="no C++ compiler, which builds its kernels",
                remedy="install g++ or clang",
            )
        return found

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return if the table of torch calls takes an operator, and the compiler too."""
        reason = _refusal(node, target)
        return Support(False, reason) if reason is not None else support(node)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Export the kernel and compile it to a shared library; caches and sources are left nowhere."""
        check_options(target, self.option_values(target))
        name = kernel_name(kernel)
        refuse_operators(lambda node: _refusal(node, target), kernel.graph)
        _refuse_inputs(kernel.graph)
        import_torch()
        from collage_torch.op_groups import find_static_groups
        from collage_torch.ops import Program

        draft = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=workspace))
        try:
            program = Program(_read_back(kernel, workspace), fuse=find_static_groups)
            if program.reads_values_on_host:
                raise Unsupported("inductor compiles no shapes that depend on the values of inputs")
            check_by_running(program, kernel)
            # By target, since a process that has loaded a library gets the same one again under the same name.
            options = "".join(f".{option}={value}" for option, value in target.options)
            return self.build(program, kernel, target, workspace / f"{name}.inductor{options}", draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def build(self, program: Program, kernel: ir.Model, target: Target, stem: Path, draft: Path) -> Compiled:
        """Compile a program that computes a kernel.

        Args:
            program: The kernel as torch's calls.
            kernel: The kernel.
            target: Its target.
            stem: The path of the file to write, without its ending.
            draft: A folder that is removed afterwards.
        """
        library = stem.with_name(f"{stem.name}.so")
        built = _build(program, kernel, draft)
        hide_folders(built, draft, Path(import_torch().__file__).parents[1])
        built.replace(library)
        files = tuple(path.name for path in (library, *_calls_of(library, draft)))
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), files, inputs, outputs, metadata={"library": library.name})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Load the library."""
        check_options(target, _OPTIONS)
        threads = set_threads(target, options)
        torch = import_torch()
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(path_to_load(workspace / compiled.metadata["library"]), 1)
        # The library itself copies outputs that are constants of its own.
        return TorchKernel(lambda *inputs: runner.run(list(inputs)), compiled, threads)


def _refusal(node: ir.Node, target: Target) -> str | None:
    if node.domain != "":
        return None
    if node.op_type in _UNROLLED and not (_is_short(node) and target.kind == "llvm"):
        return f"inductor would unroll {node.op_type} step by step (on the CPU it may, up to {_MOST_STEPS} steps)"
    if node.op_type == "NonZero" or (node.op_type == "Compress" and not _is_constant(node.inputs[1:2])):
        return f"inductor compiles no shapes that depend on data ({node.op_type})"
    return None


def _is_short(node: ir.Node) -> bool:
    """Return True if a recurrent layer is known to have few steps."""
    x = node.inputs[0] if node.inputs else None
    layout = node.attributes.get("layout")
    if x is None or x.shape is None or len(x.shape) != 3 or (layout is not None and layout.value not in (0, 1)):
        return False
    steps = x.shape[0 if layout is None else layout.value]
    return isinstance(steps, int) and steps <= _MOST_STEPS


def _is_constant(values: Sequence[ir.Value | None]) -> bool:
    return all(value is not None and value.const_value is not None for value in values)


def _refuse_inputs(graph: ir.Graph) -> None:
    """Its code is for the shapes that it was compiled with: others would be read out of bounds."""
    if not graph.inputs:
        raise Unsupported("inductor compiles nothing that reads no input")
    for value in graph.inputs:
        if value.shape is None or not all(isinstance(size, int) for size in value.shape):
            raise Unsupported(f"inductor's kernels are compiled for fixed shapes ({value.name!r} is {value.shape})")


def _read_back(kernel: ir.Model, workspace: Path) -> ir.Model:
    """The kernel as written and read again, so that its weights are checked to lie in the workspace."""
    import onnx_ir as ir

    files = save_kernel(kernel, workspace)
    try:
        return ir.load(workspace / files[0])
    finally:
        (workspace / files[0]).unlink()


def _build(program: Any, kernel: ir.Model, draft: Path) -> Path:
    torch = import_torch()
    import numpy as np

    with folder_for("TORCHINDUCTOR_CACHE_DIR", folder=draft):  # the import makes it
        import torch._inductor as inductor

    zeros = [
        np.zeros([size for size in v.shape or () if isinstance(size, int)], v.dtype.numpy())
        for v in kernel.graph.inputs
        if v.dtype
    ]
    examples = tuple(torch.from_numpy(x) for x in zeros)
    settings = {
        "aot_inductor.output_path": str(draft / "kernel.so"),
        "aot_inductor.enable_line_tables": False,  # nobody steps through kernels; three quarters of a small library
        "aot_inductor.precompile_headers": False,  # torch remembers where they are; they are gone with the draft
        "compile_threads": 1,  # builds of several toolchains run side by side
        "cpp.dynamic_threads": True,  # the number of threads is known when the kernel is loaded
        "freezing": True,  # weights are constants, so packed for oneDNN
    }
    try:
        with caches_in(draft), quiet_compiler(), torch.no_grad():
            exported = torch.export.export(program, examples, strict=False)
            return Path(str(inductor.aot_compile(exported.module(), examples, options=settings)))
    except CollageError:
        raise
    except Exception as error:
        raise CompileError(f"inductor: {one_line(error)}") from error


def _calls_of(library: Path, draft: Path) -> Iterator[Path]:
    """The list of operators without a C interface, which a library calls by name. Torch looks for it beside the library."""
    for calls in draft.glob("*.wrapper.json"):
        yield calls.replace(library.with_suffix(".json"))
