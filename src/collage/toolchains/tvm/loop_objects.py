"""Object files of loop nests: several at a time, and once for a nest that several kernels of a compilation have.

Most kernels of a search are nearly the whole model, and differ at its ends. Four fifths of TVM's time for such a kernel go into
loop nests: into passes that lower them, and into LLVM, which has one thread for each module. Each nest is a module here.
"""

from __future__ import annotations

import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from collage.toolchains.sdk.model_files import usable_cores

__all__ = ["naming_nests", "objects_pipeline"]

_NUMBER = re.compile(r"(?<=[a-z_])\d+(?=_|$)")
_made: dict[Any, bytes] = {}
"""Object files by nest and goal, as long as the process lives. A nest has its name, which is that of the object's symbol."""


def naming_nests() -> Any:
    """Return a pass that names each function of loops after its operators and its content.

    TVM counts functions of the same operators, so that a nest has another name in another kernel.
    """

    def name(module: Any, _: Any) -> Any:
        renamed = _Renamer(module)
        functions = {
            variable: renamed.visit_expr(function)
            for variable, function in module.functions_items()
            if isinstance(function, relax.Function)
        }
        named = renamed.builder_.get()
        return tvm.IRModule({**dict(named.functions_items()), **functions}, attrs=module.attrs)

    return tvm.transform.module_pass(name, opt_level=0, name="naming_nests")


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):  # type: ignore[misc]
    """Calls functions of loops by new names. It begins with a module of its own, since a known function keeps its name."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._new = {
            variable: self.builder_.add_func(function, _name_of(variable, function))
            for variable, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }

    def visit_global_var_(self, variable: Any) -> Any:
        """Replace the variable of a function of loops."""
        return self._new.get(variable, variable)


def _name_of(variable: Any, function: Any) -> str:
    operators = _NUMBER.sub("", str(variable.name_hint))
    return f"{operators}_{tvm_ffi.structural_hash(function) % 2**64:016x}"


def objects_pipeline(loops: str, objects: list[bytes], folder: Path) -> str:
    """Register a pipeline that makes an object file of each nest, and leaves no nest in the module. Return its name.

    TVM takes names of pipelines only.

    Args:
        loops: The name of the pipeline from one nest to code for the processor.
        objects: Becomes the object files, which are to be linked with what TVM makes of the rest.
        folder: A folder for files that are removed again.
    """

    def make(module: Any, _: Any) -> Any:
        objects[:] = _objects(module, loops, folder)
        return tvm.IRModule({}, attrs=module.attrs)

    def made() -> tuple[Any, Any, Any]:
        _, host, device = tirx.get_tir_pipeline("default")
        return tvm.transform.module_pass(make, opt_level=0, name="make_objects"), host, device

    name = f"{loops}.objects"
    tirx.compilation_pipeline.register_tir_pipeline(name, made)
    return name


def _objects(module: Any, loops: str, folder: Path) -> list[bytes]:
    goal, settings = tvm.target.Target.current(), tvm.transform.PassContext.current()
    # The number of threads decides how many there are at run time, and nothing in an object.
    kind = [(name, str(value)) for name, value in goal.attrs.items() if name != "num-cores"]
    structural: Any = tvm_ffi.StructuralKey
    keys = {
        variable: (structural(function.without_attr("target")), settings.opt_level, loops, *sorted(kind))
        for variable, function in module.functions_items()
    }

    def make(variable: Any) -> bytes:
        with goal, settings, tempfile.TemporaryDirectory(dir=folder) as drafts:
            built = tirx.build(tvm.IRModule({variable: module[variable]}, attrs=module.attrs), goal, loops)
            built.write_to_file(str(file := Path(drafts, "nest.o")))
            return file.read_bytes()

    unknown = [variable for variable, key in keys.items() if key not in _made]
    with ThreadPoolExecutor(usable_cores()) as threads:
        for variable, made in zip(unknown, threads.map(make, unknown), strict=True):
            _made[keys[variable]] = made
    return [_made[key] for key in keys.values()]
