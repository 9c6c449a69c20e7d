"""Collage: finds, by measurement, the fastest mix of toolchains for a model and a machine.

::

    import collage

    exe = collage.compile("model.onnx", targets=["llvm", "onnxruntime", "openvino"])
    outputs = exe.run({"x": x})
    exe.save("model.collage")
    exe = collage.load("model.collage")

Names are imported on first use, so that ``import collage`` costs nothing. Type checkers and editors read the imports below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from collage._version import __version__

if TYPE_CHECKING:
    from collage import backend as backend
    from collage import byoc as byoc
    from collage import compiler as compiler
    from collage import cost as cost
    from collage import database as database
    from collage import device as device
    from collage import explain as explain
    from collage import frontend as frontend
    from collage import fusion as fusion
    from collage import graph as graph
    from collage import integrations as integrations
    from collage import measure as measure
    from collage import pattern as pattern
    from collage import runtime as runtime
    from collage import search as search
    from collage import testing as testing
    from collage import toolchains as toolchains
    from collage import transform as transform
    from collage._errors import CollageError
    from collage.compiler.build import build
    from collage.compiler.fuse_ops_pass import CollageFuseOps
    from collage.compiler.pipeline import compile
    from collage.options import CompileOptions
    from collage.runtime import Executable, load
    from collage.target import Target

_HOME = {
    "build": "collage.compiler.build",
    "compile": "collage.compiler.pipeline",
    "CollageFuseOps": "collage.compiler.fuse_ops_pass",
    "CompileOptions": "collage.options",
    "Executable": "collage.runtime",
    "load": "collage.runtime",
    "Target": "collage.target",
    "CollageError": "collage._errors",
}
_ROOMS = (
    "backend",
    "byoc",
    "compiler",
    "cost",
    "database",
    "device",
    "explain",
    "frontend",
    "fusion",
    "graph",
    "integrations",
    "measure",
    "pattern",
    "runtime",
    "search",
    "testing",
    "toolchains",
    "transform",
)

__all__ = [
    "CollageError",
    "CollageFuseOps",
    "CompileOptions",
    "Executable",
    "Target",
    "__version__",
    "build",
    "compile",
    "load",
]

if not TYPE_CHECKING:  # A type checker that saw this function would take every misspelt name for Any.

    def __getattr__(name: str) -> Any:
        module = _HOME.get(name) or (f"collage.{name}" if name in _ROOMS else None)
        if module is None:
            raise AttributeError(f"module 'collage' has no attribute {name!r}")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("collage."):
                raise
            from collage._distribution import RUNTIME_NAME, WHERE, install_command

            raise ImportError(
                f"collage.{name} is not in {RUNTIME_NAME}, which only loads and runs; "
                f"pip uninstall {RUNTIME_NAME}, then {install_command('cpu')}{WHERE}"
            ) from error
        return getattr(found, name) if name in _HOME else found


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
