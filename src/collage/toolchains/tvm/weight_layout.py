"""The layout of weights: those of one tile of output columns one after the other.

A tile reads a few columns of each row of a weight. Rows lie as far apart as the weight has columns. If that is a power of two,
the pieces compete for few lines of the caches, and each is in a page of its own: a convolution with 512 output channels took 12
times as long as one with 576. Packed by tiles, the same numbers are one stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, s_tir, tirx

from collage.toolchains.tvm.tile_schedules import TILE_COLUMNS, divisor

__all__ = [
    "Calls",
    "Packer",
    "bound_call",
    "call_sites",
    "is_call_of",
    "is_call_tir",
    "is_weight",
    "pack_weights",
    "turn_weights",
]

Packer = Callable[[np.ndarray], np.ndarray]
"""Convert a weight to the layout that other loops read."""

_LEAST_BYTES = 1 << 15
"""Weights that a first-level cache holds need no packing."""

_NUMPY_TYPES = frozenset(("float16", "float32", "float64", "int8", "uint8", "int32", "int64"))


def pack_weights() -> Any:
    """Return a pass that packs constants which loops reduce column by column, and rewrites the loops to read them so."""

    def pack(module: Any, _: Any) -> Any:
        sites = call_sites(module)
        calls = Calls(module)
        for variable, function in module.functions_items():
            if not isinstance(function, tirx.PrimFunc) or variable not in sites:
                continue
            if not (function.attrs and function.attrs.get("tirx.is_scheduled")):
                calls.note(variable, "packed", _packed(function, sites[variable]))
        return calls.rewritten(module)

    return tvm.transform.module_pass(pack, opt_level=0, name="pack_weights")


def turn_weights() -> Any:
    """Return a pass that permutes and reshapes constants.

    TVM's own pass compiles a function for each: 15 of the 23 s that ResNet-50 took to build.
    """

    def turn(module: Any, _: Any) -> Any:
        turned = _Turned(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                turned.builder_.update_func(variable, turned.visit_expr(function))
        return turned.builder_.get()

    return tvm.transform.module_pass(turn, opt_level=0, name="turn_weights")


@relax.expr_functor.mutator
class _Turned(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces permuted and reshaped constants, of which results of the function stay, by their values."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._constants: dict[Any, Any] = {}

    def visit_dataflow_var_(self, variable: Any) -> Any:
        """Return the constant that a variable stands for, if it does."""
        made = self._constants.get(variable)
        return super().visit_dataflow_var_(variable) if made is None else made

    def visit_var_binding_(self, binding: Any) -> None:
        """Note a constant, or bind the value."""
        made = None
        if isinstance(binding.var, relax.DataflowVar) and _turns(binding.value):
            made = _turned(self.visit_expr(binding.value))
        if made is None:
            super().visit_var_binding_(binding)
        else:
            self._constants[binding.var] = made


def _turns(value: Any) -> bool:
    """Return True for a call that permutes, or reshapes to a shape that is stated."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return False
    is_reshape = value.op.name == "relax.reshape" and isinstance(value.args[1], relax.ShapeExpr)
    return is_reshape or value.op.name == "relax.permute_dims"


def _turned(call: Any) -> Any:
    """Return the constant that a call of these stands for; None if it reads no constant, or one of another type."""
    constant = call.args[0]
    if not isinstance(constant, tvm.ir.GenericConst) or str(constant.ty.dtype) not in _NUMPY_TYPES:
        return None
    given = constant.value.numpy()
    if call.op.name == "relax.permute_dims":
        made = np.transpose(given, None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes])
    else:
        made = given.reshape([int(length) for length in call.args[1].values])
    return relax.const(np.ascontiguousarray(made), str(constant.ty.dtype))


def is_call_tir(call: Any) -> bool:
    """Return True for a call of loops."""
    return is_call_of(call, "relax.call_tir") and isinstance(call.args[1], relax.Tuple)


def is_call_of(value: Any, operator: str) -> bool:
    """Return True for a call of an operator of this name."""
    return isinstance(value, relax.Call) and isinstance(value.op, ir.Op) and value.op.name == operator


def bound_call(bb: Any, value: Any, operator: str) -> Any | None:
    """Return the call of an operator of this name that a value is, or is bound to; None if it is something else."""
    if isinstance(value, relax.Var):
        value = bb.lookup_binding(value)
    return value if is_call_of(value, operator) else None


def call_sites(module: Any) -> dict[Any, list[Any]]:
    """Return the calls of each loop nest."""
    sites: dict[Any, list[Any]] = {}

    def note(call: Any) -> None:
        if is_call_tir(call):
            sites.setdefault(call.args[0], []).append(call)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, note)
    return sites


def _packed(function: Any, sites: Sequence[Any]) -> tuple[Any, Mapping[int, Packer]] | None:
    """Return loops that read packed weights, and the packing functions by position of the weight; None if nothing is packed."""
    packers: dict[int, Packer] = {}
    sch = s_tir.Schedule(function)
    for position, parameter in enumerate(function.params):
        given = [call.args[1][position] if position < len(call.args[1]) else None for call in sites]
        if not all(
            value is not None and is_weight(value) and value.value.numpy().nbytes >= _LEAST_BYTES for value in given
        ):
            continue
        columns = int(parameter.shape[-1])
        width = divisor(columns, TILE_COLUMNS)
        if width is None or width == columns:
            continue
        place = _only_reader(sch, parameter)
        if place is None:
            continue
        try:
            sch.transform_layout(*place, index_map=_by_tiles(width))
        except (s_tir.ScheduleError, tvm.error.InternalError, TypeError, ValueError):
            continue
        packers[position] = functools.partial(_tiles_of, width=width)
    return (sch.mod["main"].with_attrs(function.attrs), packers) if packers else None


def _by_tiles(width: int) -> Callable[..., list[Any]]:
    return lambda *index: [index[-1] // width, *index[:-1], index[-1] % width]


def is_weight(value: Any) -> bool:
    """Return True if a value is a constant tensor of floating-point numbers."""
    if not isinstance(value, tvm.ir.GenericConst) or len(value.ty.shape.values) < 2:
        return False
    return str(value.ty.dtype) in ("float16", "float32", "float64")


def _only_reader(sch: s_tir.Schedule, buffer: Any) -> tuple[Any, tuple[str, int]] | None:
    """Return the one block that reads a buffer, if it reduces, and its last dimension is a column of the block's result."""
    readers = []
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        node = sch.get(block)
        readers += [(block, node, i, region) for i, region in enumerate(node.reads) if region.source.same_as(buffer)]
    if len(readers) != 1:
        return None
    block, node, number, region = readers[0]
    column = region.region[-1].min
    is_column = any(each.var.same_as(column) and each.iter_type == tirx.IterVar.DataPar for each in node.iter_vars)
    reduces = any(each.iter_type == tirx.IterVar.CommReduce for each in node.iter_vars)
    return (block, ("read", number)) if is_column and reduces else None


@relax.expr_functor.mutator
class Calls(relax.PyExprMutator):  # type: ignore[misc]
    """Hands packed weights to loops that read them so."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._packers: dict[Any, tuple[Any, Mapping[int, Packer]]] = {}

    def note(self, variable: Any, suffix: str, packed: tuple[Any, Mapping[int, Packer]] | None) -> None:
        """Note the loops that take the place of others; None if they stay."""
        if packed is not None:
            function, packers = packed
            # Another name, since a name has the type of what it stands for.
            self._packers[variable] = self.builder_.add_func(function, f"{variable.name_hint}_{suffix}"), packers

    def rewritten(self, module: Any) -> Any:
        """Return the module with all calls rewritten, without the loops that nothing calls any more."""
        if not self._packers:
            return module
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(variable, self.visit_expr(function))
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        """Pack the weights of one call."""
        call = self.visit_expr_post_order(call)
        if not is_call_tir(call) or call.args[0] not in self._packers:
            return call
        loops, packers = self._packers[call.args[0]]
        given = list(call.args[1].fields)
        for position, pack in packers.items():
            packed = pack(given[position].value.numpy())
            given[position] = relax.const(packed, str(packed.dtype))
        return relax.Call(call.op, [loops, relax.Tuple(given), *call.args[2:]], call.attrs, call.ty_args)


def _tiles_of(numbers: np.ndarray, width: int) -> np.ndarray:
    tiles = numbers.reshape(*numbers.shape[:-1], -1, width)
    return np.ascontiguousarray(np.moveaxis(tiles, -2, 0))
