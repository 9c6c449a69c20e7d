"""Resampling of images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from collage.toolchains import Unsupported
from collage_torch.ops._table import Call, op

Tensor = Any
Array = Any

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


@op("Resize", host=(1, 2, 3))
def resize(
    call: Call, x: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Tensor:
    plain = not (call.get("antialias", 0) or call.get("exclude_outside", 0) or call.get("axes"))
    stretched = call.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if not (plain and stretched) or call.version < 11 or x.ndim not in _LINEAR:
        raise Unsupported("Resize with antialias, exclude_outside, axes or an aspect-ratio policy")
    factors = None if scales is None or not scales.size else [float(s) for s in scales.tolist()]
    target = None if factors is not None or sizes is None else sizes.tolist()
    if (factors[:2] != [1.0, 1.0]) if factors is not None else (target is None or target[:2] != list(x.shape[:2])):
        raise Unsupported("Resize of batch or channels")
    return _interpolate(call, x, target and target[2:], factors and factors[2:])


def _interpolate(call: Call, x: Tensor, size: Any, factors: Any) -> Tensor:
    mode, where = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        return F.interpolate(x, size, factors, mode=_nearest(call, x, where, size, factors))
    if not x.is_floating_point():
        raise Unsupported("Resize of integers, which torch rounds and ONNX cuts off")
    aligned = where == "align_corners"
    if aligned and factors and any(n * f != int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)):
        raise Unsupported("Resize with aligned corners to a length that is not a whole number")
    outputs = size or [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    if not (aligned or where == "half_pixel" or (where == "pytorch_half_pixel" and min(outputs) > 1)):
        raise Unsupported(f"Resize with {where} coordinates")
    if mode == "linear":
        return F.interpolate(x, size, factors, mode=_LINEAR[x.ndim], align_corners=aligned)
    if x.ndim != 4 or call.get("cubic_coeff_a", -0.75) != -0.75:
        raise Unsupported("cubic Resize of other than images, or with other coefficients")
    return F.interpolate(x, size, factors, mode="bicubic", align_corners=aligned)


def _nearest(call: Call, x: Tensor, where: str, size: Any, factors: Any) -> str:
    """Torch's name for a nearest-neighbour rule that has no ties at these whole-numbered scales."""
    ratios = factors or [m / n for m, n in zip(size, x.shape[2:], strict=True)]
    rounding = call.get("nearest_mode", "round_prefer_floor")
    if any(ratio < 1 or ratio != int(ratio) for ratio in ratios):
        raise Unsupported("nearest-neighbour Resize by a ratio that is not a whole number")
    if where == "asymmetric" and rounding == "floor":
        return "nearest"
    if where == "half_pixel" and rounding.startswith("round_prefer"):
        return "nearest-exact"
    raise Unsupported(f"nearest-neighbour Resize with {where} coordinates and {rounding}")


@op("Upsample", host=(1,))
def upsample(call: Call, x: Tensor, scales: Array) -> Tensor:
    factors = [float(s) for s in scales.tolist()]
    if call.get("mode", "nearest") != "nearest" or factors[:2] != [1.0, 1.0] or any(f != int(f) for f in factors):
        raise Unsupported("Upsample other than nearest, by whole numbers")
    return F.interpolate(x, scale_factor=factors[2:], mode="nearest")


_GRID_MODES = {
    "linear": "bilinear",
    "bilinear": "bilinear",
    "nearest": "nearest",
    "cubic": "bicubic",
    "bicubic": "bicubic",
}


@op("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    mode = _GRID_MODES[call.get("mode", "linear")]
    padding = call.get("padding_mode", "zeros")
    return F.grid_sample(x, grid, mode, padding, align_corners=bool(call.get("align_corners", 0)))


@op("AffineGrid", host=(1,))
def affine_grid(call: Call, theta: Tensor, size: Array) -> Tensor:
    return F.affine_grid(theta, torch.Size(size.tolist()), align_corners=bool(call.get("align_corners", 0)))
