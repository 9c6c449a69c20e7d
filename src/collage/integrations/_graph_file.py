"""A graph that Dynamo traced, as a file for a process of this one's own.

PyTorch's own format for graphs is used, as it is between the processes of Inductor. It is a program, so only a file in a private
folder is read, written by the process that reads it or by that one's parent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from collage._errors import ModelError
from collage.integrations._lifted_weights import WEIGHT_MARK

__all__ = ["read_graph", "write_graph"]


def write_graph(graph: torch.fx.GraphModule, path: Path) -> None:
    """Write a graph with what is known about its arguments and results.

    Raises:
        ModelError: It holds something that cannot be written.
    """
    from torch.fx._graph_pickler import GraphPickler, Options  # Late: it imports much of Inductor.

    copy = torch.fx.GraphModule(graph, torch.fx.Graph())
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    copy.graph.output(copy.graph.graph_copy(graph.graph, copies))
    plain: dict[int, Any] = {}
    shown = {node for node in graph.graph.nodes if node.op == "placeholder"}
    shown |= {node for end in graph.graph.nodes if end.op == "output" for node in end.all_input_nodes}
    for node, its_copy in copies.items():
        its_copy.meta = {}
        if node in shown and "example_value" in node.meta:
            value = node.meta["example_value"]
            its_copy.meta["example_value"] = plain.setdefault(id(value), _plain(value))
        if WEIGHT_MARK in (facts := node.meta.get("tensor_dict", {})):
            its_copy.meta["tensor_dict"] = {WEIGHT_MARK: str(facts[WEIGHT_MARK])}
    try:
        path.write_bytes(GraphPickler.dumps(copy, Options(ops_filter=None)))
    except OSError:
        raise
    except Exception as error:  # Of objects that cannot be written, of any library.
        raise ModelError(f"it cannot be sent to another process ({error}); give options={{'wait': True}}") from error


def read_graph(path: Path) -> torch.fx.GraphModule:
    """Return the graph that a file holds."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler  # Late for the same reason.
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    graph: Any = GraphPickler.loads(path.read_bytes(), FakeTensorMode(shape_env=ShapeEnv()))
    graph.recompile()
    return graph


def _plain(value: Any) -> Any:
    """Return a tensor in the same memory that PyTorch does not record as a view. The format has no place for views."""
    if not isinstance(value, torch.Tensor):
        return value
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(keys):
        copy = torch.ops.aten.alias.default(value)
    return copy.requires_grad_() if value.requires_grad else copy
