"""Running: kernels, the executor, executables and artefacts (design section 9)."""

from collage.runtime._artefact import MANIFEST, load, verify
from collage.runtime._executable import Executable
from collage.runtime._executor import Executor, Step
from collage.runtime._recipe import KernelRecord, Recipe
from collage.runtime._signature import Port, Signature

__all__ = [
    "MANIFEST",
    "Executable",
    "Executor",
    "KernelRecord",
    "Port",
    "Recipe",
    "Signature",
    "Step",
    "load",
    "verify",
]
