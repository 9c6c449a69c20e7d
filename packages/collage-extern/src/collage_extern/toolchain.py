"""Native code that calls libraries: TVM's kernels, in which labelled parts are calls of external functions.

``llvm -libs=extern`` follows TVM's form "native code, linked with": here with all registered external functions. A
target ``-libs=NAME`` other than this is a library whose kernels are its calls alone.

Its compiled form is the shared library, and an ONNX file for each call, from which constants are packed when it is loaded,
for the processor found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import (
    Availability,
    CollageError,
    Compiled,
    CompileError,
    LoadOptions,
    PatternEntry,
    Support,
    ToolchainBase,
)
from collage.toolchains.sdk.import_probe import install_command
from collage.toolchains.sdk.model_files import (
    check_options,
    kernel_name,
    load_threads,
    one_line,
    save_kernel,
    usable_cores,
)
from collage.toolchains.tvm.kernels import (
    LEVELS,
    MachineKernel,
    add_threads,
    build_library,
    import_kernel,
    machine_facts,
    tvm_availability,
    tvm_target,
)
from collage.toolchains.tvm.known_wrong import support
from collage_extern.functions import (
    NATIVE,
    BoundFunction,
    ExternFunction,
    ExternLibraries,
    extern_libraries,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues

__all__ = ["ExternToolchain"]

_OPTIONS: OptionValues = {"threads": None, "opt-level": LEVELS}


class ExternToolchain(ToolchainBase):
    """Compiles kernels of native code and calls of external functions.

    Args:
        libraries: The registry of functions; the installed ones by default.
    """

    name = "extern"
    targets = ("llvm -libs=extern",)
    options = {
        "threads": "number of threads (default: one for each physical core); one number for the whole process",
        "opt-level": "0 to 3: TVM's own optimisation level (default 3)",
    }
    optimises_whole_graphs = False
    considers_library = True
    on_default_menu = False

    def __init__(self, libraries: ExternLibraries | None = None) -> None:
        self._given = libraries

    @property
    def _libraries(self) -> ExternLibraries:
        return self._given or extern_libraries()

    def availability(self) -> Availability:
        """TVM's, and which libraries offer functions."""
        found = tvm_availability(with_torch=True)
        builds = ", ".join(f"{library.name} of {library.build}" for library in self._libraries)
        if not found.available:
            return found
        if not builds:
            reason = "no library offers functions" + "".join(f"; {why}" for why in self._libraries.broken.values())
            return Availability(False, found.version, found.build, reason=reason, remedy=install_command("torch"))
        return Availability(True, found.version, f"{found.build}, {builds}", found.devices)

    def pattern_table(self) -> Sequence[PatternEntry]:
        """Return the patterns of all functions. Candidates of one operator also exist for native code."""
        functions = self._libraries.functions()
        called = [PatternEntry(f.label, f.pattern, lambda match, f=f: _stands_for(f, match)) for f in functions]
        native = [
            PatternEntry(NATIVE, f.pattern, lambda match, f=f: len(match.nodes) == 1 and _stands_for(f, match))
            for f in functions
        ]
        return [*called, *native]

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return if native code takes an operator."""
        return support(node)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Replace operators by calls, generate code for the rest, and bind every call once to check that it can be bound."""
        check_options(target, self.option_values(target))
        from collage_extern.lowering import outlined, reader

        name = kernel_name(kernel)
        rest, calls = outlined(kernel, self._libraries)
        module = import_kernel(rest, workspace, self._goal(target), reader(calls) if calls else None)
        threads = int(target.option("threads") or usable_cores())
        for call in calls:
            _bind(call.function, call.model, threads)
        options = "".join(f".{option}={value}" for option, value in target.options)
        code, lent = self._build(module, target, workspace / f"{name}.{self.name}{options}.so")
        saved = [save_kernel(call.model, workspace) for call in calls]
        files = list(dict.fromkeys([*code, *(file for files in saved for file in files)]))
        told = [[call.function.label, files.index(model)] for call, (model, *_) in zip(calls, saved, strict=True)]
        return Compiled(
            self.name,
            str(target),
            tuple(files),
            tuple(str(value.name) for value in kernel.graph.inputs),
            tuple(str(value.name) for value in kernel.graph.outputs),
            metadata={**machine_facts(kernel.graph, lent), "calls": told},
        )

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Binds the functions, and loads the library while they are registered.

        Its threads always rest between two loop nests: those of the functions' libraries work meanwhile.
        """
        check_options(target, self.option_values(target))
        import onnx_ir as ir

        from collage_extern.lowering import registered

        threads = load_threads(target, options) or usable_cores()
        functions = [
            _bind(self._libraries.get(label), ir.load(workspace / compiled.files[index]), threads)
            for label, index in compiled.metadata["calls"]
        ]
        with registered(functions):
            return self._kernel(workspace, compiled, threads)

    def _goal(self, target: Target) -> Any:
        """Return TVM's target."""
        return tvm_target(target)

    def _build(self, module: Any, target: Target, library: Path) -> tuple[Sequence[str], Sequence[int]]:
        """Write the code of a module. Return the names of its files, and which outputs lie in memory that is not theirs alone."""
        lent = build_library(module, target, library)
        return [library.name, add_threads(library)], lent

    def _kernel(self, workspace: Path, compiled: Compiled, threads: int) -> Kernel:
        """Load the code, while the functions that it calls are registered."""
        return MachineKernel(workspace, compiled, threads, exclusive=False)


def _stands_for(function: ExternFunction, match: Any) -> bool:
    return function.why_not(match.nodes) is None


def _bind(function: ExternFunction, model: ir.Model, threads: int) -> BoundFunction:
    """A function bound to the operators that it computes.

    Raises:
        ToolchainError: It cannot be.
    """
    try:
        return function.bind(model, threads)
    except CollageError:
        raise
    except Exception as error:
        raise CompileError(f"extern: {function.label} cannot be bound: {one_line(error)}") from error
