"""Decoders: how long the first token takes, how many follow in a second, and how near that is to the machine's limit.

A model is a decoder if it takes ``past`` caches and returns ``present`` ones. One row through it reads every weight once, so the
rate at which this machine reads memory bounds its tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import ToolchainError
from collage.database import Database, FactKind
from collage.runtime import Port, Recipe
from collage.system.codec import Positive
from collage.system.machine import this_machine
from collage.toolchains import READ_BYTES
from collage.workers.machine_lock import measurement_lock
from collage.workers.worker import Worker

__all__ = ["Decoder", "bytes_read", "decoder_of", "decoding_of", "measure_read_rate"]

_PAST, _PRESENT = ("past_key_values", "past"), ("present", "present_key_values")
_SERVICE = "collage.measure._decoding_worker:DecodingWorker"
_PEAK_SERVICE = "collage.measure._peak_worker:PeakWorker"
_PATIENCE_S = 300.0
_PROMPT = 32
_TOKENS = 32
_TABLE = "Gather"


@dataclass(frozen=True, slots=True)
class ReadRate:
    """The rate at which all cores together read memory.

    Attributes:
        bytes_per_s: Bytes per second.
    """

    bytes_per_s: Positive


_READ_RATE: FactKind[ReadRate] = FactKind("read-rate", ReadRate)


def measure_read_rate(database: Database) -> float:
    """Return the bytes per second that all cores of this machine read from memory: measured once, and kept."""
    name = {"machine": this_machine().fingerprint}
    found = database.fact(_READ_RATE, **name)
    if found is None:
        with measurement_lock(), Worker(_PEAK_SERVICE, environment={"OPENBLAS_NUM_THREADS": "1"}) as worker:
            found = ReadRate(worker.call("read_bytes_per_s", _PATIENCE_S, cores=this_machine().cores))
        database.keep_fact(_READ_RATE, found, **name)
    return found.bytes_per_s


@dataclass(frozen=True, slots=True)
class Decoder:
    """The interface of a decoder, by which tokens can be fed to it one after the other.

    Attributes:
        tokens: The input of tokens.
        caches: Each input that holds a cache, with the output that is its next value.
        others: Further inputs: masks and positions.
    """

    tokens: Port
    caches: Mapping[Port, str]
    others: tuple[Port, ...]

    def feeds(self, rows: int, done: int, caches: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return inputs for tokens that follow others.

        Args:
            rows: Number of tokens.
            done: Number of tokens before them.
            caches: The outputs of the last run; None before the first one.
        """
        made = {self.tokens.name: _filled(self.tokens, rows)}
        for port, output in self.caches.items():
            made[port.name] = _filled(port, done) if caches is None else caches[output]
        for port in self.others:
            if "mask" in port.name:
                made[port.name] = _filled(port, done + rows) + np.ones((), port.dtype)
            else:
                ids = _filled(port, rows)
                made[port.name] = ids + np.arange(done, done + ids.shape[-1]).astype(port.dtype)
        return made


def decoder_of(inputs: Sequence[Port], outputs: Sequence[Port]) -> Decoder | None:
    """Return a model's interface as a decoder's; None if it is another one."""
    names = {port.name for port in outputs}
    caches, others = dict[Port, str](), list[Port]()
    for port in inputs:
        options = {port.name.replace(old, new, 1) for old in _PAST if old in port.name for new in _PRESENT}
        if found := sorted(options & names):
            caches[port] = found[0]
        else:
            others.append(port)
    tokens = [port for port in others if "mask" not in port.name and "position" not in port.name]
    if not caches or len(tokens) != 1 or any(port.dtype is None or not port.shape for port in inputs):
        return None
    if not str(tokens[0].dtype).startswith("int") or any(port.shape is None or len(port.shape) > 2 for port in others):
        return None
    return Decoder(tokens[0], caches, tuple(port for port in others if port is not tokens[0]))


def _filled(port: Port, length: int) -> Any:
    """Return zeros of a port's shape, with this length along its last symbolic axis, and 1 along the others."""
    assert port.shape is not None
    free = [axis for axis, size in enumerate(port.shape) if not isinstance(size, int)]
    shape = [size if isinstance(size, int) else 1 for size in port.shape]
    if free:
        shape[free[-1]] = length
    return np.zeros(shape, port.dtype)


def decoding_of(artefact: Path, recipe: Recipe, database: Database) -> dict[str, Any] | None:
    """Return a decoder's figures in JSON values; None if the artefact is not a decoder, or cannot be run as one.

    Args:
        artefact: The artefact, as ``load`` takes it.
        recipe: Its recipe.
        database: Keeps the rate of this machine.

    Returns:
        ``prompt``, ``first_token_ms``, ``tokens_per_s``, ``bytes_per_token`` and ``read_share``. The last two are None where a
        kernel does not say which weights it reads.
    """
    if decoder_of(recipe.inputs, recipe.outputs) is None:
        return None
    try:
        with measurement_lock(), Worker(_SERVICE, {"artefact": str(artefact)}) as worker:
            first_s, step_s, read = worker.call("decode", _PATIENCE_S, prompt=_PROMPT, tokens=_TOKENS)
    except ToolchainError:
        return None
    rate = measure_read_rate(database)
    return {
        "prompt": _PROMPT,
        "first_token_ms": first_s * 1e3,
        "tokens_per_s": 1 / step_s,
        "bytes_per_token": read,
        "read_bytes_per_s": rate,
        "read_share": None if read is None else read / step_s / rate,
    }


def bytes_read(recipe: Recipe, workspace: Path) -> int | None:
    """Return the bytes of constants that one run reads, without tables of which it reads rows; None if that is not known."""
    import onnx_ir as ir  # Late: running an artefact does not need it.

    total = 0
    for kernel in recipe.kernels:
        for leaf in kernel.compiled.leaves:
            if READ_BYTES in leaf.metadata:
                total += int(leaf.metadata[READ_BYTES])
                continue
            models = [name for name in leaf.files if name.endswith(".onnx")]
            if len(models) != 1:
                return None
            # Weights in other files are not read: only their sizes count.
            for value in ir.load(workspace / models[0]).graph.initializers.values():
                tensor = value.const_value
                if tensor is not None and not all(node.op_type == _TABLE and not place for node, place in value.uses()):
                    total += tensor.nbytes
    return total
