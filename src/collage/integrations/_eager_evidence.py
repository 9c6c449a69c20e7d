"""Evidence on what float arithmetic makes of a graph of PyTorch: PyTorch's results in float64, and of perturbed runs.

Outputs that are sums of what cancels, or decisions on such sums, are rounding only. One run of PyTorch does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from collage.integrations._torch_graph import PureGraph
from collage.numerics.judge import Evidence
from collage.runtime._tensors import as_numpy

__all__ = ["eager_evidence"]

# A value that half of the runs round differently is missed once in 16 times.
_PERTURBED_RUNS = 4


def eager_evidence(
    run: Callable[..., Any], pure: PureGraph, arguments: Sequence[Any], results: Sequence[Any]
) -> Sequence[Evidence]:
    """Return the evidence on each result of a graph, written arguments first.

    Args:
        run: Runs the graph on its arguments, some of which it writes to.
        pure: Takes its results apart.
        arguments: The arguments.
        results: PyTorch's results.
    """
    generator = torch.Generator().manual_seed(0)
    perturbed = [_run(run, pure, arguments, partial(_perturbed, generator)) for _ in range(_PERTURBED_RUNS)]
    truths = _run(run, pure, arguments, torch.Tensor.double)
    answers = zip(results, *filter(None, perturbed), strict=True)
    return [
        Evidence(tuple(map(as_numpy, each)), as_numpy(truths[number]) if truths else None)
        for number, each in enumerate(answers)
    ]


def _run(
    run: Callable[..., Any], pure: PureGraph, arguments: Sequence[Any], change: Callable[[torch.Tensor], torch.Tensor]
) -> list[Any]:
    """Return the results on changed float arguments; empty if the graph cannot be run so."""

    def own_copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return change(value.clone()) if value.is_floating_point() else value.clone()

    try:
        own = list(map(own_copy, arguments))
        outputs = pure.outputs_of(run(*own))
    except Exception:  # Of any operator: a computed index may be outside, and floats of 8 bits have no products.
        return []
    return [*(own[i] for i in pure.written), *outputs]


def _perturbed(generator: torch.Generator, value: torch.Tensor) -> torch.Tensor:
    """Return values of which each is moved by one unit in the last place, up or down."""
    signs = torch.randint(0, 2, value.shape, generator=generator).to(value.dtype) * 2 - 1
    return value * (1 + signs * torch.finfo(value.dtype).eps)
