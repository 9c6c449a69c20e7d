"""TVM's default pipeline for CPUs, with schedules that use vectors and threads.

TVM schedules nothing by itself on CPUs: untuned, its loops are scalar and on one thread. The rules here are what a
first hand-written schedule would be; tuning starts from the same loops and finds better ones.
"""

from __future__ import annotations

from typing import Any

__all__ = ["pipeline"]


def pipeline(target: Any) -> Any:
    """The passes from imported Relax to code, for ``relax_pipeline`` of ``tvm.compile``."""
    import tvm
    from tvm import relax
    from tvm.relax.backend import cpu_generic

    return tvm.transform.Sequential(
        [
            *cpu_generic.library_dispatch_passes(target),
            relax.transform.DecomposeOpsForInference(),
            *cpu_generic.legalize_passes(target),
            *cpu_generic.pipeline.dataflow_lower_passes(target),
            *cpu_generic.finalize_passes(target),
        ]
    )
