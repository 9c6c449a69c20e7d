"""Softmax along rows whose length is free, or no number of whole vectors.

TVM adds up such a row one element after the other. Of 18,710 numbers the fourth digit is wrong. These loops have as many sums as
a vector has lanes, and one for the elements that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.buffer import is_buffer_var
from tvm.tirx.script.builder import ir as build

from collage.toolchains.tvm.lengths import f32, i64, lengths_of
from collage.toolchains.tvm.tile_schedules import LANES

__all__ = ["is_in_parts", "is_softmax", "softmax"]

_FEW = 64
"""Elements that may be added one after the other: of rows that are known to be so short."""


def is_in_parts(x: Any) -> bool:
    """Return True of a tensor in single precision whose rows are long, or of free length, and fill no vectors."""
    length = x.ty.shape.values[-1]
    is_known = isinstance(length, tirx.IntImm)
    return str(x.ty.dtype) == "float32" and not (is_known and (int(length) <= _FEW or int(length) % LANES == 0))


def is_softmax(function: Any) -> bool:
    """Return True for loops of the softmax along rows of known lengths in single precision: these, or TVM's."""
    if len(function.params) != 2 or not all(map(is_buffer_var, function.params)):
        return False
    lengths = lengths_of(function.params[0])
    if not lengths or not all(isinstance(n, int) for n in lengths):
        return False
    data = te.placeholder([i64(n) for n in lengths], "float32")
    plain = te.create_prim_func([data, topi.nn.softmax(data, axis=-1)], "int64")
    own = _loops([i64(n) for n in lengths], "softmax", False)
    found, *known = (tirx.PrimFunc(each.params, each.body) for each in (function, plain, own))
    return any(tvm_ffi.structural_equal(found, each) for each in known)


def softmax(bb: Any, x: Any, is_log: bool) -> Any:
    """Return the softmax of the rows of a tensor, or its logarithm.

    Args:
        bb: Relax's builder.
        x: A tensor of known rank.
        is_log: True for the logarithm.
    """
    name = "log_softmax" if is_log else "softmax"
    lengths = [n if isinstance(n, tirx.IntImm) else tirx.Var(f"n{i}", "int64") for i, n in enumerate(x.ty.shape.values)]
    return relax.call_tir(bb.add_func(_loops(lengths, name, is_log), name), [x], x.ty)


def _loops(lengths: list[Any], name: str, is_log: bool) -> Any:
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name(name)
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        data = build.arg("data", build.buffer(lengths, "float32", layout=None))
        output = build.arg("output", build.buffer(lengths, "float32", layout=None))
        length, count = lengths[-1], math.prod(lengths[:-1], start=i64(1))
        with build.sblock("root"):  # Passes that come before those of schedules take functions for blocks.
            x, y = (build.decl_buffer((count * length,), "float32", data=z.data, layout=None) for z in (data, output))
            with build.parallel(count) as row:
                _write_row(x, y, build.bind(row * length), length, is_log)
    return builder.get()


def _write_row(x: Any, y: Any, first: Any, length: Any, is_log: bool) -> None:
    def along(do: Callable[[Any, Any], None]) -> None:
        """Call with places in the row, and of sums: all vectors, and then the elements that are left."""
        with build.serial(length // LANES) as vector, build.vectorized(i64(LANES)) as lane:
            do(first + vector * LANES + lane, lane)
        with build.serial(length % LANES) as i:
            do(first + length // LANES * LANES + i, i64(0))

    def reduced(start: float, step: Callable[[Any, Any], Any], of: Callable[[Any], Any]) -> Any:
        parts = build.alloc_buffer((i64(LANES),), "float32", layout=None)
        whole = build.alloc_buffer((i64(1),), "float32", layout=None)
        with build.vectorized(i64(LANES)) as lane:
            build.buffer_store(parts, f32(start), [lane])
        along(lambda i, part: build.buffer_store(parts, step(parts[part], of(i)), [part]))
        build.buffer_store(whole, parts[0], [0])
        with build.serial(i64(LANES - 1)) as i:
            build.buffer_store(whole, step(whole[0], parts[i + 1]), [0])
        return build.bind(whole[0])

    largest = reduced(-math.inf, tirx.max, lambda i: x[i])
    if is_log:
        total = reduced(0.0, lambda a, b: a + b, lambda i: tirx.exp(x[i] - largest))
        logarithm = build.bind(tirx.log(total))
        along(lambda i, _: build.buffer_store(y, x[i] - largest - logarithm, [i]))
    else:
        along(lambda i, _: build.buffer_store(y, tirx.exp(x[i] - largest), [i]))
        total = reduced(0.0, lambda a, b: a + b, lambda i: y[i])
        along(lambda i, _: build.buffer_store(y, y[i] / total, [i]))
