"""Winograd's algorithm for convolutions of windows 3 x 3, where it takes less time than adding up all products.

A pass over fused loops that are not scheduled yet. Each nest that begins with such a convolution, by a weight that is
constant, gets new loops, and each of its calls the transformed weight. ``docs/studies/winograd.md`` has the measurements
behind the constants. Results differ more in rounding than those of plain loops, by about one more digit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.convolutions import Windows
from collage.toolchains.tvm.weight_layout import Calls, Packer, call_sites, is_weight
from collage.toolchains.tvm.winograd_loops import Blocking, Convolution, Length, packed_weight, write_loops
from collage.toolchains.tvm.winograd_transforms import TAPS

__all__ = ["Processor", "blocking_of", "is_expected", "use_winograd"]

_OPT_LEVEL = 3
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
# A result of calls that is read several times is computed each time, so that twenty squares would be a million calls.
_MOST_CALLS = 32
_GAIN = 1.0
"""Winograd's algorithm is used if its expected time is below this share of the best time of plain loops."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The vectors of a processor.

    Attributes:
        lanes: Elements of single precision in a vector.
        registers: Number of vector registers.
        threads: Number of threads.
    """

    lanes: int
    registers: int
    threads: int


_WIDE = Processor(lanes=16, registers=32, threads=2)


def is_expected(x: Any, weight: Any, windows: Windows) -> bool:
    """Return True if the loops of a convolution will be Winograd's on a processor with wide vectors.

    Args:
        x: The input in Relax, in ONNX's layout.
        weight: The weight, which is known.
        windows: The windows over two dimensions.
    """
    maps, channels, *sides = map(int, weight.ty.shape.values)
    is_plain = windows.strides == windows.dilations == (1, 1) and windows.groups == 1 and sides == [TAPS, TAPS]
    if not is_plain or str(weight.ty.dtype) != "float32" or not isinstance(x.ty.shape, relax.ShapeExpr):
        return False
    samples, _, height, width = _numbers(x.ty.shape.values)
    rows, columns = (
        length + before + after - (TAPS - 1)
        for length, before, after in zip((height, width), windows.begins, windows.ends, strict=True)
    )
    found = Convolution(samples, height, width, rows, columns, channels, maps, windows.begins[0], windows.begins[1])
    return blocking_of(found, _WIDE) is not None


def use_winograd(target: Any) -> Any:
    """Return a pass that rewrites convolutions for a processor with wide vectors.

    It runs at TVM's highest optimisation level only.
    """

    def rewrite(module: Any, _: Any) -> Any:
        processor = _processor_of(target)
        if processor is None:
            return module
        sites = call_sites(module)
        calls = Calls(module)
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and variable in sites:
                calls.note(variable, "winograd", _rewritten(function, sites[variable], processor))
        return calls.rewritten(module)

    return tvm.transform.module_pass(rewrite, opt_level=_OPT_LEVEL, name="use_winograd")


def _processor_of(target: Any) -> Processor | None:
    threads = int(target.attrs.get("num-cores", 1))
    if tvm.target.codegen.target_has_features("avx512f", target):
        return Processor(16, 32, threads)
    if tvm.target.codegen.target_has_features(["avx2", "fma"], target):
        return Processor(8, 16, threads)
    return None


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


def _rewritten(function: Any, sites: Sequence[Any], processor: Processor) -> tuple[Any, Mapping[int, Packer]] | None:
    """Return other loops, and the function that converts each weight for them, by position; None if the loops stay."""
    if not all(len(call.args[1]) > 1 and is_weight(call.args[1][1]) for call in sites):
        return None
    try:
        nest = _read(function)
    except _Unlike:
        return None
    blocking = blocking_of(nest.convolution, processor)
    if blocking is None:
        return None
    loops = write_loops(nest.convolution, blocking, list(function.params), "winograd", nest.epilogue)
    return loops, {1: functools.partial(packed_weight, blocking=blocking)}


class _Unlike(Exception):
    """Loops are not those of a convolution that the algorithm is for."""


@dataclass(frozen=True, slots=True)
class _Nest:
    """A convolution and the elementwise blocks after it.

    Attributes:
        convolution: The convolution.
        made: Buffer of its output.
        followers: Blocks that follow, in order.
    """

    convolution: Convolution
    made: Any
    followers: tuple[Any, ...]

    def epilogue(self, value: Any, where: Sequence[Any]) -> Any:
        """Return the expression that the blocks after the convolution compute from one of its outputs.

        Results of calls, such as exponentials, become no variables: they will hold a ``Let``, and TVM's analyzer refuses that.
        """
        known = [(self.made, build.bind(value))]

        def loaded(load: Any) -> Any:
            return next((found for buffer, found in known if buffer.same_as(load.source)), load)

        for block in self.followers:
            places = [(each.var, place) for each, place in zip(block.iter_vars, where, strict=True)]

            def placed(variable: Any, places: list[tuple[Any, Any]] = places) -> Any:
                return next((place for own, place in places if own.same_as(variable)), variable)

            made = tvm_ffi.structural_map(block.body.value, [(ir.TensorLoad, loaded), (ir.Var, placed)])
            known.append((block.body.buffer, made if _all_of(made, ir.Call) else build.bind(made)))
        return known[-1][1]


def _read(function: Any) -> _Nest:
    """Read the blocks of a function.

    Raises:
        _Unlike: They are not the blocks of a convolution.
    """
    data, weight, *_, output = function.params
    blocks = list(_blocks_of(function.body))
    padding = blocks.pop(0) if len(blocks) > 1 and blocks[0].init is None else None
    convolution, *followers = blocks
    padded = data if padding is None else _stored(padding).buffer
    made = _convolved(convolution, padded, weight)
    top, left = (0, 0) if padding is None else _margins(padding, data)
    samples, height, width, channels = _lengths(data)
    _, rows, columns, maps = _lengths(made)
    last, calls = made, list[tuple[Any, int]]()
    for block in followers:
        last = _stored(block).buffer
        calls.append((last, _number_of_calls(block.body.value, calls)))
        if not _is_element_wise(block, made, [made, *(each.body.buffer for each in followers)]):
            raise _Unlike
    if not last.same_as(output) or any(number > _MOST_CALLS for _, number in calls):
        raise _Unlike
    if not isinstance(channels, int) or not isinstance(maps, int):
        raise _Unlike
    found = Convolution(samples, height, width, rows, columns, channels, maps, top, left)
    return _Nest(found, made, tuple(followers))


def _number_of_calls(value: Any, earlier: Sequence[tuple[Any, int]]) -> int:
    """Return the number of calls of an expression in which earlier results stand as they are computed."""
    loads = [load.source for load in _all_of(value, ir.TensorLoad)]
    known = (number for source in loads for buffer, number in earlier if buffer.same_as(source))
    return len(_all_of(value, ir.Call)) + sum(known)


def _all_of(value: Any, kind: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (kind, found.append))
    return found


def _blocks_of(body: Any) -> Iterator[Any]:
    """Yield the blocks of a function whose loops follow each other.

    Raises:
        _Unlike: There is something else in it.
    """
    if not isinstance(body, s_tir.SBlockRealize):
        raise _Unlike
    nests = body.block.body
    for nest in nests.seq if isinstance(nests, tirx.SeqStmt) else [nests]:
        while isinstance(nest, tirx.For):
            nest = nest.body
        if not isinstance(nest, s_tir.SBlockRealize):
            raise _Unlike
        yield nest.block


def _stored(block: Any) -> Any:
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        raise _Unlike
    return block.body


def _convolved(block: Any, padded: Any, weight: Any) -> Any:
    """Return the output of a block that convolves with 3 x 3 windows at stride 1."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.init is None or len(block.iter_vars) != 7:
        raise _Unlike
    sample, row, column, output, down, across, channel = (each.var for each in block.iter_vars)
    for buffer in (padded, weight, store.buffer):
        if str(buffer.dtype) != "float32" or len(_lengths(buffer)) != 4:
            raise _Unlike
    if _lengths(weight)[:2] != [TAPS, TAPS] or _lengths(weight)[2] != _lengths(padded)[3]:
        raise _Unlike
    product = padded[sample, row + down, column + across, channel] * weight[down, across, channel, output]
    expected = store.buffer[sample, row, column, output] + product
    if not tvm_ffi.structural_equal(store.value, expected):
        raise _Unlike
    return store.buffer


def _margins(block: Any, data: Any) -> tuple[int, int]:
    """Return how many rows and columns of zeros a block adds before those of its input."""
    value = _stored(block).value
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, loads.append))
    if len(loads) != 1 or not loads[0].source.same_as(data) or not _is_zero_elsewhere(value):
        raise _Unlike
    analyzer = tvm.sym.Analyzer()
    margins = [
        analyzer.simplify(each.var - index) for each, index in zip(block.iter_vars, loads[0].indices, strict=True)
    ]
    if not all(isinstance(margin, tirx.IntImm) for margin in margins):
        raise _Unlike
    first, top, left, last = map(int, margins)
    if first or last or min(top, left) < 0:
        raise _Unlike
    return top, left


def _is_zero_elsewhere(value: Any) -> bool:
    """Return True of a load, and of a load where a condition holds, and 0 where it does not."""
    if isinstance(value, ir.TensorLoad):
        return True
    is_choice = isinstance(value, ir.Call) and isinstance(value.op, ir.Op) and value.op.name == "prim.if_then_else"
    return is_choice and isinstance(value.args[2], tirx.FloatImm) and value.args[2].value == 0


def _is_element_wise(block: Any, made: Any, own: Sequence[Any]) -> bool:
    """Return True if a block is elementwise: it computes each element from the same element of earlier results."""
    store = _stored(block)
    variables = [each.var for each in block.iter_vars]
    loads: list[Any] = []
    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append))
    places = [store.indices, *(load.indices for load in loads if any(load.source.same_as(each) for each in own))]
    same = all(
        len(place) == len(variables) and all(map(lambda a, b: a.same_as(b), place, variables)) for place in places
    )
    return same and str(store.buffer.dtype) == "float32" and tvm_ffi.structural_equal(store.buffer.shape, made.shape)


def _lengths(buffer: Any) -> list[Length]:
    return _numbers(buffer.shape)


def _numbers(shape: Iterable[Any]) -> list[Length]:
    return [int(n) if isinstance(n, tirx.IntImm) else n for n in shape]
