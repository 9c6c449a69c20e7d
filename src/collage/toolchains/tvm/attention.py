"""Attention in one nest of loops: a product, the softmax of its rows, and the product of these with values.

A pass over fused loops that are not scheduled yet. Each task computes the scores of a few rows, which stay in a cache until they
are multiplied with the values. As three functions, scores of 1,024 tokens and 4 heads are written to memory twice and read
twice, 16 MB each time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.lengths import ceil_div, f32, i64, lengths_of, numbers_of
from collage.toolchains.tvm.matrix_products import MatrixLoops, MatrixProduct, load_of, matrix_product_of
from collage.toolchains.tvm.nests import Nest, Unlike, all_of, read_nest, unless_unlike
from collage.toolchains.tvm.processor import Processor, Tile, processor_of
from collage.toolchains.tvm.products import place_of
from collage.toolchains.tvm.profiler import with_nodes_of
from collage.toolchains.tvm.softmax_loops import is_softmax
from collage.toolchains.tvm.tile_schedules import PARALLEL_WORK
from collage.toolchains.tvm.weight_layout import is_call_of, is_call_tir

__all__ = ["turn_products", "use_attention"]

_OPT_LEVEL = 3
_SCORES_BYTES = 1 << 17
"""Scores of this size stay in a second-level cache. With a quarter attention takes 0 to 3 % longer, with four times as much as
long within 4 %."""


def use_attention(target: Any) -> Any:
    """Return a pass that makes one function of a product, a softmax along its rows and a product with its result.

    All lengths are known, and nothing else reads the scores. It runs at TVM's highest optimisation level only.
    """

    def fused(module: Any, _: Any) -> Any:
        processor = processor_of(target)
        return module if processor is None else _Attentions(module, processor).rewritten()

    return tvm.transform.module_pass(fused, opt_level=_OPT_LEVEL, name="use_attention")


def turn_products() -> Any:
    """Return a pass that multiplies scores with the transpose of values, where values are multiplied with that of more scores.

    Attention over the pixels of an image, whose channels come first, is written so.
    """

    def turn(module: Any, _: Any) -> Any:
        return _Turned(module).rewritten()

    return tvm.transform.module_pass(turn, opt_level=_OPT_LEVEL, name="turn_products")


@relax.expr_functor.mutator
class _Turned(relax.PyExprMutator):  # type: ignore[misc]
    """Turns products; the transposes that they no longer read are dead."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._module = module
        self._values: Mapping[Any, Any] = {}

    def rewritten(self) -> Any:
        """Return the module with all such products turned."""
        for variable, function in self._module.functions_items():
            if isinstance(function, relax.Function):
                self._values = relax.analysis.get_var2val(function)
                self.builder_.update_func(variable, self.visit_expr(function))
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        """Turn one product."""
        scores = self._scores_of(call)
        call = self.visit_expr_post_order(call)
        if scores is None:
            return call
        axes = [*range(len(call.ty.shape) - 2), -1, -2]
        values = self.builder_.emit(relax.op.permute_dims(call.args[0], axes))
        product = self.builder_.emit(relax.op.matmul(self.visit_expr(scores), values))
        return relax.op.permute_dims(product, axes)

    def _scores_of(self, call: Any) -> Any:
        """Return the scores whose transpose is the second operand of a product, if they outnumber the first; else None."""
        transpose: Any = self._values.get(call.args[1]) if is_call_of(call, "relax.matmul") else None
        if not is_call_of(transpose, "relax.permute_dims") or transpose.attrs.axes is None:
            return None
        values, scores, axes = call.args[0], transpose.args[0], [int(axis) for axis in transpose.attrs.axes]
        if not self._is_softmax(self._values.get(scores)) or not isinstance(values.ty.shape, relax.ShapeExpr):
            return None
        lengths = [numbers_of(each.ty.shape.values) for each in (values, scores)]
        outer = len(axes) - 2
        is_last_two = axes == [*range(outer), outer + 1, outer] and len(lengths[0]) == len(axes)
        is_known = all(isinstance(n, int) for each in lengths for n in each)
        return scores if is_last_two and is_known and math.prod(lengths[1]) > math.prod(lengths[0]) else None

    def _is_softmax(self, value: Any) -> bool:
        """Return True for the softmax of a tensor of known rank, in TVM's operator or in loops of our own."""
        if is_call_of(value, "relax.nn.softmax"):
            return isinstance(value.ty.shape, relax.ShapeExpr)
        return is_call_tir(value) and is_softmax(self._module[value.args[0]])


@dataclass(frozen=True, slots=True)
class _Attention:
    """The two products of an attention.

    Attributes:
        scores: The first: a row of scores for each row of the result.
        scored: The nest of the first product.
        mixed: The second: sums of values, weighted by scores.
        mixing: The nest of the second product.
        functions: The functions of both.
        rows: Rows that one task computes.
        lanes: Elements of a vector of scores.
    """

    scores: MatrixProduct
    scored: Nest
    mixed: MatrixProduct
    mixing: Nest
    functions: tuple[Any, Any]
    rows: int
    lanes: int

    @property
    def stride(self) -> int:
        """Return the length of a row of scores in memory: whole vectors."""
        return math.ceil(int(self.scores.lengths[-1]) / self.lanes) * self.lanes


@relax.expr_functor.mutator
class _Attentions(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces the second product of each attention; what it no longer reads is dead."""

    def __init__(self, module: Any, processor: Processor) -> None:
        super().__init__(module)
        self._module, self._processor = module, processor
        self._values: Mapping[Any, Any] = {}
        self._readers: dict[Any, Any] = {}
        self._made: dict[Any, Any] = {}

    def rewritten(self) -> Any:
        """Return the module with all attentions in loops of their own."""
        for variable, function in self._module.functions_items():
            if isinstance(function, relax.Function):
                self._values = relax.analysis.get_var2val(function)
                for block in function.body.blocks:
                    if isinstance(block, relax.DataflowBlock):
                        self._readers.update(relax.analysis.udchain(block))
                self.builder_.update_func(variable, self.visit_expr(function))
        module = self.builder_.get()
        return relax.transform.DeadCodeElimination()(module) if any(self._made.values()) else module

    def visit_call_(self, call: Any) -> Any:
        """Replace one call, if it is the second product of an attention."""
        softmax = self._maker_of(call)
        scores = None if softmax is None else self._maker_of(softmax)
        if scores is None or (made := self._function_of(scores, softmax, call)) is None:
            return super().visit_call_(call)
        given = [*scores.args[1].fields, *call.args[1].fields[1:]]
        arguments = relax.Tuple([self.visit_expr(each) for each in given])
        marks = with_nodes_of([scores, softmax, call])
        return relax.Call(call.op, [made, arguments, *call.args[2:]], marks, call.ty_args)

    def _maker_of(self, call: Any) -> Any:
        """Return the call of loops that makes the first argument of a call of loops, and of nothing else."""
        if not is_call_tir(call) or not call.args[1].fields or len(call.args) > 2:
            return None
        value = call.args[1].fields[0]
        if not isinstance(value, relax.DataflowVar) or len(self._readers.get(value, ())) != 1:
            return None
        maker = self._values.get(value)
        uses = sum(each.same_as(value) for each in call.args[1].fields)
        return maker if is_call_tir(maker) and uses == 1 else None

    def _function_of(self, *calls: Any) -> Any:
        """Return the name of the loops for a product, a softmax and a product; None if these stay."""
        key = tuple(call.args[0] for call in calls)
        if key not in self._made:
            made = None
            with unless_unlike(key[-1].name_hint):
                first, softmax, second = (self._module[variable] for variable in key)
                if not is_softmax(softmax):
                    raise Unlike
                attention = _attention_of((first, second), self._processor)
                made = self.builder_.add_func(_write(attention), f"{key[-1].name_hint}_attention")
            self._made[key] = made
        return self._made[key]


def _attention_of(functions: tuple[Any, Any], processor: Processor) -> _Attention:
    """Return the attention of two products, of which the second reads the softmax of the first's rows as rows.

    Raises:
        Unlike: They are others.
    """
    if any(function.attrs and function.attrs.get("tirx.is_scheduled") for function in functions):
        raise Unlike
    scored, mixing = map(read_nest, functions)
    of_scores, of_mixed = (function.params for function in functions)
    scores = matrix_product_of(scored, functions[0], processor)
    mixed = matrix_product_of(mixing, functions[1], processor)
    if not all(isinstance(n, int) for n in (*scores.lengths, scores.depth, *mixed.lengths, mixed.depth)):
        raise Unlike
    if [*mixed.lengths[:-1], mixed.depth] != scores.lengths or lengths_of(of_mixed[0]) != scores.lengths:
        raise Unlike
    if scores.lengths != lengths_of(of_scores[-1]):
        raise Unlike
    places = load_of(mixing.anchor.body.value, of_mixed[0]).indices
    *outer, _, within = (each.var for each in mixing.anchor.iter_vars)
    for place, variable, length in zip(places, [*outer, within], scores.lengths, strict=True):
        if not place.same_as(variable) and length != 1:
            raise Unlike
    after = [load for block in mixing.followers for load in all_of(block.body.value, ir.TensorLoad)]
    if any(load.source.same_as(of_mixed[0]) for load in after):
        raise Unlike
    lower = min(scores.tile, mixed.tile, key=lambda tile: tile.rows).for_rows(scores.lengths[-2])
    scores, mixed = (replace(each, tile=replace(each.tile, rows=lower.rows)) for each in (scores, mixed))
    rows = _task_rows(scores, lower.rows, processor.threads)
    return _Attention(scores, scored, mixed, mixing, functions, rows, processor.lanes)


def _task_rows(scores: MatrixProduct, tile_rows: int, threads: int) -> int:
    """Return the rows of one task: whole tiles, as many as a cache holds scores of, and fewer if threads would have none."""
    *batch, rows, columns = map(int, scores.lengths)
    tiles = math.ceil(rows / tile_rows)
    in_cache = max(1, _SCORES_BYTES // (4 * columns * tile_rows))
    share = max(1, math.prod(batch) * tiles // threads)
    tasks = math.ceil(tiles / min(in_cache, share))
    return tile_rows * math.ceil(tiles / tasks)


def _write(attention: _Attention) -> Any:
    """Return a scheduled function of an attention."""
    first, second = attention.functions
    *given, _ = first.params
    _, *more, output = second.params
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name("attention")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for i, each in enumerate((*given, *more)):
            build.arg(f"input_{i}", each)
        build.arg("output", output)
        _Loops(attention, output).write()
    return builder.get()


class _Loops:
    """Writes the loops of one attention into the function that is being built."""

    def __init__(self, attention: _Attention, output: Any) -> None:
        self._attention, self._output = attention, output
        first, second = attention.functions
        self._scores = MatrixLoops(attention.scores, attention.scored, first)
        self._mixed = MatrixLoops(attention.mixed, attention.mixing, second)

    def write(self) -> None:
        """Write all loops."""
        attention = self._attention
        *batch, rows, _ = attention.scores.lengths
        blocks = math.ceil(rows / attention.rows)
        work = math.prod(attention.scores.lengths) * (attention.scores.depth + attention.mixed.lengths[-1])
        tasks = math.prod(batch) * blocks
        with (build.parallel if work >= PARALLEL_WORK and tasks > 1 else build.serial)(i64(tasks)) as task:
            matrix = place_of(task // blocks, batch) if batch else []
            first = build.bind(task % blocks * attention.rows)
            count = build.bind(tirx.min(i64(attention.rows), rows - first))
            kept = build.alloc_buffer((i64(attention.rows * attention.stride),), "float32", layout=None)
            totals = build.alloc_buffer((i64(attention.rows),), "float32", layout=None)
            self._score(kept, matrix, first, count)
            with build.serial(count) as row:
                build.buffer_store(totals, self._exponentials(kept, build.bind(row * attention.stride)), [row])
            self._mix(kept, totals, matrix, first, count)

    def _score(self, kept: Any, matrix: Sequence[Any], first: Any, count: Any) -> None:
        """Keep the scores of some rows, and minus infinity behind each row, which has no weight."""
        attention, tile = self._attention, self._attention.scores.tile
        *_, rows, columns = attention.scores.lengths
        if columns % attention.lanes:
            with build.serial(count) as row, build.vectorized(i64(attention.lanes)) as lane:
                last = (row + 1) * attention.stride - attention.lanes
                build.buffer_store(kept, f32(-math.inf), [last + lane])
        with _tiles(tile, columns, count) as (row, column):
            sums = self._scores.sums(matrix, first + row, column)
            with _elements(tile, i64(tile.rows)) as (i, at):
                where = [*matrix, tirx.min(first + row + i, i64(rows - 1)), column + at]
                score = attention.scored.result(sums[i, at], where)
                build.buffer_store(kept, score, [(row + i) * attention.stride + column + at])

    def _exponentials(self, kept: Any, begin: Any) -> Any:
        """Replace a row of scores by their exponentials, and return their sum."""
        lanes = self._attention.lanes

        def reduced(start: float, step: Callable[[Any, Any], Any], of: Callable[[Any], Any]) -> Any:
            parts = build.alloc_buffer((i64(lanes),), "float32", layout=None)
            with build.vectorized(i64(lanes)) as lane:
                build.buffer_store(parts, f32(start), [lane])
            with (
                build.serial(i64(self._attention.stride // lanes)) as vector,
                build.vectorized(i64(lanes)) as lane,
            ):
                build.buffer_store(parts, step(parts[lane], of(begin + vector * lanes + lane)), [lane])
            half = lanes // 2
            while half:
                with build.vectorized(i64(half)) as lane:
                    build.buffer_store(parts, step(parts[lane], parts[lane + half]), [lane])
                half //= 2
            return build.bind(parts[0])

        def kept_exponential(i: Any) -> Any:
            build.buffer_store(kept, tirx.exp(kept[i] - largest), [i])
            return kept[i]

        largest = reduced(-math.inf, tirx.max, lambda i: kept[i])
        return reduced(0.0, lambda a, b: a + b, kept_exponential)

    def _mix(self, kept: Any, totals: Any, matrix: Sequence[Any], first: Any, count: Any) -> None:
        """Store sums of values, weighted by exponentials, over the sums of these."""
        attention, tile = self._attention, self._attention.mixed.tile
        *_, columns = attention.mixed.lengths

        def weight(row: Any, k: Any, _: Any) -> Any:
            return kept[(row - first) * attention.stride + k]

        with _tiles(tile, columns, count) as (row, column):
            sums = self._mixed.sums(matrix, first + row, column, weight)
            with _elements(tile, tirx.min(i64(tile.rows), count - row)) as (i, at):
                where = [*matrix, first + row + i, column + at]
                attention.mixing.finish(self._output, sums[i, at] / totals[row + i], where)


@contextlib.contextmanager
def _tiles(tile: Tile, columns: int, count: Any) -> Iterator[tuple[Any, Any]]:
    """Loop over tiles of columns and rows. Yield the first row and column; the last tile ends with the last column."""
    with build.serial(i64(math.ceil(columns / tile.panel))) as panel:
        column = build.bind(tirx.min(panel * tile.panel, i64(columns - tile.panel)))
        with build.serial(ceil_div(count, tile.rows)) as group:
            yield build.bind(group * tile.rows), column


@contextlib.contextmanager
def _elements(tile: Tile, rows: Any) -> Iterator[tuple[Any, Any]]:
    """Loop over the elements of some rows of a tile, by vectors. Yield the row and the column in the tile."""
    with (
        build.serial(rows) as i,
        build.serial(i64(tile.vectors)) as vector,
        build.vectorized(i64(tile.lanes)) as lane,
    ):
        yield i, vector * tile.lanes + lane
