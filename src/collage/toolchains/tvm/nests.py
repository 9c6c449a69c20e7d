"""Loops of a sum of products and the elementwise operators after it, as TVM makes them: what rewrites them has to know them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.tirx.buffer import is_buffer_var
from tvm.tirx.script.builder import ir as build

from collage.toolchains.sdk.model_files import one_line
from collage.toolchains.tvm.processor import Processor, processor_of
from collage.toolchains.tvm.weight_layout import Calls, Packer, call_sites, is_weight

__all__ = [
    "Epilogue",
    "Nest",
    "Unlike",
    "all_of",
    "margins_of",
    "read_nest",
    "rewrite_nests",
    "stored",
    "unless_unlike",
]

_logger = logging.getLogger(__name__)

_OPT_LEVEL = 3

Epilogue = Callable[[Any, Any, Sequence[Any]], None]
"""Store in an output what operators after a sum make of the sum at a place: see ``Nest.finish``."""
Rewrite = Callable[["Nest", Any, Processor], tuple[Any, Mapping[int, Packer]]]
"""Make other loops of a nest and its function, and the functions that convert weights for them, by position."""


def rewrite_nests(target: Any, suffix: str, rewrite: Rewrite, *, of_weights: bool = True) -> Any:
    """Return a pass that gives nests loops of their own, on a processor with wide vectors.

    It runs at TVM's highest optimisation level only.

    Args:
        target: TVM's target.
        suffix: The ending of the names of functions that change.
        rewrite: Makes the loops, and raises ``Unlike`` if the old ones stay.
        of_weights: True for nests whose second operand is a constant weight in all calls, False if it is in none.
    """

    def rewritten(module: Any, _: Any) -> Any:
        processor = processor_of(target)
        if processor is None:
            return module
        sites = call_sites(module)
        calls = Calls(module)
        for variable, function in module.functions_items():
            if not isinstance(function, tirx.PrimFunc) or not _is_open(function, sites.get(variable, ()), of_weights):
                continue
            with unless_unlike(variable.name_hint):
                calls.note(variable, suffix, rewrite(read_nest(function), function, processor))
        return calls.rewritten(module)

    return tvm.transform.module_pass(rewritten, opt_level=_OPT_LEVEL, name=f"use_{suffix}")


def _is_open(function: Any, sites: Sequence[Any], of_weights: bool) -> bool:
    """Return True if a function has no schedule, and all its calls have such a second operand."""
    if function.attrs and function.attrs.get("tirx.is_scheduled"):
        return False
    if not all(map(is_buffer_var, function.params[:2])):
        return False  # Lengths that no tensor's shape tells are parameters too.
    return bool(sites) and all(len(call.args[1]) > 1 and is_weight(call.args[1][1]) == of_weights for call in sites)


class Unlike(Exception):
    """Loops are not those that are looked for."""


@contextlib.contextmanager
def unless_unlike(name: str) -> Iterator[None]:
    """Rewrite a function of this name, which stays as it is if it is another one, or if the rewriting fails."""
    try:
        yield
    except Unlike:
        pass
    except Exception as error:
        # Without it, no function of the kernel would have loops of its own.
        _logger.warning("%s keeps its loops: %s: %s", name, type(error).__name__, one_line(error))


@dataclass(frozen=True, slots=True)
class Nest:
    """A sum of products and the elementwise blocks after it.

    Attributes:
        padding: The block before it, which pads its input; None if there is none.
        anchor: The block of the sum.
        followers: Blocks that follow, in order.
    """

    padding: Any
    anchor: Any
    followers: tuple[Any, ...]

    def finish(self, output: Any, value: Any, where: Sequence[Any]) -> None:
        """Store what the blocks after the sum compute from one of its outputs.

        Args:
            output: The function's output.
            value: An output of the sum.
            where: Its place.
        """
        build.buffer_store(output, self.result(value, where), where)

    def result(self, value: Any, where: Sequence[Any]) -> Any:
        """Return what the blocks after the sum compute from one of its outputs, bound to a variable.

        Args:
            value: An output of the sum.
            where: Its place.
        """
        known = [(self.anchor.body.buffer, build.bind(value))]
        for block in self.followers:
            known.append((block.body.buffer, build.bind(self._computed(block, known, where))))
        return known[-1][1]

    def _computed(self, block: Any, known: Sequence[tuple[Any, Any]], where: Sequence[Any]) -> Any:
        """Return what a block computes at a place from earlier results, of which each is known."""
        places = [(each.var, place) for each, place in zip(block.iter_vars, where, strict=True)]

        def loaded(load: Any) -> Any:
            return next((found for buffer, found in known if buffer.same_as(load.source)), load)

        def placed(variable: Any) -> Any:
            return next((place for own, place in places if own.same_as(variable)), variable)

        return tvm_ffi.structural_map(block.body.value, [(ir.TensorLoad, loaded), (ir.Var, placed)])


def read_nest(function: Any) -> Nest:
    """Read the blocks of a function.

    Raises:
        Unlike: They are not a sum of products, maybe padded before, and elementwise operators after it.
    """
    blocks = list(_blocks_of(function.body))
    padding = blocks.pop(0) if len(blocks) > 1 and blocks[0].init is None else None
    anchor, *followers = blocks
    if not isinstance(anchor.body, tirx.BufferStore) or anchor.init is None:
        raise Unlike
    last = made = anchor.body.buffer
    for block in followers:
        last = stored(block).buffer
        if not _is_element_wise(block, made, [made, *(each.body.buffer for each in followers)]):
            raise Unlike
    if not last.same_as(function.params[-1]):
        raise Unlike
    return Nest(padding, anchor, tuple(followers))


def all_of(value: Any, kind: Any) -> list[Any]:
    """Return all parts of an expression of one kind."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (kind, found.append))
    return found


def _blocks_of(body: Any) -> Iterator[Any]:
    """Yield the blocks of a function whose loops follow each other.

    Raises:
        Unlike: There is something else in it.
    """
    if not isinstance(body, s_tir.SBlockRealize):
        raise Unlike
    nests = body.block.body
    for nest in nests.seq if isinstance(nests, tirx.SeqStmt) else [nests]:
        while isinstance(nest, tirx.For):
            nest = nest.body
        if not isinstance(nest, s_tir.SBlockRealize):
            raise Unlike
        yield nest.block


def stored(block: Any) -> Any:
    """Return the statement of a block that is nothing but a store.

    Raises:
        Unlike: It is something else.
    """
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        raise Unlike
    return block.body


def _is_element_wise(block: Any, made: Any, own: Sequence[Any]) -> bool:
    """Return True if a block is elementwise: it computes each element from the same element of earlier results."""
    store = stored(block)
    variables = [each.var for each in block.iter_vars]
    loads: list[Any] = []
    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append))
    places = [store.indices, *(load.indices for load in loads if any(load.source.same_as(each) for each in own))]
    same = all(
        len(place) == len(variables) and all(map(lambda a, b: a.same_as(b), place, variables)) for place in places
    )
    return same and str(store.buffer.dtype) == "float32" and tvm_ffi.structural_equal(store.buffer.shape, made.shape)


def margins_of(block: Any, data: Any) -> tuple[int, int]:
    """Return how many rows and columns of zeros a block adds before those of its input, which is an image with channels last.

    Raises:
        Unlike: It does something else.
    """
    value = stored(block).value
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, loads.append))
    if len(loads) != 1 or not loads[0].source.same_as(data) or not _is_zero_elsewhere(value):
        raise Unlike
    analyzer = sym.Analyzer()
    margins = [
        analyzer.simplify(each.var - index) for each, index in zip(block.iter_vars, loads[0].indices, strict=True)
    ]
    if not all(isinstance(margin, tirx.IntImm) for margin in margins):
        raise Unlike
    first, top, left, last = map(int, margins)
    if first or last or min(top, left) < 0:
        raise Unlike
    return top, left


def _is_zero_elsewhere(value: Any) -> bool:
    """Return True of a load, and of a load where a condition holds, and 0 where it does not."""
    if isinstance(value, ir.TensorLoad):
        return True
    is_choice = isinstance(value, ir.Call) and isinstance(value.op, ir.Op) and value.op.name == "prim.if_then_else"
    return is_choice and isinstance(value.args[2], tirx.FloatImm) and value.args[2].value == 0
