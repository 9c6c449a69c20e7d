"""Metadata of kernels in the partitioned model, for viewers such as Netron."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.graph import kernels_of, operators_of

__all__ = ["write_metadata"]


def write_metadata(file: Path, times_us: Mapping[str, float | None]) -> None:
    """Write target, time, share and operators into the nodes that call kernels.

    Args:
        file: The partitioned model, which is rewritten.
        times_us: Time of each kernel within the run in µs, by name; None if it was not measured.
    """
    model = ir.load(file)
    calls = kernels_of(model)
    times = {str(call.node.name): times_us.get(str(call.node.name)) for call in calls}
    total = sum(time for time in times.values() if time is not None)
    is_known = total > 0 and None not in times.values()
    for number, call in enumerate(calls, 1):
        operators = Counter(node.op_type for node in operators_of(model, call.function))
        told = ", ".join(f"{count} {op_type}" for op_type, count in operators.most_common())
        time = times[str(call.node.name)]
        facts: dict[str, Any] = {
            "target": call.metadata.get("target", ""),
            "kernel": f"{number} of {len(calls)}",
            "operators": told,
            **({} if time is None else {"time_us": f"{time:.6g}"}),
            **({"share": f"{time / total:.4f}"} if is_known and time is not None else {}),
        }
        call.node.metadata_props.update(facts)
        noun = "operator" if operators.total() == 1 else "operators"
        took = "" if time is None else f", {time * 1e-3:.6g} ms of the run"
        call.node.doc_string = f"{operators.total()} {noun} on {facts['target']}{took}: {told}"
    ir.save(model, file)
