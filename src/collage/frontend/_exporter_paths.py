"""Removal of the notes that exporters make about the machine on which they ran. Such notes must not reach an artefact.

PyTorch's exporters write to each node where in the source it comes from: stack traces with the paths of the user's files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["drop_exporter_paths"]

_PATH = re.compile(r"(?<![\w./\\-])(?:/[^\s/:'\"]+){2,}|(?<!\w)[A-Za-z]:[\\/]|\\\\[^\s\\]+\\")
"""An absolute path, of any system."""


def drop_exporter_paths(model: ir.Model) -> None:
    """Drop notes of nodes, values and graphs that hold an absolute path, in place.

    Notes about the model as a whole are the user's own, and stay.
    """
    for noted in _noted(model):
        if noted.doc_string and _PATH.search(noted.doc_string):
            noted.doc_string = None
        for key, text in list(noted.metadata_props.items()):
            if _PATH.search(text):
                del noted.metadata_props[key]
    for graph in model.graphs():
        for key, text in list(graph.metadata_props.items()):
            if _PATH.search(text):
                del graph.metadata_props[key]


def _noted(model: ir.Model) -> Iterator[ir.Node | ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield node
            yield from node.outputs
