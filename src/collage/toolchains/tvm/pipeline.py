"""TVM's default pipeline for CPUs, with a layout and schedules that use vectors and threads.

TVM schedules nothing by itself on CPUs: untuned, its loops are scalar and on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collage.toolchains.tvm.profiler import Call

__all__ = ["front", "loops_pipeline", "named_pipeline", "noting_lent_outputs", "pipeline"]


def front(target: Any, *, channels_last: bool, own_loops: bool = True) -> Any:
    """The passes from imported Relax to fused loops without a schedule, which tuning starts from.

    Args:
        target: TVM's target.
        channels_last: True to compute convolutions in [N, H, W, C], where output channels fill vectors at any size of
            image; the layouts of inputs and outputs stay.
        own_loops: True for loops of our own where these are faster, such as those of Winograd's algorithm and of attention.
    """
    import tvm
    from tvm import relax
    from tvm.relax.backend import cpu_generic

    from collage.toolchains.tvm.attention import turn_products, use_attention
    from collage.toolchains.tvm.matrix_products import use_matrix_products
    from collage.toolchains.tvm.narrow_products import use_narrow_products
    from collage.toolchains.tvm.products import use_products
    from collage.toolchains.tvm.profiler import fuse_operators
    from collage.toolchains.tvm.weight_layout import pack_weights, turn_weights
    from collage.toolchains.tvm.winograd import use_winograd

    # A value that several convolutions read is turned once.
    layout = [_channels_last(), relax.transform.EliminateCommonSubexpr()]
    rewrites = [
        use_attention(target),
        use_winograd(target),
        use_products(target),
        use_narrow_products(target),
        use_matrix_products(target),
    ]
    return tvm.transform.Sequential(
        [
            *cpu_generic.library_dispatch_passes(target),
            *(layout if channels_last else []),
            relax.transform.DecomposeOpsForInference(),
            turn_products(),
            turn_weights(),
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            fuse_operators(),
            relax.transform.FuseTIR(),
            *(rewrites if own_loops else []),
            pack_weights(),
        ]
    )


def _channels_last() -> Any:
    """A pass that computes convolutions in [N, H, W, C]. It leaves modules without any, of which TVM's own pass refuses some."""
    import tvm
    from tvm import relax

    from collage.toolchains.tvm.weight_layout import is_call_of

    convert = relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})

    def turn(module: Any, _: Any) -> Any:
        found: list[Any] = []
        for function in module.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(
                    function, lambda call: found.append(is_call_of(call, "relax.nn.conv2d"))
                )
        return convert(module) if any(found) else module

    return tvm.transform.module_pass(turn, opt_level=0, name="channels_last")


def pipeline(
    target: Any,
    lent: list[int],
    calls: list[Call],
    weights: list[np.ndarray[Any, Any]] | None = None,
    *,
    channels_last: bool,
    own_loops: bool = True,
    tuned: Sequence[Any] = (),
) -> Any:
    """The passes from imported Relax to code, for ``relax_pipeline`` of ``tvm.compile``.

    Args:
        target: TVM's target.
        lent: See ``noting_lent_outputs``.
        calls: See ``noting_calls``.
        weights: See ``lifting_weights``; None leaves them in the library.
        channels_last: See ``front``.
        own_loops: See ``front``.
        tuned: Passes that schedule tuned functions; other functions get the default schedule.
    """
    import tvm
    from tvm.relax.backend import cpu_generic
    from tvm.s_tir import dlight

    from collage.toolchains.tvm.channel_convolutions import Channels
    from collage.toolchains.tvm.loop_objects import naming_nests
    from collage.toolchains.tvm.profiler import noting_calls
    from collage.toolchains.tvm.row_schedules import Rows
    from collage.toolchains.tvm.tile_schedules import Cautious, Reductions, RegisterTiles
    from collage.toolchains.tvm.weight_parameters import lifting_weights

    return tvm.transform.Sequential(
        [
            front(target, channels_last=channels_last, own_loops=own_loops),
            *tuned,
            dlight.ApplyDefaultSchedule(*map(Cautious, (Channels(), Rows(), RegisterTiles(), Reductions()))),
            tvm.relax.transform.RewriteDataflowReshape(),  # What becomes a view is not called.
            naming_nests(),
            noting_calls(calls),
            *([] if weights is None else [lifting_weights(weights)]),
            *cpu_generic.pipeline.dataflow_lower_passes(target),
            noting_lent_outputs(lent),
            *_finalize_passes(target),
        ]
    )


def _finalize_passes(target: Any) -> list[Any]:
    """Return TVM's last passes, and one that shares tensors as soon as their memory is planned."""
    from tvm.relax.backend import cpu_generic

    from collage.toolchains.tvm.shared_tensors import sharing_tensors

    passes = list(cpu_generic.finalize_passes(target))
    released = next(place for place, each in enumerate(passes) if each.info.name == "KillAfterLastUse")
    return [*passes[:released], sharing_tensors(), *passes[released:]]


def loops_pipeline() -> str:
    """Return the name of the pipeline from loops to code: TVM's own, with elementary functions written out at its end."""
    from collage.toolchains.tvm.math_functions import as_arithmetic, as_functions_of_vectors

    return named_pipeline("collage", first=[as_functions_of_vectors()], host_first=[as_arithmetic()])


def named_pipeline(
    name: str, *, first: Sequence[Any] = (), host_first: Sequence[Any] = (), device_last: Sequence[Any] = ()
) -> str:
    """Register TVM's own pipeline from loops to code with further passes. Return its name, since TVM takes names only.

    Args:
        name: The name.
        first: Passes before all others.
        host_first: Passes before the final ones of functions for the processor.
        device_last: Passes after the final ones of functions for other devices.
    """
    import tvm

    def made() -> tuple[Any, Any, Any]:
        loops, host, device = tvm.tirx.get_tir_pipeline("default")
        in_order = tvm.transform.Sequential
        return (
            in_order([*first, loops]),
            lambda: in_order([*host_first, host()]),
            lambda: in_order([device(), *device_last]),
        )

    tvm.tirx.compilation_pipeline.register_tir_pipeline(name, made)
    return name


def noting_lent_outputs(lent: list[int]) -> Any:
    """A pass that runs after memory planning, changes nothing, and finds outputs that share memory.

    TVM returns an input or a constant if nothing is left to compute (a sum with 0, a slice of everything), and may
    return one tensor twice. This depends on TVM's own simplifications, so it is read from their result.

    Args:
        lent: Becomes the positions of these outputs.
    """
    import tvm

    def note(module: Any, _: Any) -> Any:
        lent[:] = _lent_outputs(module["main"])
        return module

    return tvm.transform.module_pass(note, opt_level=0)


def _lent_outputs(function: Any) -> list[int]:
    from tvm import relax

    from collage.toolchains.tvm.weight_layout import is_call_of

    body = function.body
    values = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
    made, _ = _origin(body.body, values)
    lent, taken = [], set()
    for i, output in enumerate(made.fields if isinstance(made, relax.Tuple) else [body.body]):
        made, place = _origin(output, values)
        if not is_call_of(made, "relax.builtin.alloc_tensor") or place in taken:
            lent.append(i)
        taken.add(place)
    return lent


def _origin(value: Any, values: Mapping[Any, Any]) -> tuple[Any, Any]:
    """The expression in whose memory a value lies, and the variable that it was bound to first; None of either."""
    from tvm import relax

    from collage.toolchains.tvm.weight_layout import is_call_of

    place = None
    while value is not None:
        if isinstance(value, relax.Var):
            place, value = value, values.get(value)
        elif isinstance(value, relax.TupleGetItem):
            parts, _ = _origin(value.tuple_value, values)
            value = parts.fields[value.index] if isinstance(parts, relax.Tuple) else None
        elif is_call_of(value, "relax.reshape"):  # a view by now
            value = value.args[0]
        else:
            break
    return value, place
