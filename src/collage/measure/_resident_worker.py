"""The resident set of a fresh process that loads a model and runs it. Runs in the child, which imports as little as it can."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage.numerics.value_store import ValueStore

__all__ = ["ResidentArtefact", "ResidentOriginal"]

_RUNS = 3
"""Runs on each set of inputs: runtimes set memory aside in the first ones."""
_STATUS = Path("/proc/self/status")


class ResidentArtefact:
    """A process that loads an artefact as its users do.

    Args:
        artefact: Its folder.
        inputs: Folders of ``ValueStore``s with inputs.
        factories: The makers of its toolchains: ``module:Class`` and keyword arguments, by name.
    """

    def __init__(
        self,
        artefact: str,
        inputs: Sequence[str],
        factories: Mapping[str, tuple[str, Mapping[str, Any]]],
    ) -> None:
        from collage.measure._executable_worker import registry_of
        from collage.runtime import load

        self._executable = load(artefact, toolchains=registry_of(factories), trusted=True)
        self._feeds = _read(inputs, [port.name for port in self._executable.inputs])

    def largest_bytes(self) -> int:
        """Run the model in every context, and return the largest resident set so far."""
        for _ in range(_RUNS):
            for feeds in self._feeds:
                self._executable.warm_up(feeds)
        return largest_resident_bytes()


class ResidentOriginal:
    """A process that runs a model's file on ONNX Runtime with its defaults.

    Args:
        path: The file.
        inputs: Folders of ``ValueStore``s with inputs.
        threads: Threads to use; 0 is ONNX Runtime's default.
    """

    def __init__(self, path: str, inputs: Sequence[str], threads: int) -> None:
        from collage.toolchains import OriginalSession

        self._model = OriginalSession(Path(path), threads)
        self._feeds = _read(inputs, self._model.inputs)

    def largest_bytes(self) -> int:
        """Run the model, and return the largest resident set so far."""
        for _ in range(_RUNS):
            for feeds in self._feeds:
                self._model.run(feeds)
        return largest_resident_bytes()


def largest_resident_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    gc.collect()
    try:
        lines = _STATUS.read_text().splitlines()
        (kibibytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return kibibytes << 10
    except (OSError, ValueError):
        import resource  # Where the system has no such file.

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _read(folders: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    stores = [ValueStore(Path(folder)) for folder in folders]
    return [{name: np.array(store.get(name)) for name in names if name in store} for store in stores]
