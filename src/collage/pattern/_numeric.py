"""Numeric comparison of a replacement with the replaced nodes, on random inputs, by ONNX's reference evaluator."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from collage.graph import stored_tensor, used_values
from collage.pattern._builder import NotApplicable
from collage.pattern._match import Match
from collage.pattern._replace import Edit
from collage.pattern._scope import Scope

_FREE_DIMENSION = 3
_TOLERANCE = {ir.DataType.FLOAT16: 1e-2, ir.DataType.BFLOAT16: 5e-2, ir.DataType.DOUBLE: 1e-8}
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 6.0, -20.0, 20.0)


def check(edit: Edit, match: Match, scope: Scope) -> None:
    """Compares the match with its replacement.

    Symbolic dimensions are taken as 3. Besides random numbers, inputs have zeros of both signs and large numbers.

    Raises:
        NotApplicable: They compute different things, or cannot be run; says which.
    """
    old, new = list(edit.replaced), list(edit.replaced.values())
    before = _needed(old, match.nodes)
    after = _needed(new, (*match.nodes, *edit.new_nodes))
    inputs = list(dict.fromkeys((*_inputs(before, old), *_inputs(after, new))))
    feeds = {f"i{index}": _content(value, index) for index, value in enumerate(inputs)}
    names = {value: f"i{index}" for index, value in enumerate(inputs)}
    expected, found = (_run(nodes, names, feeds, out, scope) for nodes, out in ((before, old), (after, new)))
    for value, a, b in zip(old, expected, found, strict=True):
        _compare(value, np.asarray(a), np.asarray(b))


def _needed(outputs: Sequence[ir.Value], ordered: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes that the outputs need, of nodes in topological order."""
    needed = set(outputs)
    kept: list[ir.Node] = []
    for node in reversed(ordered):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(used_values(node))
    return kept[::-1]


def _inputs(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> list[ir.Value]:
    made = {value for node in nodes for value in node.outputs}
    used = (value for node in nodes for value in used_values(node))
    return [value for value in dict.fromkeys((*used, *outputs)) if value not in made]


def _content(value: ir.Value, index: int) -> np.ndarray[Any, Any]:
    known = stored_tensor(value)
    if known is not None:
        return known.numpy()
    if value.dtype is None or value.shape is None:
        raise NotApplicable(f"verify: type or shape of value {value.name!r} is unknown, so that nothing can be run")
    shape = [dim if isinstance(dim, int) else _FREE_DIMENSION for dim in value.shape]
    rng = np.random.default_rng([index, zlib.crc32(str(shape).encode())])
    numpy_type = value.dtype.numpy()
    if not value.dtype.is_floating_point():
        return rng.integers(0, 2, shape).astype(numpy_type)
    content = rng.standard_normal(shape).astype(numpy_type)
    content.reshape(-1)[: len(_SPECIAL)] = np.resize(_SPECIAL, content.size)[: len(_SPECIAL)]
    return content


def _run(
    nodes: Sequence[ir.Node],
    names: Mapping[ir.Value, str],
    feeds: Mapping[str, Any],
    outputs: Sequence[ir.Value],
    scope: Scope,
) -> list[Any]:
    values = {value: ir.Value(name=name, type=value.type, shape=value.shape) for value, name in names.items()}
    copies = []
    for node in nodes:
        made = [ir.Value(name=f"v{len(values) + k}") for k in range(len(node.outputs))]
        values.update(zip(node.outputs, made, strict=True))
        inputs = [None if value is None else values[value] for value in node.inputs]
        copies.append(ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()), outputs=made))
    results = [values[value] for value in outputs]
    graph = ir.Graph(
        [values[v] for v in names], results, nodes=copies, opset_imports=dict(scope.opset_imports), name="g"
    )
    try:
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(ir.to_proto(graph), opsets=dict(scope.opset_imports)).run(None, dict(feeds)))
    except Exception as error:
        raise NotApplicable(f"verify: {'/'.join(n.op_type for n in nodes)} could not be run: {error}"[:300]) from error


def _compare(value: ir.Value, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> None:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        raise NotApplicable(
            f"verify: value {value.name!r} is {expected.dtype}{list(expected.shape)}, "
            f"its replacement {found.dtype}{list(found.shape)}"
        )
    if value.dtype is None or not value.dtype.is_floating_point():
        same = bool(np.array_equal(expected, found))
    else:
        limit = _TOLERANCE.get(value.dtype, 1e-4)
        scale = float(np.nanmax(np.abs(expected[np.isfinite(expected)].astype(np.float64)), initial=1e-30))
        a, b = expected.astype(np.float64), found.astype(np.float64)
        same = bool(np.allclose(a, b, rtol=limit, atol=limit * scale, equal_nan=True))
    if not same:
        raise NotApplicable(f"verify: the replacement of value {value.name!r} computes something else")
