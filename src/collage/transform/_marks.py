"""Marks on functions and graphs that keep passes from changing their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir

__all__ = ["is_marked", "marked_functions_hidden"]

_MARKS = ("SkipOptimization", "Primitive")


def is_marked(metadata: Mapping[str, str]) -> bool:
    """Return True if metadata forbid changes inside."""
    return any(metadata.get(mark, "").lower() not in ("", "0", "false") for mark in _MARKS)


@contextmanager
def marked_functions_hidden(model: ir.Model) -> Iterator[dict[ir.OperatorIdentifier, ir.Function]]:
    """Take marked functions out of a model for as long as a library works on it that would look into all of them."""
    order = list(model.functions)
    hidden = {key: function for key, function in model.functions.items() if is_marked(function.metadata_props)}
    for key in hidden:
        del model.functions[key]
    try:
        yield hidden
    finally:
        present = {**model.functions, **hidden}
        model.functions.clear()
        model.functions.update({key: present[key] for key in (*order, *present) if key in present})
