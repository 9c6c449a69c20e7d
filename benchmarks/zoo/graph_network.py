"""Message passing over a graph: gather both ends of every edge, transform, add up at the receivers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .sample import Sample, integers, noise, settle

NODES, EDGES, WIDTH = 2000, 20000, 64


def network(c_in: int) -> nn.Sequential:
    """Two layers and a LayerNorm."""
    return nn.Sequential(nn.Linear(c_in, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))


class Layer(nn.Module):
    """One round of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = network(3 * WIDTH), network(2 * WIDTH)

    def forward(self, nodes: Tensor, edges: Tensor, sender: Tensor, receiver: Tensor) -> tuple[Tensor, Tensor]:
        edges = edges + self.message(torch.cat([nodes[sender], nodes[receiver], edges], -1))
        index = receiver[:, None].expand(-1, WIDTH)
        received = torch.zeros_like(nodes).scatter_add(0, index, edges)
        return nodes + self.update(torch.cat([nodes, received], -1)), edges


class GraphNetwork(nn.Module):
    """Four rounds; a value per node, and one for the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.node_in, self.edge_in = network(16), network(8)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.node_out, self.graph_out = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 1)

    def forward(self, node_features: Tensor, edge_features: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        sender, receiver = edge_index[0], edge_index[1]
        nodes, edges = self.node_in(node_features), self.edge_in(edge_features)
        for layer in self.layers:
            nodes, edges = layer(nodes, edges, sender, receiver)
        return self.node_out(nodes), self.graph_out(nodes.mean(0, keepdim=True))


def graph_network() -> Sample:
    """2000 nodes [2000, 16] and 20000 edges [20000, 8] to [2000, 3] and [1, 1]."""
    inputs = {
        "node_features": noise(NODES, 16),
        "edge_features": noise(EDGES, 8, seed=1),
        "edge_index": integers(NODES, 2, EDGES),
    }
    return Sample(settle(GraphNetwork()), inputs, ("node_values", "graph_value"))
