"""``torch.compile(module, backend="collage")``: the graph is exported to ONNX, compiled here, and called with tensors.

PyTorch finds it by entry point. It is for inference: where gradients are asked for, lengths are symbolic, or
anything fails on the way, PyTorch runs the graph itself, and a warning says so and why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from collage._errors import CollageError
from collage.runtime import Executable

__all__ = ["collage_backend"]

Call = Callable[..., Any]


def collage_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Call:
    """Compiles a graph for ``torch.compile``.

    Args:
        graph: What Dynamo traced.
        example_inputs: Its arguments; those that are parameters are bound as constants.
        options: Keyword arguments of ``collage.compile``, such as ``{"targets": ["llvm"]}``.
        mode: Means nothing here.

    Returns:
        What PyTorch calls instead of the graph.
    """
    refusal = _refusal(example_inputs)
    if refusal is None:
        try:
            return _Compiled(graph, example_inputs, options or {})
        except CollageError as error:
            refusal = str(error)
    warnings.warn(f"collage leaves a graph to PyTorch: {refusal}", RuntimeWarning, stacklevel=2)
    forward: Call = graph.forward
    return forward


def _refusal(example_inputs: Sequence[Any]) -> str | None:
    """Why a graph cannot be taken, whatever is in it."""
    for value in example_inputs:
        if not isinstance(value, torch.Tensor):
            return f"it takes {value!r}, which is no tensor; torch.compile(..., dynamic=False) avoids symbolic lengths"
        if any(not isinstance(length, int) for length in value.shape):
            return "its lengths are symbolic; torch.compile(..., dynamic=False) avoids that"
        if value.device.type != "cpu":
            return f"a tensor lies on {value.device}"
        if value.requires_grad and torch.is_grad_enabled():
            return "gradients may be asked for; run it under torch.no_grad() or torch.inference_mode()"
    return None


class _Compiled:
    """A graph, compiled once for each set of weights that it is called with.

    Dynamo makes a module's parameters and buffers arguments of the graph, and calls the same graph for another module of
    the same code. They are constants of what is compiled here, so another set, or the same changed in place, is compiled
    for itself.
    """

    def __init__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._graph = graph
        self._options = options
        self._bound = [i for i, node in enumerate(placeholders) if _is_weight(node, example_inputs[i])]
        self._varying = [i for i in range(len(placeholders)) if i not in self._bound]
        self._executables: dict[tuple[tuple[int, int], ...], tuple[Executable, list[torch.Tensor]]] = {}
        self._executable(example_inputs)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Runs the graph."""
        executable = self._executable(arguments)
        return tuple(executable.run([arguments[i] for i in self._varying]).values())

    def _executable(self, arguments: Sequence[Any]) -> Executable:
        weights = [arguments[i] for i in self._bound]
        key = tuple((id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in weights)
        if key not in self._executables:
            # The tensors are kept with it, so that no other can have their identity.
            self._executables[key] = self._compile(arguments), weights
        return self._executables[key][0]

    def _compile(self, arguments: Sequence[Any]) -> Executable:
        from collage.collage import compile
        from collage.frontend import read_model

        module = _WithWeights(self._graph, {i: arguments[i] for i in self._bound}, len(arguments))
        model = read_model(module, example_inputs=[arguments[i] for i in self._varying])
        return compile(model, **self._options)


class _WithWeights(torch.nn.Module):  # type: ignore[misc]
    """A graph whose weights are its own again."""

    def __init__(self, graph: torch.fx.GraphModule, weights: Mapping[int, torch.Tensor], count: int) -> None:
        super().__init__()
        self._forward = graph.forward
        self._count = count
        for i, tensor in weights.items():
            self.register_buffer(f"weight_{i}", tensor.detach())

    def forward(self, *varying: Any) -> Any:
        """Calls the graph."""
        waiting = iter(varying)
        names = (f"weight_{i}" for i in range(self._count))
        return self._forward(*[getattr(self, name) if hasattr(self, name) else next(waiting) for name in names])


def _is_weight(node: torch.fx.Node, value: Any) -> bool:
    # Dynamo marks parameters and buffers so, for the sake of CUDA graphs.
    return isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in node.meta.get("tensor_dict", ())
