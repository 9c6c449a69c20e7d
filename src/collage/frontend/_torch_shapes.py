"""Dimensions of a module's inputs that stay symbolic: as users name them, and as PyTorch's exporter takes them.

The exporter needs an entry for each argument, in their order, and a list for a cache. It drops all names if one
argument is a number or a flag. So dimensions are brought to its form here, and names are given afterwards.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree

from collage._errors import UsageError

__all__ = ["explicit_keywords", "name_dimensions", "shapes_for_export"]

_WORD = re.compile(r"[A-Za-z_]\w*")


def shapes_for_export(
    module: torch.nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> tuple[dict[str, Any], Any, list[Any]]:
    """Return the dynamic shapes for PyTorch's exporter, and the dimensions of each leaf of the arguments, with their names.

    Args:
        module: The module.
        inputs: Its positional inputs.
        kwargs: Its inputs by keyword.
        shapes: Its dimensions that stay symbolic: by the names of arguments, some of which may be missing, or in their order.

    Returns:
        The inputs by keyword in the order of the module's parameters, the dimensions without names, and those of the leaves.

    Raises:
        UsageError: Dimensions of an argument that there is not.
    """
    try:
        signature = inspect.signature(module.forward)
        given = signature.bind(*inputs, **kwargs).arguments
    except (TypeError, ValueError):
        return dict(kwargs), shapes, []  # The exporter says what is wrong.
    keywords = {name: kwargs[name] for name in (*signature.parameters, *kwargs) if name in kwargs}
    if isinstance(shapes, tuple | list) and len(shapes) == len(given):
        shapes = dict(zip(given, shapes, strict=True))
    if not isinstance(shapes, dict):
        return keywords, shapes, []
    if unknown := sorted(set(shapes) - set(given)):
        raise UsageError(f"dynamic_shapes names {unknown[0]!r}, but the example inputs are {', '.join(given)}")
    shapes = {name: shapes.get(name) for name in given}
    leaves = [axes for name, value in given.items() for axes in _of_leaves(value, shapes[name])]
    return keywords, {name: _without_names(value, shapes[name]) for name, value in given.items()}, leaves


@contextmanager
def explicit_keywords(module: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Give a module with ``**kwargs`` explicit keywords, since PyTorch's exporter otherwise mixes up dimensions."""
    forward = module.forward
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    kept = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    added = [name for name in names if name not in {one.name for one in kept}]
    if not added or len(kept) == len(signature.parameters):
        yield
        return

    def explicit(*inputs: Any, **kwargs: Any) -> Any:
        return forward(*inputs, **kwargs)

    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in added]
    explicit.__signature__ = signature.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    own = vars(module).get("forward")
    module.forward = explicit
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def name_dimensions(program: Any, leaves: Sequence[Any]) -> None:
    """Give the dimensions of an exported model the names that ``shapes_for_export`` found for each leaf."""
    signature = program.exported_program.graph_signature
    specs = [spec for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if len(specs) != len(leaves):
        return
    ports = {str(port.name): port for port in program.model.graph.inputs}
    names: dict[str, str] = {}
    for spec, axes in zip(specs, leaves, strict=True):
        port = ports.get(spec.arg.name)
        for dim, wanted in _items(axes):
            name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", None)
            old = None if port is None or port.shape is None else port.shape[dim]
            if name is not None and isinstance(old, ir.SymbolicDim) and old.value is not None:
                names.setdefault(old.value, name)
    if names:
        for value in _values(program.model):
            _rename(value, names)


def _without_names(value: Any, axes: Any) -> Any:
    """Return the dimensions of an argument as PyTorch takes them."""
    if isinstance(value, torch.Tensor) and isinstance(axes, Mapping):
        return {dim: torch.export.Dim.DYNAMIC if isinstance(name, str) else name for dim, name in axes.items()}
    if isinstance(value, torch.Tensor) and isinstance(axes, list | tuple):
        return [torch.export.Dim.DYNAMIC if isinstance(name, str) else name for name in axes]
    if isinstance(value, Mapping) and isinstance(axes, Mapping) and type(value) in _pytree.SUPPORTED_NODES:
        return {key: _without_names(item, axes.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple) and isinstance(axes, list | tuple) and len(value) == len(axes):
        return [_without_names(item, one) for item, one in zip(value, axes, strict=True)]
    found, tensors = _of_leaves(value, axes), _pytree.tree_leaves(value)
    if axes is not None and len(found) == len(tensors) and type(value) in _pytree.SUPPORTED_NODES:
        return [_without_names(tensor, one) for tensor, one in zip(tensors, found, strict=True)]
    return axes


def _of_leaves(value: Any, axes: Any) -> list[Any]:
    """Return the dimensions of each leaf of an argument, in the order in which PyTorch flattens it."""
    if axes is None or isinstance(value, torch.Tensor):
        return [axes] * len(_pytree.tree_leaves(value))
    if isinstance(value, Mapping) and isinstance(axes, Mapping):
        return [one for key, item in value.items() for one in _of_leaves(item, axes.get(key))]
    if isinstance(value, list | tuple) and isinstance(axes, list | tuple) and len(value) == len(axes):
        return [one for item, each in zip(value, axes, strict=True) for one in _of_leaves(item, each)]
    return list(_pytree.tree_leaves(axes, is_leaf=_is_axes))


def _is_axes(axes: Any) -> bool:
    """Return True if something is the dimensions of one tensor."""
    values = axes.values() if isinstance(axes, Mapping) and all(isinstance(dim, int) for dim in axes) else axes
    return isinstance(axes, Mapping | list | tuple) and not any(isinstance(v, Mapping | list | tuple) for v in values)


def _items(axes: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(axes, Mapping):
        yield from axes.items()
    elif isinstance(axes, list | tuple):
        yield from enumerate(axes)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph.all_nodes():
        yield from node.outputs


def _rename(value: ir.Value, names: Mapping[str, str]) -> None:
    if value.shape is None:
        return
    renamed = [
        dim
        if not isinstance(dim, ir.SymbolicDim) or dim.value is None
        else names.get(dim.value) or _WORD.sub(lambda word: names.get(word[0], word[0]), dim.value)
        for dim in value.shape
    ]
    value.shape = ir.Shape(renamed)
