"""Names that a model may have and nobody thinks of: paths, words of languages, quotes, what becomes equal when cleaned."""

from __future__ import annotations

import random

import onnx

from tests.fuzz.draft import Sample

__all__ = ["oddly_named"]

_NAMES = (
    *(
        "/layers.0/Gather_output_0",
        "/layers.0/Gather_output_00",
        "../../etc/passwd",
        "..",
        ".",
        "/",
        "\\",
        "~",
        "$HOME",
    ),
    *(
        "a b",
        "a/b",
        "a_b",
        "a.b",
        "a:b",
        "A_B",
        "a-b",
        "\t",
        "\n",
        "é",
        "\u202e",
        '"q"',
        "'q'",
        "<b>",
        "[1]",
        "{}",
        "%0",
        "%s",
    ),
    *(
        "0",
        "-1",
        "None",
        "main",
        "lambda",
        "self",
        "def",
        "int64",
        "input",
        "output",
        "kernel",
        "p0",
        "T_relu",
        "x" * 300,
    ),
    *("model.onnx", "weights.bin", "manifest.json", "collage", "collage_tvm_relu", "v0", "c0", "x0"),
)


def oddly_named(given: Sample, seed: int) -> Sample:
    """The same model with other names for its graphs, operators and values, those of graphs within operators too."""
    model = onnx.ModelProto()
    model.CopyFrom(given.model)
    namer = _Namer(random.Random(seed))
    namer.rename(model.graph)
    return Sample(model, {namer.value(name): x for name, x in given.feeds.items()})


class _Namer:
    """Gives every value a name that no other has."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names: dict[str, str] = {"": ""}
        self._nodes: set[str] = set()

    def value(self, name: str) -> str:
        """The new name of a value."""
        if name not in self._names:
            self._names[name] = self._fresh(set(self._names.values()))
        return self._names[name]

    def _fresh(self, taken: set[str]) -> str:
        name = self._rng.choice(_NAMES)
        while name in taken:
            name += self._rng.choice("/_.: 0")
        taken.add(name)
        return name

    def rename(self, graph: onnx.GraphProto) -> None:
        """Renames everything in a graph."""
        graph.name = self._rng.choice(_NAMES)
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = self.value(value.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = self.value(sparse.values.name)
        for node in graph.node:
            node.name = self._fresh(self._nodes)
            for names in (node.input, node.output):
                names[:] = [self.value(name) for name in names]
            for inner in _inner_graphs(node):
                self.rename(inner)


def _inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]
