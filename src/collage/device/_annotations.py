"""Annotations: statements about devices in a model, as metadata that any ONNX tool keeps and ignores.

Scopes that are *asked* for (by people or passes) and scopes that were *planned* are kept apart. Results are written to
the node that computes them, inputs and initializers to their graph, since nodes and graphs keep their metadata when
models are copied and partitioned.
"""

from __future__ import annotations

import difflib
from collections.abc import MutableMapping
from functools import lru_cache
from typing import TypeAlias

import onnx_ir as ir

from collage._errors import ConfigError, TargetError
from collage.device._scope import ScopeLike, SEScope, as_scope
from collage.graph import all_graphs

__all__ = [
    "CANDIDATES",
    "ON_DEVICE",
    "ON_DEVICE_RESULT",
    "ON_OUTPUT",
    "RESULT_SE_SCOPE",
    "SE_SCOPE",
    "WHY",
    "asked_scope",
    "demand_memory_scope",
    "demanded_memory_scopes",
    "is_result_fixed",
    "on_device",
    "owner_of",
    "planned_scope",
    "planned_value_scope",
    "require_output",
    "required_output",
]

ON_DEVICE = "on_device"
"""Metadata key: the scope that was asked for."""

ON_DEVICE_RESULT = "on_device_result"
"""Metadata key: set where readers, too, must read in the scope that was asked for."""

ON_OUTPUT = "on_device_output"
"""Metadata key of graphs: where an output is to be delivered."""

CANDIDATES = "on_device_candidates"
"""Metadata key of nodes: scopes of which any may be taken, preferred ones first, a line each."""

SE_SCOPE = "se_scope"
"""Metadata key: the scope that was planned."""

WHY = "se_scope_why"
"""Metadata key of nodes: the origin of the planned scope."""

RESULT_SE_SCOPE = "result_se_scope"
"""Metadata key of functions: the scope of their results, with the target that they are compiled for."""

_MEMORY_SCOPE = "memory_scope"

Annotated: TypeAlias = ir.Value | ir.Node


def on_device(
    what: Annotated | str, scope: ScopeLike, *, model: ir.Model | None = None, constrain_result: bool = False
) -> None:
    """Annotates a model in place: ``what`` is computed, and lies, in a scope.

    Readers may be elsewhere; then a copy is inserted.

    Args:
        what: A value, a node, or the name of either. Of a value that a node computes, the node.
        scope: The scope; its free fields stay free.
        model: The model in which a name is looked up: main graph, bodies and functions; values first.
        constrain_result: True if readers must read it there too, so that no copy may be inserted.

    Raises:
        ConfigError: No value or node has that name; the message suggests similar names.
        TargetError: The scope cannot be read.
    """
    text = str(as_scope(scope))
    if isinstance(what, str):
        if model is None:
            raise ConfigError(f"give the model in which {what!r} is to be found")
        what = _find(model, what)
    metadata, suffix = owner_of(what)
    metadata[ON_DEVICE + suffix] = text
    metadata.pop(ON_DEVICE_RESULT + suffix, None)
    if constrain_result:
        metadata[ON_DEVICE_RESULT + suffix] = "1"


def require_output(model: ir.Model, name: str, scope: ScopeLike) -> None:
    """Demand that an output of the model is delivered in a scope; the node that computes it may be elsewhere.

    Raises:
        ConfigError: The model has no such output; near names are suggested.
        TargetError: The scope cannot be read.
    """
    text = str(as_scope(scope))
    names = [str(value.name) for value in model.graph.outputs]
    if name not in names:
        raise ConfigError(unknown_name("output", name, names))
    model.graph.metadata_props[f"{ON_OUTPUT}:{name}"] = text


def demand_memory_scope(function: ir.Function, formal: str, memory_scope: str) -> None:
    """Annotate the memory of the device in which a kernel takes an argument, or leaves a result.

    Raises:
        ConfigError: The function has no such input or output.
    """
    names = [str(value.name) for value in (*function.inputs, *function.outputs)]
    if formal not in names:
        raise ConfigError(unknown_name(f"input or output of function {function.name!r}", formal, names))
    SEScope(memory_scope=memory_scope)
    function.metadata_props[f"{_MEMORY_SCOPE}:{formal}"] = memory_scope


def demanded_memory_scopes(function: ir.Function) -> dict[str, str]:
    """The memories that a kernel demands, by name of its inputs and outputs."""
    start = f"{_MEMORY_SCOPE}:"
    return {key[len(start) :]: text for key, text in function.metadata_props.items() if key.startswith(start)}


def asked_scope(what: Annotated) -> SEScope | None:
    """The demanded scope, if any. A result without one has the scope of its node."""
    found = _read(what, ON_DEVICE)
    if found is None and isinstance(what, ir.Value) and (node := what.producer()) is not None:
        return _read(node, ON_DEVICE)
    return found


def is_result_fixed(value: ir.Value) -> bool:
    """Return True if a value must be read where it lies."""
    metadata, suffix = owner_of(value)
    return ON_DEVICE_RESULT in metadata or ON_DEVICE_RESULT + suffix in metadata


def required_output(graph: ir.Graph, name: str) -> SEScope | None:
    """Return the scope to which an output is to be delivered, if that matters."""
    text = graph.metadata_props.get(f"{ON_OUTPUT}:{name}")
    return None if text is None else _parse(text)


def planned_scope(node: ir.Node) -> SEScope | None:
    """Return the scope that ``PlanDevices`` planned for a node and its target, None before planning."""
    return _read(node, SE_SCOPE)


def planned_value_scope(value: ir.Value) -> SEScope | None:
    """Return the scope that ``PlanDevices`` planned for a value, None before planning."""
    node = value.producer()
    if node is None:
        return _read(value, SE_SCOPE)
    own = f"{SE_SCOPE}:{value.index()}"
    return _read(node, own if own in node.metadata_props else SE_SCOPE)


def owner_of(what: Annotated) -> tuple[MutableMapping[str, str], str]:
    """The metadata in which something is annotated, and what its keys end in."""
    if isinstance(what, ir.Node):
        return what.metadata_props, ""
    node = what.producer()
    if node is not None:
        return node.metadata_props, "" if len(node.outputs) == 1 else f":{what.index()}"
    graph = what.graph
    if graph is None:
        raise ConfigError(f"value {what.name!r} belongs to no graph")
    return graph.metadata_props, f":{what.name}"


def unknown_name(kind: str, name: str, known: list[str]) -> str:
    """The message for a name that is not there, with near ones."""
    near = difflib.get_close_matches(name, known, n=3)
    listed = ", ".join(known) if len(known) <= 12 else f"{len(known)} of them"
    return f"there is no {kind} called {name!r}; " + (
        f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {listed}"
    )


def _read(what: Annotated, key: str) -> SEScope | None:
    metadata, suffix = owner_of(what)
    text = metadata.get(key + suffix)
    if text is None:
        return None
    try:
        return _parse(text)
    except TargetError as error:
        raise TargetError(f"metadata {key + suffix!r} of {what.name!r}: {error}") from None


_parse = lru_cache(1024)(SEScope.parse)
"""A model has few scopes and many nodes."""


def _find(model: ir.Model, name: str) -> Annotated:
    values: dict[str, Annotated] = {}
    nodes: dict[str, Annotated] = {}
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values()):
            values.setdefault(str(value.name), value)
        for node in graph:
            nodes.setdefault(str(node.name), node)
            for value in node.outputs:
                values.setdefault(str(value.name), value)
    found = values.get(name) or nodes.get(name)
    if found is None:
        raise ConfigError(unknown_name("value or node", name, sorted({*values, *nodes} - {"None", ""})))
    return found
