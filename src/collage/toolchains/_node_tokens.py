"""Finding a kernel's nodes again in what a toolchain's profiler reports.

Toolchains name what they made of a node after it, or after a value that it produced, with words of their own around
it. So a copy of the kernel is profiled in which every name is a token with the node's index.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["BODY", "save_tokenised", "token_in", "tokens_in"]

_TOKEN = re.compile(r"collage_n(\d+)_")

BODY = "collage_body_"
"""Token of the nodes inside control-flow bodies; their time is part of the node that holds them."""


@contextlib.contextmanager
def save_tokenised(path: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Writes a copy of the kernel in ``path`` beside it, with tokens for names, for as long as the context lasts.

    Yields:
        Path of the copy, and the names of the kernel's nodes by index.
    """
    import onnx_ir as ir

    model = ir.load(path)
    names = [node.name or "" for node in model.graph]
    for index, value in enumerate((*model.graph.inputs, *model.graph.initializers.values())):
        value.name = f"collage_value{index}"
    for index, node in enumerate(model.graph):
        node.name = f"collage_n{index}_"
        for output, value in enumerate(node.outputs):
            value.name = f"collage_n{index}_{output}" if value.name else ""
    for graph in model.graph.subgraphs():
        for node in graph:
            node.name = BODY
    copy = path.with_name(f"{path.stem}.profile.onnx")
    ir.save(model, copy)
    try:
        yield copy, names
    finally:
        copy.unlink()


def token_in(text: str) -> int | None:
    """Index of the node that a toolchain's name stands for: the last one of those merged, as it gave the output."""
    found = tokens_in(text)
    return found[-1] if found else None


def tokens_in(text: str) -> Sequence[int]:
    """Indices of all nodes named in a text, in order."""
    return [int(index) for index in _TOKEN.findall(text)]
