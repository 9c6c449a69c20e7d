"""Operators of ONNX Runtime that ONNX adopted later, or that have the meaning of ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.contrib_ops._writer import Body, Definition, Undefined

__all__ = ["FORERUNNERS"]

_MODES = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}
_RENAMED = 20
"""The opset in which the modes of GridSample got other names."""


def _same(op_type: str, most: int) -> Definition:
    """The ONNX operator of equal meaning, and its largest number of inputs."""
    return lambda b: [b(op_type, *(b.input(i) for i in range(min(b.count, most)) if b.has(i)), **b.attributes())]


def _expand_dims(b: Body) -> Sequence[str]:
    """X and an axis, a number."""
    axis = b("Cast", b.input(1), to=onnx.TensorProto.INT64)
    return [b("Unsqueeze", b.input(0), b("Unsqueeze", axis, b.integers(0)) if b.rank(1) == 0 else axis)]


def _grid_sample(b: Body) -> Sequence[str]:
    mode = b.get("mode", "bilinear")
    if mode not in _MODES or b.rank(0) not in (4, None):
        raise Undefined
    mode = _MODES[mode] if b.version >= _RENAMED else mode
    return [b("GridSample", b.input(0), b.input(1), mode=mode, **b.attributes("mode"))]


def _range(b: Body) -> Sequence[str]:
    """Start, limit, step: scalars, or vectors of one element."""
    given = [b.input(i) for i in range(min(b.count, 3)) if b.has(i)]
    scalars = [x if b.rank(i) == 0 else b("Reshape", x, b.integers()) for i, x in enumerate(given)]
    return [b("Range", *scalars, *([] if b.has(2) else [b.number(1)]))]


FORERUNNERS: Mapping[str, Definition] = {
    "ExpandDims": _expand_dims,
    "GatherND": _same("GatherND", 2),
    "GridSample": _grid_sample,
    "Range": _range,
    "Trilu": _same("Trilu", 2),
}
