"""Convolutions that TVM has no good loops for, as ordinary ones over two dimensions, for which there are.

* Over three dimensions: the consecutive images of a window become channels of one image.
* To a number of maps that fills no vectors: to some more, which are cut off. Loops over 3 maps compute single numbers.
* To few maps by a wide window: each column of the window has maps of its own, which together fill vectors. Products of
  one output element are then added.
* **Transposed**: each place to which a stride leads (a phase) is an ordinary convolution of the input with a part of the
  weight. All phases are one convolution, with a channel for each, and are laid out beside each other then. TVM's own loops
  go over an input that has zeros between its elements, and take 100 times as long.

The functions take and return values of Relax in ONNX's layouts. Their arguments are those of ONNX's operators, made whole.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from collage.toolchains.tvm.tile_schedules import LANES, TILE_COLUMNS, divisor

__all__ = [
    "Windows",
    "column_by_column",
    "has_columns_for_vectors",
    "is_known",
    "over_three_dimensions",
    "padded_to_shape",
    "transposed",
    "with_whole_vectors",
]

_ADDING = 4
"""Times that an element takes to be added up, in products of a vector. See ``docs/studies/winograd.md``."""
Convolve = Callable[[Any, Any, Any, "Windows"], Any]
"""An ordinary convolution: of a value with a weight, a bias or None, and windows."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a convolution.

    Attributes:
        strides: Stride of each dimension.
        dilations: The same.
        begins: Zeros before the first element, of each dimension.
        ends: Zeros after the last.
        groups: Number of groups of channels.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    groups: int = 1

    @classmethod
    def of(cls, attrs: Mapping[str, Any], rank: int) -> Windows | None:
        """Return the windows of a node over some dimensions; None if its padding depends on lengths, or is negative."""
        pads = list(attrs.get("pads", [0] * 2 * rank))
        if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID", b"") or min(pads, default=0) < 0:
            return None
        if attrs.get("auto_pad") == b"VALID":
            pads = [0] * 2 * rank
        ones = [1] * rank
        strides, dilations = (tuple(attrs.get(name, ones)) for name in ("strides", "dilations"))
        return cls(strides, dilations, tuple(pads[:rank]), tuple(pads[rank:]), int(attrs.get("group", 1)))

    def outputs(self, lengths: Sequence[Any], taps: Sequence[int]) -> list[Any]:
        """Return how many windows there are along each dimension, of its length and the taps of a window."""
        found = zip(lengths, taps, self.strides, self.dilations, self.begins, self.ends, strict=True)
        return [(n + begin + end - dilation * (k - 1) - 1) // step + 1 for n, k, step, dilation, begin, end in found]

    def as_attributes(self) -> dict[str, Any]:
        """Return them as a node's attributes."""
        return {
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads": [*self.begins, *self.ends],
            "group": self.groups,
        }


def is_known(weight: Any) -> bool:
    """Return True if a weight is a constant of a type that NumPy computes with."""
    return isinstance(weight, tvm.ir.GenericConst) and str(weight.ty.dtype) in ("float16", "float32", "float64")


def over_three_dimensions(bb: Any, x: Any, weight: Any, bias: Any, windows: Windows, convolve: Convolve) -> Any:
    """Convolve over three dimensions, with a weight that is known."""
    values = weight.value.numpy()
    taps = values.shape[2]
    samples, channels, depth, height, width = x.ty.shape.values
    stride, dilation, begin = windows.strides[0], windows.dilations[0], windows.begins[0]
    made, *_ = windows.outputs((depth, height, width), values.shape[2:])

    def seen(data: Any) -> Any:
        def element(image: Any, channel: Any, row: Any, column: Any) -> Any:
            place = image % made * stride + channel % taps * dilation - begin
            inside = tirx.all(place >= 0, place < depth)
            value = data(image // made, channel // taps, place, row, column)
            return tirx.if_then_else(inside, value, tirx.const(0, data.dtype))

        return te.compute((samples * made, channels * taps, height, width), element, name="seen")

    images = bb.emit_te(seen, x, primfunc_name_hint="seen")
    flat = relax.const(values.reshape(values.shape[0], -1, *values.shape[3:]), str(weight.ty.dtype))
    rest = Windows(windows.strides[1:], windows.dilations[1:], windows.begins[1:], windows.ends[1:], windows.groups)
    y = bb.normalize(convolve(images, flat, bias, rest))
    _, maps, rows, columns = y.ty.shape.values
    apart = bb.normalize(relax.op.reshape(y, relax.ShapeExpr([samples, made, maps, rows, columns])))
    return relax.op.permute_dims(apart, [0, 2, 1, 3, 4])


def with_whole_vectors(weight: Any, bias: Any, axis: int = 0) -> tuple[Any, Any] | None:
    """Return a weight and a bias padded with zero maps, so that maps fill vectors; None if that gains nothing.

    Args:
        weight: The weight of a convolution in one group, or of a product, which is known.
        bias: The bias, or None. If it is unknown, None is returned.
        axis: The weight's axis of maps.
    """
    maps = int(weight.ty.shape.values[axis])
    more = _whole(maps) - maps
    fill_half = divisor(maps, TILE_COLUMNS) is not None and more >= maps  # 4 or 8 maps: smaller vectors are as fast.
    if not more or fill_half or not (bias is None or isinstance(bias, tvm.ir.GenericConst)):
        return None

    def padded(value: Any, axis: int) -> Any:
        numbers = value.value.numpy()
        added = [(0, more * (i == axis)) for i in range(numbers.ndim)]
        return relax.const(np.pad(numbers, added), str(value.ty.dtype))

    return padded(weight, axis), None if bias is None else padded(bias, 0)


def has_columns_for_vectors(weight: Any, windows: Windows) -> bool:
    """Return True if separate maps for each column of a 2-D window pay, although they must be added up."""
    maps, channels, rows, columns = (int(n) for n in weight.ty.shape.values)
    if windows.groups > 1 or windows.strides[1] > 1:
        return False
    fewer = (_whole(maps) * columns - _whole(maps * columns)) // LANES
    return fewer * channels * rows > _ADDING * maps * columns


def column_by_column(bb: Any, x: Any, weight: Any, bias: Any, windows: Windows, convolve: Convolve) -> Any:
    """Convolve over two dimensions with maps for each column of the window, by a weight that is known."""
    values = weight.value.numpy()
    maps, channels, rows, columns = values.shape
    apart = np.zeros((_whole(maps * columns), channels, rows, 1), values.dtype)
    apart[: maps * columns] = values.transpose(3, 0, 1, 2).reshape(maps * columns, channels, rows, 1)
    y = bb.normalize(convolve(x, relax.const(apart, str(weight.ty.dtype)), None, windows))
    step = windows.dilations[1]

    def together(data: Any, *added: Any) -> Any:
        def element(sample: Any, map_: Any, row: Any, column: Any) -> Any:
            parts = [data(sample, i * maps + map_, row, column + i * step) for i in range(columns)]
            return functools.reduce(operator.add, [*(each(map_) for each in added), *parts])

        samples, _, height, width = data.shape
        return te.compute((samples, maps, height, width - step * (columns - 1)), element, name="together")

    return bb.emit_te(together, y, *([] if bias is None else [bias]), primfunc_name_hint="together")


def _whole(maps: int) -> int:
    """Return the least number of maps that is not below ``maps`` and fills vectors."""
    return -(-maps // LANES) * LANES


def transposed(
    bb: Any, x: Any, weight: Any, bias: Any, windows: Windows, extra: Sequence[int], convolve: Convolve
) -> Any:
    """Convolve transposedly, with a weight that is known.

    Args:
        bb: Relax's builder.
        x: The input.
        weight: Its weight, as ONNX has it: input channels first.
        bias: Its bias, or None.
        windows: Its windows; ``begins`` and ``ends`` are cut off the output.
        extra: Output elements beyond the reach of the windows, at the end of each dimension.
        convolve: An ordinary convolution over the same number of dimensions.
    """
    values, lengths = _stuffed(weight.value.numpy(), windows.dilations), list(x.ty.shape.values[2:])
    kernel = values.shape[2:]
    # A single element has no second one to which a stride leads: then each element of the weight is a phase of its own.
    is_one = [isinstance(n, tirx.IntImm) and int(n) == 1 for n in lengths]
    outputs = [
        (n - 1) * stride + k + more - begin - end
        for n, stride, k, more, begin, end in zip(
            lengths, windows.strides, kernel, extra, windows.begins, windows.ends, strict=True
        )
    ]
    strides = [max(s, k) if one else s for s, k, one in zip(windows.strides, kernel, is_one, strict=True)]
    taps = [math.ceil(k / s) for k, s in zip(kernel, strides, strict=True)]
    skipped = [min(begin // s, n - 1) for begin, s, n in zip(windows.begins, strides, taps, strict=True)]
    begins = [n - 1 - skip for n, skip in zip(taps, skipped, strict=True)]
    ends = []
    for n, s, out, begin, one in zip(lengths, strides, outputs, windows.begins, is_one, strict=True):
        needed = -(-(begin + int(out)) // s) - 1 if one else _surplus(n, s, out, begin)
        ends.append(max(0, needed))
    phases = _phases(values, strides, taps, windows.groups)
    places = math.prod(strides)
    ones = (1,) * len(lengths)
    y = bb.normalize(
        convolve(
            x,
            relax.const(phases, str(weight.ty.dtype)),
            None,
            Windows(ones, ones, tuple(begins), tuple(ends), windows.groups),
        )
    )
    maps = phases.shape[0] // places

    def beside_each_other(data: Any, *added: Any) -> Any:
        def element(sample: Any, channel: Any, *place: Any) -> Any:
            phase: Any = 0
            at = []
            for i, (o, s) in enumerate(zip(place, strides, strict=True)):
                shifted = o + windows.begins[i]
                phase = phase * s + shifted % s
                at.append(shifted // s - skipped[i])
            value = data(sample, channel * places + phase, *at)
            return value + added[0](channel) if added else value

        return te.compute((data.shape[0], maps, *outputs), element, name="beside_each_other")

    return bb.emit_te(beside_each_other, y, *([] if bias is None else [bias]), primfunc_name_hint="transposed")


def _surplus(length: Any, stride: int, output: Any, begin: int) -> int:
    """Return how many more elements than the input has each phase of an output has, which no length changes."""
    beyond = tvm.sym.Analyzer().simplify(output + begin - length * stride)
    return -(-int(beyond) // stride)


def _stuffed(weight: np.ndarray, dilations: Sequence[int]) -> np.ndarray:
    """Return a weight with zeros where a dilated window looks at nothing."""
    sizes = [(n - 1) * dilation + 1 for n, dilation in zip(weight.shape[2:], dilations, strict=True)]
    stuffed = np.zeros((*weight.shape[:2], *sizes), weight.dtype)
    seen: tuple[slice, ...] = tuple(slice(None, None, dilation) for dilation in dilations)
    stuffed[(slice(None), slice(None), *seen)] = weight
    return stuffed


def _phases(weight: np.ndarray, strides: Sequence[int], taps: Sequence[int], groups: int) -> np.ndarray:
    """Return the weight of an ordinary convolution whose output channels are the phases of each channel, one after the other."""
    inputs, maps, *kernel = weight.shape
    rank = len(kernel)
    padded = np.zeros((inputs, maps, *(n * s for n, s in zip(taps, strides, strict=True))), weight.dtype)
    held: tuple[slice, ...] = tuple(slice(0, k) for k in kernel)
    padded[(slice(None), slice(None), *held)] = weight
    split = padded.reshape(
        groups, inputs // groups, maps, *(n for pair in zip(taps, strides, strict=True) for n in pair)
    )
    tap_axes = [3 + 2 * i for i in range(rank)]
    stride_axes = [4 + 2 * i for i in range(rank)]
    ordered = split.transpose(0, 2, *stride_axes, 1, *tap_axes)
    flipped = np.flip(ordered, axis=tuple(range(ordered.ndim - rank, ordered.ndim)))
    return np.ascontiguousarray(flipped.reshape(groups * maps * math.prod(strides), inputs // groups, *taps))


def padded_to_shape(x: Any, weight: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a transposed convolution's attributes, with the padding that makes its output as long as ``output_shape`` says."""
    lengths = [int(n) for n in x.ty.shape.values[2:]]
    kernel = [int(n) for n in weight.ty.shape.values[2:]]
    wanted = attrs["output_shape"][-len(lengths) :]
    extra = list(attrs.get("output_padding", [0] * len(lengths)))
    begin, end = [], []
    for i, (n, k) in enumerate(zip(lengths, kernel, strict=True)):
        stride, dilation = (attrs[name][i] if name in attrs else 1 for name in ("strides", "dilations"))
        total = (n - 1) * stride + (k - 1) * dilation + 1 + extra[i] - wanted[i]
        if total < 0:  # Beyond what the window reaches there is nothing but the bias.
            extra[i], total = extra[i] - total, 0
        half = total // 2
        begin.append(half if attrs.get("auto_pad") == b"SAME_UPPER" else total - half)
        end.append(total - begin[i])
    kept = {name: value for name, value in attrs.items() if name not in ("auto_pad", "output_shape")}
    return {**kept, "pads": [*begin, *end], "output_padding": extra}
