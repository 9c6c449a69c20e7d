"""Weights that Dynamo made attributes of a graph, as arguments again.

Dynamo does so if the user froze weights, by ``torch._inductor.config.freezing`` or ``torch._dynamo.config.prepare_freezing``.
"""

from __future__ import annotations

import torch
from torch import fx

__all__ = ["WEIGHT_MARK", "lifted_weights"]

WEIGHT_MARK = "_dynamo_static_input_type"
"""Dynamo's mark of those arguments that are parameters and buffers of modules, for the sake of CUDA graphs."""


def lifted_weights(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Return a graph that takes its weights as its first arguments, and these weights.

    Args:
        graph: The graph that Dynamo traced. Without weights among its attributes it is returned as it is.
    """
    named = {"recurse": False, "remove_duplicate": False}
    held = {**dict(graph.named_parameters(**named)), **dict(graph.named_buffers(**named))}
    names = list(dict.fromkeys(n.target for n in graph.graph.nodes if n.op == "get_attr" and n.target in held))
    if not names:
        return graph, []
    lifted = fx.Graph()
    weights = {name: lifted.placeholder(f"weight_{n}") for n, name in enumerate(names)}
    known = {
        node: weights[node.target] for node in graph.graph.nodes if node.op == "get_attr" and node.target in weights
    }
    for node, weight in known.items():
        weight.meta = {**node.meta, "tensor_dict": {WEIGHT_MARK: "guarded"}}
    lifted.output(lifted.graph_copy(graph.graph, known))
    return fx.GraphModule(graph, lifted), [held[name] for name in names]
