"""Winograd's algorithm for convolutions of windows 3 x 3, where it takes less time than adding up all products.

A pass over fused loops that are not scheduled yet. Each nest that begins with such a convolution, by a weight that is
constant, gets new loops, and each of its calls the transformed weight. ``docs/studies/winograd.md`` has the measurements
behind the constants. Results differ more in rounding than those of plain loops, by about one more digit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import relax

from collage.toolchains.tvm.convolutions import Windows
from collage.toolchains.tvm.lengths import lengths_of, numbers_of
from collage.toolchains.tvm.nests import Nest, Unlike, margins_of, rewrite_nests, stored
from collage.toolchains.tvm.processor import Processor
from collage.toolchains.tvm.weight_layout import Packer
from collage.toolchains.tvm.winograd_loops import Blocking, Convolution, packed_weight, write_loops
from collage.toolchains.tvm.winograd_transforms import TAPS

__all__ = ["blocking_of", "is_expected", "use_winograd"]

_OUTPUTS = (2, 4)
_LEAST_ROWS = 9
"""Tiles that are multiplied at a time below which a product waits for its weights."""
_NEAR_BYTES = 3 << 20
"""Weights up to this size stay in a second-level cache."""
_FAR_BYTES = 12 << 20
"""Weights above this size are in more pages of memory than a processor keeps addresses of."""
_WAIT_ROWS = {"near": 0, "middle": 14, "far": 36}
"""Tiles that could be multiplied in the time in which weights come, by where they come from."""
_MOST_BYTES = 40 << 20
"""Transformed weights above this size are not worth their memory: those of F(4, 3) are four times as large as plain ones."""
_FEW_TILES = 32
"""Tiles per thread below which the threads share the transformed input."""
_MOST_ROWS = 14
_TYPICAL = 64
"""Height and width of an image where they are free, for which it is decided if Winograd's algorithm is used."""
_MOST_TILES = {True: 216, False: 56}
"""Tiles of a block, if transformed tiles are shared and if not."""
_TRANSFORM_CYCLES = 450 / 36
"""Cycles to transform a tile to and fro, for a vector of channels and of maps, by element of the tile."""
_GAIN = 1.0
"""Winograd's algorithm is used if its expected time is below this share of the best time of plain loops."""


def is_expected(x: Any, weight: Any, windows: Windows, processor: Processor) -> bool:
    """Return True if the loops of a convolution will be Winograd's.

    Args:
        x: The input in Relax, in ONNX's layout.
        weight: The weight, which is known.
        windows: The windows over two dimensions.
        processor: The processor.
    """
    maps, channels, *sides = map(int, weight.ty.shape.values)
    is_plain = windows.strides == windows.dilations == (1, 1) and windows.groups == 1 and sides == [TAPS, TAPS]
    if not is_plain or str(weight.ty.dtype) != "float32" or not isinstance(x.ty.shape, relax.ShapeExpr):
        return False
    samples, _, height, width = numbers_of(x.ty.shape.values)
    rows, columns = windows.outputs((height, width), sides)
    found = Convolution(samples, height, width, rows, columns, channels, maps, windows.begins[0], windows.begins[1])
    return processor.is_wide and blocking_of(found, processor) is not None


def use_winograd(target: Any) -> Any:
    """Return a pass that rewrites convolutions for a processor with wide vectors.

    It runs at TVM's highest optimisation level only.
    """
    return rewrite_nests(target, "winograd", _rewritten)


def blocking_of(convolution: Convolution, processor: Processor) -> Blocking | None:
    """Return the blocks by which a convolution is expected to take the least time; None if plain loops are expected to."""
    if convolution.is_free:
        usual = blocking_of(_typical(convolution), processor)
        return None if usual is None else _for_any_length(usual, processor)
    channels, maps = convolution.channels, convolution.maps
    whole = math.ceil(maps / processor.lanes)
    vectors = next(n for n in (2, 3, 1) if whole % n == 0)
    fitting = [m for m in _OUTPUTS if convolution.tiles(m) > 0 and _weight_bytes(convolution, m) <= _MOST_BYTES]
    found = [_blocks(convolution, outputs, vectors, processor) for outputs in fitting]
    best = min(found, key=lambda blocking: _cycles(convolution, blocking, processor.threads), default=None)
    if best is None:
        return None
    taps = TAPS * TAPS
    pixels = convolution.samples * convolution.rows * convolution.columns + _wait_rows(taps * channels * maps * 4)
    plain = pixels * taps * channels * whole / 2 / processor.threads
    return best if _cycles(convolution, best, processor.threads) < _GAIN * plain else None


def _typical(convolution: Convolution) -> Convolution:
    """Return a convolution over one image of a usual size, in place of one over images of any number and size."""
    usual = {"samples": 1, "height": _TYPICAL, "width": _TYPICAL, "rows": _TYPICAL, "columns": _TYPICAL}
    return replace(convolution, **{k: v for k, v in usual.items() if not isinstance(getattr(convolution, k), int)})


def _for_any_length(blocking: Blocking, processor: Processor) -> Blocking:
    """Return the largest blocks of tiles: their number is not known."""
    rows = min((processor.registers - blocking.vectors - 1) // blocking.vectors, _MOST_ROWS)
    tiles = _MOST_TILES[blocking.shared] // rows * rows
    return replace(blocking, rows=rows, tiles=tiles, threads=processor.threads)


def _blocks(convolution: Convolution, outputs: int, vectors: int, processor: Processor) -> Blocking:
    """Return the blocks for F(outputs, 3) with the fewest rows of products that are not needed."""
    tiles, threads = convolution.tiles(outputs), processor.threads
    panels = math.ceil(convolution.maps / (processor.lanes * vectors))
    shared = _weight_bytes(convolution, outputs) > _NEAR_BYTES or tiles < _FEW_TILES * threads
    most_rows = min((processor.registers - vectors - 1) // vectors, _MOST_ROWS)
    best: tuple[float, Blocking] | None = None
    for size in range(1, min(tiles, _MOST_TILES[shared]) + 1):
        tasks = -(-tiles // size) * (panels if shared else 1)
        for rows in range(1, min(size, most_rows) + 1):
            needed = -(-tasks // threads) * (-(-size // rows) * (rows + 1) + 1)
            if best is None or needed < best[0]:
                best = needed, Blocking(outputs, processor.lanes, vectors, rows, size, shared)
    assert best is not None
    return best[1]


def _weight_bytes(convolution: Convolution, outputs: int) -> int:
    """Return the size of the transformed weight."""
    return (outputs + TAPS - 1) ** 2 * convolution.channels * convolution.maps * 4


def _wait_rows(weight_bytes: int) -> int:
    """Return the number of tiles that could be multiplied while the weights are loaded into a cache."""
    place = "near" if weight_bytes <= _NEAR_BYTES else "middle" if weight_bytes <= _FAR_BYTES else "far"
    return _WAIT_ROWS[place]


def _cycles(convolution: Convolution, blocking: Blocking, threads: int) -> float:
    """Return the estimated number of processor cycles that a convolution takes."""
    elements = (blocking.outputs + TAPS - 1) ** 2
    channels, maps = convolution.channels, math.ceil(convolution.maps / blocking.lanes)
    tiles = convolution.tiles(blocking.outputs)
    groups = math.ceil(tiles / blocking.tiles) * math.ceil(blocking.tiles / blocking.rows)
    rows = groups * max(blocking.rows, _LEAST_ROWS) + _wait_rows(_weight_bytes(convolution, blocking.outputs))
    products = rows * channels * maps / 2
    transforms = _TRANSFORM_CYCLES * tiles * (math.ceil(channels / blocking.lanes) + maps) / 2
    return float(elements * (products + transforms) / threads)


def _rewritten(nest: Nest, function: Any, processor: Processor) -> tuple[Any, Mapping[int, Packer]]:
    """Return other loops, and the function that converts each weight for them, by position.

    Raises:
        Unlike: The loops stay.
    """
    convolution = _convolution_of(nest, function.params[0], function.params[1])
    blocking = blocking_of(convolution, processor)
    if blocking is None:
        raise Unlike
    loops = write_loops(convolution, blocking, list(function.params), "winograd", nest.finish)
    return loops, {1: functools.partial(packed_weight, blocking=blocking)}


def _convolution_of(nest: Nest, data: Any, weight: Any) -> Convolution:
    """Return the convolution of a nest.

    Raises:
        Unlike: It is none that the algorithm is for.
    """
    padded = data if nest.padding is None else stored(nest.padding).buffer
    made = _convolved(nest.anchor, padded, weight)
    top, left = (0, 0) if nest.padding is None else margins_of(nest.padding, data)
    samples, height, width, channels = lengths_of(data)
    _, rows, columns, maps = lengths_of(made)
    if not isinstance(channels, int) or not isinstance(maps, int):
        raise Unlike
    return Convolution(samples, height, width, rows, columns, channels, maps, top, left)


def _convolved(block: Any, padded: Any, weight: Any) -> Any:
    """Return the output of a block that convolves with 3 x 3 windows at stride 1."""
    store = block.body
    if len(block.iter_vars) != 7:
        raise Unlike
    sample, row, column, output, down, across, channel = (each.var for each in block.iter_vars)
    for buffer in (padded, weight, store.buffer):
        if str(buffer.dtype) != "float32" or len(lengths_of(buffer)) != 4:
            raise Unlike
    if lengths_of(weight)[:2] != [TAPS, TAPS] or lengths_of(weight)[2] != lengths_of(padded)[3]:
        raise Unlike
    product = padded[sample, row + down, column + across, channel] * weight[down, across, channel, output]
    expected = store.buffer[sample, row, column, output] + product
    if not tvm_ffi.structural_equal(store.value, expected):
        raise Unlike
    return store.buffer
