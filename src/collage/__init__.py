"""Collage: finds, by measurement, the fastest mix of toolchains for a model and a machine.

::

    import collage

    exe = collage.compile("model.onnx", targets=["llvm", "onnxruntime", "openvino"])
    outputs = exe.run({"x": x})
    exe.save("model.collage")
    exe = collage.load("model.collage")

Names are imported on first use, so that ``import collage`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "compile": "collage.compiler.pipeline",
    "CollageFuseOps": "collage.compiler.fuse_ops_pass",
    "CompileOptions": "collage.compiler.pipeline",
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

__all__ = ["CollageError", "CollageFuseOps", "CompileOptions", "Executable", "Target", "__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"collage.{name}")
    raise AttributeError(f"module 'collage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
