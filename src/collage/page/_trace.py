"""One run, kernel by kernel, as a trace that Perfetto and ``chrome://tracing`` open."""

from __future__ import annotations

import json
from typing import Any

from collage.page._contents import PageContents
from collage.page._markup import clean
from collage.page._picture import told_operators
from collage.report import short_name
from collage.runtime import Profile

__all__ = ["as_trace"]


def as_trace(contents: PageContents, profile: Profile) -> str:
    """Return the run of median length as JSON in Chrome's trace format, a row for each target.

    Args:
        contents: The contents of the artefact.
        profile: A profile of the same artefact.
    """
    targets = dict.fromkeys(kernel.target for kernel in contents.kernels)
    rows = {target: row for row, target in enumerate(targets, 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": short_name(target)}}
        for target, row in rows.items()
    ]
    events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": clean(contents.title)}})
    runs = sorted(
        profile.runs, key=lambda run: max(end for _, end in run) - min(start for start, _ in run) if run else 0
    )
    run = runs[len(runs) // 2] if runs else ()
    start = min((began for began, _ in run), default=0)
    for kernel, (began, end) in zip(contents.kernels, run, strict=True):
        facts: dict[str, Any] = {
            "target": kernel.target,
            "kernel": f"{kernel.number} of {len(contents.kernels)}",
            "operators": told_operators(kernel, 8),
            "reads": ", ".join(f"{clean(value.name)}: {value.type}" for value in kernel.reads),
            "makes": ", ".join(f"{clean(value.name)}: {value.type}" for value in kernel.makes),
        }
        if kernel.time_us is not None:
            facts["compiled_us"] = kernel.time_us
        event = {"ph": "X", "name": kernel.name, "cat": "kernel", "pid": 1, "tid": rows[kernel.target]}
        events.append({**event, "ts": (began - start) * 1e-3, "dur": (end - began) * 1e-3, "args": facts})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, allow_nan=False) + "\n"
