"""ONNX's backend interface: ``prepare(model) -> BackendRep``, ``BackendRep.run(inputs)``.

Made for ONNX's backend test suite and for tools that speak this interface. Kernels are measured one by one and the plan of
the least predicted cost is taken; nothing is raced end to end. Worker processes and timings are kept between models,
until the process ends or in the database ``COLLAGE_DB``.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from collage.compiler.pipeline import compile
from collage.options import CompileOptions
from collage.runtime import Executable
from collage.system.scratch import make_scratch, remove_scratch
from collage.workers.worker import Worker

__all__ = ["CollageBackend", "CollageRep", "prepare", "run_model", "supports_device"]

_workers: dict[str, Worker] = {}


class CollageRep(BackendRep):  # type: ignore[misc]
    """A compiled model."""

    def __init__(self, executable: Executable) -> None:
        super().__init__()
        self.executable = executable

    def run(self, inputs: Any, **_: Any) -> Any:
        """Run the model.

        Args:
            inputs: A sequence in the model's order, or a mapping by name.

        Returns:
            Outputs in the model's order, as a tuple with names.
        """
        outputs = self.executable.run(inputs)
        names = list(self.executable.recipe.listed) or list(outputs)  # A model may list an output twice.
        return namedtupledict("Outputs", names)(*(outputs[name] for name in names))


class CollageBackend(Backend):  # type: ignore[misc]
    """Collage as an ONNX backend."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> CollageRep:
        """Compiles a model for the default menu, or for ``targets=[...]``.

        Raises:
            CollageError: The model cannot be read, or nothing can run it.
        """
        targets: Sequence[str] | None = kwargs.pop("targets", None)
        kwargs = {"allow_host": True, **kwargs}
        options = CompileOptions(db=os.environ.get("COLLAGE_DB") or _own_database(), finals=False, **kwargs)
        return CollageRep(compile(model, targets, options=options, workers=_workers))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU only, so far."""
        return bool(device == "CPU")


@functools.cache
def _own_database() -> str:
    """A database of this process, so that facts about all models, such as the cost of a call, are measured once."""
    folder = make_scratch()
    atexit.register(remove_scratch, folder)
    return f"sqlite:///{folder}/timings.sqlite"


@atexit.register
def _end_workers() -> None:
    for worker in _workers.values():
        worker.kill()


prepare = CollageBackend.prepare
run_model = CollageBackend.run_model
supports_device = CollageBackend.supports_device
