"""An attachment for Netron: times and targets of the calls of kernels, shown beside the partitioned model."""

from __future__ import annotations

import json
from typing import Any

from collage.page._contents import KernelView, PageContents
from collage.page._markup import clean
from collage.page._picture import told_operators
from collage.page._words import percent
from collage.report import short_name

__all__ = ["as_netron_attachment"]


def as_netron_attachment(contents: PageContents) -> str:
    """Return the attachment as JSON, in the form that Netron reads: an entry for each fact of a node, by the node's name."""
    metadata, metrics = [], []
    for kernel in contents.kernels:
        metadata += [_entry(kernel, name, text) for name, text in _texts(contents, kernel).items()]
        metrics += [_entry(kernel, name, number) for name, number in _numbers(kernel).items()]
    report = contents.report
    returned = report.returned
    time = None if returned is None else returned.measured_us
    whole: list[tuple[str, Any]] = [] if time is None else [("time of a run in ms", round(time.median / 1e3, 6))]
    whole += [(f"times as fast as {short_name(gain.row)}", round(gain.ratio.value, 4)) for gain in report.gains]
    metrics += [{"kind": "model", "target": "", "name": name, "value": value} for name, value in whole]
    found = {"signature": "netron:attachment", "metadata": metadata, "metrics": metrics}
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _texts(contents: PageContents, kernel: KernelView) -> dict[str, str]:
    facts = {
        "kernel": f"{kernel.number} of {len(contents.kernels)}",
        "target": kernel.target,
        "operators": told_operators(kernel, 8),
        "proposed by": kernel.rule,
        "runs in": kernel.place or "",
    }
    return {name: clean(text) for name, text in facts.items() if text}


def _numbers(kernel: KernelView) -> dict[str, float | int | str]:
    numbers: dict[str, float | int | str] = {"operators": len(kernel.operators)}
    if kernel.time_us is not None:
        numbers["time within the run in ms"] = round(kernel.time_us / 1e3, 6)
    if kernel.share is not None:
        numbers["share of the time"] = percent(kernel.share)
    return numbers


def _entry(kernel: KernelView, name: str, value: float | int | str) -> dict[str, Any]:
    return {"kind": "node", "target": kernel.name, "name": name, "value": value}
