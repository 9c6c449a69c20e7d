"""Parts of graphs that nothing reads."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["remove_unused_initializers"]


def remove_unused_initializers(graph: ir.Graph) -> None:
    """Remove constants of a graph that nothing reads any more."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
