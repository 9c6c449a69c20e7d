"""Weights of 4 bits by GPTQ: which of a model's weights are rounded, on which samples, and where they lie.

A few products at a time: memory holds the second moments of their inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.calibration.samples import holds_nan, put_values
from collage.graph import constant_tensor
from collage.system.machine import usable_memory_bytes
from collage.toolchains.sdk.narrow_weights import is_transposed, splits_into_blocks
from collage.workers.worker import Worker

__all__ = ["round_weights"]

_SERVICE = "collage.calibration._gptq_worker:GptqService"
_FILE = "rounded.bin"
_RUN_S = 180.0
_ROUND_S = 600.0
_PAGE_BYTES = 4096
_SHARE_OF_MEMORY = 16
"""Moments may take one part in so many of the memory."""
_ENOUGH_ROWS = 4096
"""Rows of a product's input. Further samples are not run."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """Weights to round.

    Attributes:
        name: Name of the initializer.
        tensor: It, in the file of the model's weights.
        is_transposed: It is [N, K], not [K, N].
    """

    name: str
    tensor: ir.ExternalTensor
    is_transposed: bool


def round_weights(
    model: ir.Model,
    prepared: Path,
    samples: Callable[[], Iterable[Mapping[str, Any]]],
    workspace: Path,
    has_time: Callable[[], bool] = lambda: True,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, ir.ExternalTensor]:
    """Return the large weights of a model's products of few rows, rounded to 4 bits, by the names of the initializers.

    Weights that anything else reads are left out. All are left out if they are less than half of the model's bytes.

    Args:
        model: The prepared model. Its weights lie in a file.
        prepared: A file of the same model.
        samples: Returns the inputs of the samples. It is called once for each group of products.
        workspace: The folder to write the file of weights to.
        has_time: Asked before each run and each product. From the first False on, weights stay as they are.
        say: Called with each line of progress.

    Raises:
        ToolchainError: The model cannot be run on a sample.
    """
    products = _products(model)
    weights = [weight for group in products.values() for weight in group]
    tensors = [value.const_value for value in model.graph.initializers.values()]
    if 2 * sum(weight.tensor.nbytes for weight in weights) <= sum(
        tensor.nbytes for tensor in tensors if tensor is not None
    ):
        return {}
    starts = _starts(weights)
    file, done, made = workspace / _FILE, itertools.count(1), dict[str, ir.ExternalTensor]()
    file.touch()
    with Worker(_SERVICE, {"model": str(prepared)}) as worker:
        for names in _groups(products):
            if not _has_moments(worker, samples(), names, workspace / "rounding", has_time):
                break
            for name in names:
                if not has_time():
                    break
                say(f"rounding weights to 4 bits, {next(done)} of {len(products)}")
                told = [(weight.name, weight.is_transposed, starts[weight.name]) for weight in products[name]]
                written = set(worker.call("round", _ROUND_S, value=name, weights=told, into=str(file)))
                made |= {
                    weight.name: _placed(weight, starts[weight.name], workspace)
                    for weight in products[name]
                    if weight.name in written
                }
    return made


def _has_moments(
    worker: Worker,
    samples: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    folder: Path,
    has_time: Callable[[], bool],
) -> bool:
    """Run samples for the moments of values; return False if time ended before there was one."""
    rows = 0
    for sample in samples:
        if rows >= _ENOUGH_ROWS or not has_time():
            break
        if not holds_nan(sample):
            rows += worker.call("add", _RUN_S, values=str(put_values(folder, sample).folder), names=list(names))
    return rows > 0


def _products(model: ir.Model) -> dict[str, list[_Weight]]:
    """Return the weights to round, by the name of the value that their products read."""
    found: dict[str, list[_Weight]] = {}
    for node in model.graph:
        if not splits_into_blocks(node):
            continue
        value, weight = node.inputs[:2]
        assert value is not None and weight is not None
        tensor = weight.const_value
        is_its_own = len(weight.uses()) == 1 and weight.is_initializer() and constant_tensor(value) is None
        if is_its_own and isinstance(tensor, ir.ExternalTensor):
            found.setdefault(str(value.name), []).append(_Weight(str(weight.name), tensor, is_transposed(node)))
    return found


def _groups(products: Mapping[str, Sequence[_Weight]]) -> Iterator[list[str]]:
    """Return values of which the moments fit into memory together."""
    left = most = usable_memory_bytes() // _SHARE_OF_MEMORY
    group: list[str] = []
    for name, (weight, *_) in products.items():
        size = 8 * weight.tensor.shape.numpy()[1 if weight.is_transposed else 0] ** 2
        if group and size > left:
            yield group
            group, left = [], most
        group.append(name)
        left -= size
    yield group


def _starts(weights: Iterable[_Weight]) -> dict[str, int]:
    """Return the place of each of several weights in one file. Each begins on a page."""
    found, end = dict[str, int](), 0
    for weight in weights:
        found[weight.name] = end
        end += -(-weight.tensor.nbytes // _PAGE_BYTES) * _PAGE_BYTES
    return found


def _placed(weight: _Weight, offset: int, workspace: Path) -> ir.ExternalTensor:
    old = weight.tensor
    return ir.ExternalTensor(
        _FILE, offset, old.nbytes, old.dtype, shape=old.shape, name=weight.name, base_dir=str(workspace)
    )
