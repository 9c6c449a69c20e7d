"""Operators that move elements: shapes, transposes, parts, padding, pixels and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from collage_ncnn.layers import Blob, Parameter
from collage_ncnn.operator import Lowering, Operator, shape_in_ncnn

__all__ = ["LOWERINGS"]

_ORDERS = {
    2: ("WH", "HW"),
    3: ("WHC", "HWC", "WCH", "CWH", "HCW", "CHW"),
    4: (
        *("WHDC", "HWDC", "WDHC", "DWHC", "HDWC", "DHWC", "WHCD", "HWCD", "WCHD", "CWHD", "HCWD", "CHWD"),
        *("WDCH", "DWCH", "WCDH", "CWDH", "DCWH", "CDWH", "HDCW", "DHCW", "HCDW", "CHDW", "DCHW", "CDHW"),
    ),
}
"""Orders of ``Permute`` by number: axes of the operand, that of the result's neighbours in memory first."""
_AXES = {2: "HW", 3: "CHW", 4: "CDHW"}

_LEAST = {"nearest": 1, "linear": 2, "cubic": 4}
"""The least height and width of an image in each mode of Resize."""
_DIGITS = 1e-5
"""Positions between two elements that differ by less are the same."""


def _kept(op: Operator) -> Sequence[Blob]:
    """Return the operand: only its shape changes, and its reader gives that to ncnn."""
    op.one_result()
    blob = op.read() if op.constant(0) is not None else op.as_it_is()
    if math.prod(op.out_shape()) != math.prod(blob.shape):
        raise op.refuse(f"makes {list(op.out_shape())} of {list(op.shape())}")
    return [blob]


def _dropout(op: Operator) -> Sequence[Blob]:
    training = op.constant(2)
    if op.has(2) and (training is None or training.any()):
        raise op.refuse("in training is random")
    return _kept(op)


def _transpose(op: Operator) -> Sequence[Blob]:
    shape = op.shape()
    order = op.wholes("perm") or list(range(len(shape)))[::-1]
    if sorted(order) != list(range(len(shape))):
        raise op.refuse(f"has perm {order}")
    if (shuffled := _pixels(op, shape, order)) is not None:
        return [shuffled]
    lengths, axes = _merged(shape, order)
    if len(lengths) == 1:
        return [op.read(0, lengths)]
    if len(lengths) > 4:
        raise op.refuse(f"of {list(shape)} with perm {order} has more than four axes to move")
    x = op.read(0, lengths)
    names = _AXES[len(lengths)]
    number = _ORDERS[len(lengths)].index("".join(names[axis] for axis in reversed(axes)))
    return [op.add("Permute", [x], [lengths[axis] for axis in axes], {0: number})]


def _merged(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the fewest axes that move as these do: without those of one element, and neighbours that stay so as one."""
    moved = [axis for axis in order if shape[axis] != 1]
    runs: list[list[int]] = []
    kept = sorted(moved)
    for axis in moved:
        if runs and kept.index(axis) == kept.index(runs[-1][-1]) + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if not runs:
        return [1], [0]
    by_place = sorted(runs)
    return [math.prod(shape[axis] for axis in run) for run in by_place], [by_place.index(run) for run in runs]


def _pixels(op: Operator, shape: Sequence[int], order: Sequence[int]) -> Blob | None:
    """Return the pixels of a transpose that is the middle of a written-out DepthToSpace, None if it is not one."""
    if len(shape) != 6 or shape[0] != 1:
        return None
    modes: dict[tuple[int, ...], tuple[int, int, tuple[int, int]]] = {
        (0, 1, 4, 2, 5, 3): (0, 1, (2, 3)),
        (0, 3, 4, 1, 5, 2): (1, 3, (1, 2)),
    }
    if tuple(order) not in modes:
        return None
    mode, channel, blocks = modes[tuple(order)]
    channels, block, (height, width) = shape[channel], shape[blocks[0]], shape[4:]
    if shape[blocks[1]] != block or block < 2:
        return None
    x = op.read(0, (channels * block**2, height, width))
    return op.add("PixelShuffle", [x], (channels, height * block, width * block), {0: block, 1: mode})


def _depth_to_space(op: Operator) -> Sequence[Blob]:
    x, out, block = op.shape(), op.out_shape(), op.whole("blocksize", 0)
    if len(x) != 4 or x[0] != 1 or block < 1 or x[1] % block**2:
        raise op.refuse(f"of {list(x)} with blocks of {block} is not one image")
    mode = int(op.text("mode", "DCR") == "DCR")
    return [op.add("PixelShuffle", [op.read()], out[1:], {0: block, 1: mode})]


def _space_to_depth(op: Operator) -> Sequence[Blob]:
    x, out, block = op.shape(), op.out_shape(), op.whole("blocksize", 0)
    if len(x) != 4 or x[0] != 1 or block < 1 or x[2] % block or x[3] % block:
        raise op.refuse(f"of {list(x)} with blocks of {block} is not one image")
    if op.text("mode", "DCR") != "DCR":
        raise op.refuse("is translated in mode DCR only")
    return [op.add("Reorg", [op.read()], out[1:], {0: block, 1: 1})]


def _concat(op: Operator) -> Sequence[Blob]:
    out = op.out_shape()
    axis = _axis_in_ncnn(op, op.axis(0, len(out)), out)
    blobs = [op.read(i) for i in range(len(op.node.inputs))]
    if len(blobs) == 1:
        return blobs
    if any(len(blob.shape) != len(shape_in_ncnn(out)) for blob in blobs):
        raise op.refuse("joins along the batch")
    return [op.add("Concat", blobs, shape_in_ncnn(out), {0: axis})]


def _split(op: Operator) -> Sequence[Blob]:
    shape = op.shape()
    axis = _axis_in_ncnn(op, op.axis(0, len(shape)), shape)
    shapes = [shape_in_ncnn(op.out_shape(i)) for i in range(len(op.node.outputs))]
    x = op.read()
    if any(len(part) != len(x.shape) for part in shapes):
        raise op.refuse("divides the batch")
    if len(shapes) == 1:
        return [x]
    sizes = [part[axis] for part in shapes]
    if sum(sizes) != x.shape[axis]:
        raise op.refuse(f"makes parts of {sizes} of {list(shape)}")
    return op.network.split("Slice", [x], shapes, {0: sizes, 1: axis})


def _slice(op: Operator) -> Sequence[Blob]:
    shape, out = op.shape(), op.out_shape()
    starts, ends = op.integers(1, "starts"), op.integers(2, "ends")
    if starts is None or ends is None:
        raise op.refuse("lacks starts or ends")
    axes = op.integers(3, "axes")
    axes = list(range(len(starts))) if axes is None else [axis % len(shape) for axis in axes]
    if set(op.integers(4, "steps") or [1]) != {1}:
        raise op.refuse("has steps other than 1")
    bounds = [slice(start, end).indices(shape[axis]) for start, end, axis in zip(starts, ends, axes, strict=True)]
    begins = dict(zip(axes, (begin for begin, _, _ in bounds), strict=True))
    finishes = dict(zip(axes, (max(begin, end) for begin, end, _ in bounds), strict=True))
    x = op.read()
    dropped = len(shape) - len(x.shape)
    if any(axis < dropped and (begins[axis], finishes[axis]) != (0, 1) for axis in axes):
        raise op.refuse("takes no image")
    lengths = [finishes.get(axis, shape[axis]) - begins.get(axis, 0) for axis in range(len(shape))]
    if tuple(lengths) != out:
        raise op.refuse(f"makes {list(out)} of {list(shape)}")
    taken = [axis - dropped for axis in axes if axis >= dropped and lengths[axis] != shape[axis]]
    if not taken:
        return [x]
    parameters: dict[int, Parameter] = {
        9: [begins[axis + dropped] for axis in taken],
        10: [finishes[axis + dropped] for axis in taken],
        11: taken,
    }
    return [op.add("Crop", [x], lengths[dropped:], parameters)]


def _axis_in_ncnn(op: Operator, axis: int, shape: Sequence[int]) -> int:
    found = axis - (len(shape) - len(shape_in_ncnn(tuple(shape))))
    if found < 0:
        raise op.refuse(f"along axis {axis}, the batch, is not translated")
    return found


def _pad(op: Operator) -> Sequence[Blob]:
    shape, out = op.shape(), op.out_shape()
    given = op.integers(1, "pads")
    if given is None:
        raise op.refuse("lacks pads")
    axes = op.integers(3, "axes")
    axes = list(range(len(shape))) if axes is None else [axis % len(shape) for axis in axes]
    if len(given) != 2 * len(axes) or min(given, default=0) < 0:
        raise op.refuse(f"has pads {given}")
    before = dict(zip(axes, given[: len(axes)], strict=True))
    after = dict(zip(axes, given[len(axes) :], strict=True))
    if any(before.get(i, 0) + after.get(i, 0) + size != out[i] for i, size in enumerate(shape)):
        raise op.refuse(f"makes {list(out)} of {list(shape)}")
    places = [axis for axis in axes if before[axis] or after[axis]]
    x = op.read()
    first = len(shape) - min(2, len(x.shape))
    if any(axis < first for axis in places) or (len(x.shape) == 1 and places and len(shape) > 2):
        raise op.refuse("beside the last two axes is not translated")
    mode = op.text("mode", "constant")
    kinds = {"constant": 0, "edge": 1, "reflect": 2}
    if mode not in kinds:
        raise op.refuse(f"in mode {mode} is not translated")
    if mode == "reflect" and any(max(before[axis], after[axis]) >= shape[axis] for axis in places):
        raise op.refuse("reflects more than there is")
    if not places:
        return [x]
    value = op.weight(2, "a value") if op.has(2) else np.zeros(1, np.float32)
    if value.size != 1:
        raise op.refuse("needs one value")
    last, above = len(shape) - 1, len(shape) - 2
    parameters: dict[int, Parameter] = {
        0: before.get(above, 0),
        1: after.get(above, 0),
        2: before.get(last, 0),
        3: after.get(last, 0),
        4: kinds[mode],
        5: float(value.reshape(-1)[0]),
    }
    return [op.add("Padding", [x], shape_in_ncnn(out), parameters)]


def _resize(op: Operator) -> Sequence[Blob]:
    shape, out = op.shape(), op.out_shape()
    if len(shape) != 4 or shape[0] != 1 or out[:2] != shape[:2]:
        raise op.refuse(f"of {list(shape)} to {list(out)} is not of one image")
    mode, transform = op.text("mode", "nearest"), op.text("coordinate_transformation_mode", "half_pixel")
    policy = op.text("keep_aspect_ratio_policy", "stretch")
    if op.whole("antialias", 0) or policy != "stretch" or mode not in _LEAST:
        raise op.refuse(
            f"in mode {mode} with antialias {op.whole('antialias', 0)} and policy {policy} is not translated"
        )
    scales = _scales(op, shape, out)
    positions = [_positions(op, transform, shape[i], out[i], scales[i]) for i in (2, 3)]
    parameters: dict[int, Parameter] = {0: 1, 3: out[2], 4: out[3]}
    if mode == "nearest":
        for i, wanted in zip((2, 3), positions, strict=True):
            factor = np.float32(shape[i]) / np.float32(out[i])
            chosen = np.minimum((np.arange(out[i]).astype(np.float32) * factor).astype(np.int64), shape[i] - 1)
            if not np.array_equal(chosen, _rounded(op, wanted, shape[i], scales[i])):
                raise op.refuse("chooses other neighbours than ncnn")
    else:
        if min(shape[2:]) < _LEAST[mode]:
            raise op.refuse(f"in mode {mode} of {list(shape)} reads beyond the image in ncnn")
        if mode == "cubic" and (op.number("cubic_coeff_a", -0.75) != -0.75 or op.whole("exclude_outside", 0)):
            raise op.refuse("has other cubic coefficients than ncnn")
        corners = transform == "align_corners"
        for i, wanted in zip((2, 3), positions, strict=True):
            places = np.arange(out[i], dtype=np.float64)
            if corners and out[i] < 2:
                raise op.refuse("to one element divides by zero in ncnn")
            ours = places * (shape[i] - 1) / (out[i] - 1) if corners else (places + 0.5) * (shape[i] / out[i]) - 0.5
            if np.abs(np.clip(ours, 0, shape[i] - 1) - np.clip(wanted, 0, shape[i] - 1)).max() > _DIGITS:
                raise op.refuse("places pixels elsewhere than ncnn")
        parameters |= {0: 2 if mode == "linear" else 3, 6: int(corners)}
    return [op.add("Interp", [op.read()], out[1:], parameters)]


def _scales(op: Operator, shape: Sequence[int], out: Sequence[int]) -> list[float]:
    """Return factors by axis: those that the operator names, or those of the sizes."""
    axes = [axis % len(shape) for axis in op.wholes("axes")] or list(range(len(shape)))
    found = [1.0] * len(shape)
    for axis in axes:
        found[axis] = out[axis] / shape[axis]
    given = op.constant(2) if op.has(2) else None
    if (op.has(2) and given is None) or (op.has(3) and op.constant(3) is None):
        raise op.refuse("needs constant scales or sizes")
    if given is not None and given.size:
        if given.size != len(axes):
            raise op.refuse(f"has {given.size} scales for {len(axes)} axes")
        for axis, scale in zip(axes, given.reshape(-1).tolist(), strict=True):
            found[axis] = scale
    if not all(math.isfinite(scale) and scale > 0 for scale in found):
        raise op.refuse(f"has scales {found}")
    return found


def _positions(op: Operator, transform: str, size: int, results: int, scale: float) -> np.ndarray:
    """Return the position in the operand of each element of the result."""
    places = np.arange(results, dtype=np.float64)
    if transform == "half_pixel" or (transform == "pytorch_half_pixel" and results > 1):
        return (places + 0.5) / scale - 0.5
    if transform == "asymmetric":
        return places / scale
    if transform == "align_corners" and scale * size > 1:
        # The length that ONNX means is not rounded to the whole number that there is.
        return places * (size - 1) / (scale * size - 1)
    raise op.refuse(f"with {transform} to {results} elements is not translated")


def _rounded(op: Operator, positions: np.ndarray, size: int, scale: float) -> np.ndarray:
    """Return the number of the nearest element at each position."""
    modes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": lambda x: np.floor(x),
        "ceil": lambda x: np.ceil(x),
    }
    mode = op.text("nearest_mode", "round_prefer_floor")
    if mode not in modes:
        raise op.refuse(f"has nearest_mode {mode}")
    # Positions on a border are exact only if the scale or its inverse is whole. Others depend on how they are rounded.
    lower, upper = (modes[mode](positions + shift) for shift in (-_DIGITS, _DIGITS))
    if not np.array_equal(lower, upper) and scale % 1 and (1 / scale) % 1:
        raise op.refuse("has positions on the border between two neighbours")
    return np.asarray(np.clip(modes[mode](positions), 0, size - 1))


LOWERINGS: Mapping[str, Lowering] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Flatten": _kept,
    "Identity": _kept,
    "Pad": _pad,
    "Reshape": _kept,
    "Resize": _resize,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _kept,
    "Transpose": _transpose,
    "Unsqueeze": _kept,
}
