"""TVM's default pipeline for CPUs, with a layout and schedules that use vectors and threads.

TVM schedules nothing by itself on CPUs: untuned, its loops are scalar and on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["front", "pipeline"]


def front(target: Any, *, channels_last: bool) -> Any:
    """The passes from imported Relax to fused loops that are not scheduled yet: what tuning tunes.

    Args:
        target: TVM's target.
        channels_last: True to compute convolutions in [N, H, W, C], where output channels fill vectors at any size of
            image; the layouts of inputs and outputs stay.
    """
    import tvm
    from tvm import relax
    from tvm.relax.backend import cpu_generic

    layout = [relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})] if channels_last else []
    return tvm.transform.Sequential(
        [
            *cpu_generic.library_dispatch_passes(target),
            *layout,
            relax.transform.DecomposeOpsForInference(),
            *cpu_generic.legalize_passes(target),
        ]
    )


def pipeline(target: Any, *, channels_last: bool, tuned: Sequence[Any] = ()) -> Any:
    """The passes from imported Relax to code, for ``relax_pipeline`` of ``tvm.compile``.

    Args:
        target: TVM's target.
        channels_last: See ``front``.
        tuned: Passes that schedule what was tuned; whatever they leave gets the default.
    """
    import tvm
    from tvm.relax.backend import cpu_generic
    from tvm.s_tir import dlight

    from collage.toolchains._tvm_schedules import Cautious, RegisterTiles

    return tvm.transform.Sequential(
        [
            front(target, channels_last=channels_last),
            *tuned,
            dlight.ApplyDefaultSchedule(Cautious(RegisterTiles()), Cautious(dlight.cpu.Reduction())),
            *cpu_generic.pipeline.dataflow_lower_passes(target),
            *cpu_generic.finalize_passes(target),
        ]
    )
