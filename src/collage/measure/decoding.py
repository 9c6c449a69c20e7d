"""Decoders: how long the first token takes, how many follow in a second, and how near that is to the machine's limit.

One row through a decoder reads every weight once, so the rate at which this machine reads memory bounds its tokens per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage._errors import ToolchainError
from collage.database import Database, FactKind
from collage.runtime import Recipe
from collage.runtime._decoder import decoder_of
from collage.system.codec import Positive
from collage.system.machine import this_machine
from collage.toolchains import READ_BYTES
from collage.workers.machine_lock import measurement_lock
from collage.workers.worker import Worker

__all__ = ["bytes_read", "decoding_of", "measure_read_rate"]

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
