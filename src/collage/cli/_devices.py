"""``collage inspect MODEL --devices``: where a plan of devices puts each operator, and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from collage.cli._console import print_json
from collage.cli._report import print_table
from collage.system.texts import counted, printable

__all__ = ["show_devices"]


def show_devices(path: Path, plan: Path, *, fixed: Mapping[str, int], json: bool) -> None:
    """Print the devices that a plan gives the operators of a model, the copies between them, and the reasons for both."""
    from collage.device import describe_plan, read_device_plan
    from collage.frontend import fix_lengths, read_model

    model = fix_lengths(read_model(path), fixed)
    found = describe_plan(model, read_device_plan(plan))
    if json:
        print_json({"schema": 1, "model": {"path": str(path), "nodes": len(model.graph)}, **found})
        return
    rows = [(each["name"], each["operator"], each["scope"], each["reason"]) for each in found["nodes"]]
    print_table(f"{path}: {counted(len(rows), 'operator')}", ("operator", "type", "runs in", "because"), rows)
    for copy in found["copies"]:
        sys.stdout.write(printable(f"copy of {copy['value']!r} to {copy['to']}: {copy['why']}\n"))
    if not found["copies"]:
        sys.stdout.write("nothing is copied\n")
