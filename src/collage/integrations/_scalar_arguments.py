"""Numbers among the arguments of a graph of ``torch.compile``, as constants.

With ``dynamic=True``, Dynamo makes every float a variable that the graph reads from a tensor, such as the epsilon of a norm. Such
a graph cannot be exported, and kernels take these numbers as attributes. They rarely change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["GraphsByNumbers", "number_positions"]

MOST_SETS = 4
"""Sets of numbers for which a graph is compiled. PyTorch runs calls with any more."""


class GraphsByNumbers:
    """A graph that is compiled once for each set of numbers that it is called with.

    Args:
        graph: The graph that Dynamo traced.
        positions: Positions of the arguments that are numbers.
        make: Compiles a graph.
    """

    def __init__(
        self, graph: fx.GraphModule, positions: Sequence[int], make: Callable[[fx.GraphModule], Callable[..., Any]]
    ) -> None:
        self._graph, self._positions, self._make = graph, tuple(positions), make
        count = sum(node.op == "placeholder" for node in graph.graph.nodes)
        self._others = [i for i in range(count) if i not in self._positions]
        self._calls: dict[tuple[str, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        numbers = [arguments[i].item() for i in self._positions]
        key = tuple([number.hex() for number in numbers])  # Zeros of both signs differ, and NaN is equal to itself.
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= MOST_SETS:
                warnings.warn(
                    f"collage leaves calls of a graph to PyTorch: it was compiled for {MOST_SETS} other sets of its "
                    "numbers; a tensor in place of a number may change",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return self._graph.forward(*arguments)
            known = dict(zip(self._positions, numbers, strict=True))
            call = self._calls.setdefault(key, self._make(_with_numbers(self._graph, known)))
        return call(*[arguments[i] for i in self._others])


def number_positions(graph: fx.GraphModule) -> list[int]:
    """Return the positions of those arguments of a graph that are tensors only to carry a float."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [i for i, node in enumerate(nodes) if _is_number(node)]


def _is_number(node: fx.Node) -> bool:
    fake = node.meta.get("example_value")
    is_scalar = isinstance(fake, torch.Tensor) and fake.dtype == torch.float64 and not fake.shape
    return is_scalar and bool(node.users) and all(_is_read(user) for user in node.users)


def _is_read(node: fx.Node) -> bool:
    return (node.op, node.target) == ("call_method", "item")


def _with_numbers(graph: fx.GraphModule, numbers: Mapping[int, float]) -> fx.GraphModule:
    """Return a graph that has numbers in place of some of its arguments."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    known: dict[fx.Node, Any] = {placeholders[i]: number for i, number in numbers.items()}
    known |= {read: number for node, number in known.items() for read in node.users}
    fixed = fx.Graph()
    fixed.output(fixed.graph_copy(graph.graph, known))
    return fx.GraphModule(graph, fixed)
