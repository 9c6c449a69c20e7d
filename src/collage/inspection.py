"""Inspection: the toolchains, this machine, and the contents of a model."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import UsageError
from collage.options import CompileOptions, compile_options
from collage.system.machine import this_machine
from collage.target import HOST_TOOLCHAIN, NATIVE_TOOLCHAIN, Target, TargetLike
from collage.toolchains import (
    Registry,
    Toolchain,
    availability_for,
    choose_menu,
    option_values,
    registry,
    support_for,
)

if TYPE_CHECKING:
    from collage.graph import DataflowGraph

__all__ = ["describe_environment", "describe_targets", "inspect"]

_PACKAGES = ("collage", "numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "openvino", "apache-tvm", "torch")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS", "KMP_AFFINITY", "OMP_PROC_BIND", "COLLAGE_DB")


def describe_targets() -> list[dict[str, Any]]:
    """Every toolchain: targets, options, and whether it can be used here."""
    toolchains = registry()
    usable = {toolchain.name: toolchain for toolchain in toolchains}
    # Each waits for its packages to be imported elsewhere, which takes seconds.
    with ThreadPoolExecutor(max_workers=max(1, len(usable))) as threads:
        rows = {name: threads.submit(_row_or_why, toolchain, toolchains) for name, toolchain in usable.items()}
    return [
        rows[name].result() if name in rows else _broken(name, toolchains.broken[name], toolchains.tracebacks[name])
        for name in toolchains.names()
        if name != HOST_TOOLCHAIN
    ]


def _row_or_why(toolchain: Toolchain, toolchains: Registry) -> dict[str, Any]:
    """Return the row of a toolchain, or the reason why it has none. The values of a plug-in are not trusted."""
    try:
        return _row(toolchain, toolchains)
    except Exception as error:
        return _broken(toolchain.name, f"{type(error).__name__}: {error}", traceback.format_exc())


def _row(toolchain: Toolchain, toolchains: Registry) -> dict[str, Any]:
    found = availability_for(toolchain, Target.parse(toolchain.targets[0]))
    return {
        "name": toolchain.name,
        "alias": "llvm" if toolchain.name == NATIVE_TOOLCHAIN else toolchain.name,
        "targets": list(toolchain.targets),
        "available": found.available,
        "version": found.version,
        "default": bool(getattr(toolchain, "on_default_menu", True)),
        "devices": list(found.devices),
        "reason": found.reason,
        "remedy": found.remedy,
        "options": dict(toolchain.options),
        "by_target": [_target_row(toolchain, toolchains.parse_target(stem)) for stem in toolchain.targets],
        "broken": False,
        "traceback": None,
    }


def _target_row(toolchain: Toolchain, target: Target) -> dict[str, Any]:
    """One target of a toolchain, and the hardware that its tests have passed on."""
    found = availability_for(toolchain, target)
    ran_on = toolchain.ran_on(target) if hasattr(toolchain, "ran_on") else None
    return {
        "target": str(target),
        "available": found.available,
        "reason": found.reason,
        "remedy": found.remedy,
        "ever_ran_on": ran_on,
        "values": {name: values and list(values) for name, values in option_values(toolchain, target).items()},
    }


def _broken(name: str, reason: str, where: str) -> dict[str, Any]:
    """Return the row of a toolchain that cannot be used because its author made a mistake."""
    return {
        "name": name,
        "alias": name,
        "targets": [],
        "available": False,
        "version": None,
        "devices": [],
        "reason": f"broken: {reason}",
        "remedy": None,
        "options": {},
        "by_target": [],
        "broken": True,
        "traceback": where,
    }


def describe_environment() -> dict[str, Any]:
    """This machine and installation, for bug reports."""
    from collage.database.database import default_url  # late: it imports SQLAlchemy, which listing does not need

    try:
        database = default_url()
    except UsageError as error:
        database = str(error)
    machine = this_machine()
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "machine": {
            "cpu": machine.cpu,
            "cores": machine.cores,
            "physical_cores": machine.physical_cores,
            "quota": machine.quota,
            "memory_bytes": machine.memory_bytes,
            "system": platform.platform(),
            "fingerprint": machine.fingerprint,
        },
        "packages": {"python": sys.version.split()[0], **versions},
        "settings": {"database": database, **{name: os.environ.get(name) for name in _VARIABLES}},
    }


def inspect(
    path: Path,
    targets: Iterable[TargetLike] | None = None,
    *,
    coverage: bool = False,
    options: CompileOptions | Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the contents of a model after preparation. With ``coverage``, add the operators that each target takes and refuses.

    Nothing is built or run. A toolchain that states that it takes an operator may still fail to build a kernel with it.

    Args:
        path: An ONNX file.
        targets: As for ``compile``.
        coverage: True to ask the targets.
        options: As for ``compile``: lengths of symbolic dimensions.
        say: Called with each line of progress.
    """
    # Here, as to list toolchains takes none of this, and it takes seconds to import.
    from collage.compiler.opening import with_lengths
    from collage.frontend import (
        describe_inputs,
        describe_outputs,
        read_model,
        shape_misfit,
    )
    from collage.graph import DataflowGraph
    from collage.transform import prepare

    toolchains = registry()
    options = compile_options(options)
    menu = choose_menu(targets, toolchains)
    model = prepare(with_lengths(read_model(path), options))
    misfit = shape_misfit(model)
    graph = DataflowGraph(model)
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    found: dict[str, Any] = {
        "schema": 1,
        "model": {"path": str(path), "nodes": len(nodes), "weights_bytes": _weights_bytes(model)},
        "inputs": [str(spec) for spec in describe_inputs(model)],
        "outputs": [str(spec) for spec in describe_outputs(model)],
        "operators": dict(Counter(node.op_type for node in nodes).most_common()),
        "problem": None if misfit is None else f"the model cannot be run: {misfit}",
        "waists": _cut_points(graph),
        "coverage": [],
    }
    if coverage and misfit is None:
        say("asking toolchains")
        found["coverage"] = [_coverage(graph, toolchains, target) for target in menu]
    return found


def _cut_points(graph: DataflowGraph) -> list[dict[str, Any]]:
    """Return the positions at which one value is all that later operators read of earlier ones: natural borders of kernels."""
    waists = []
    for cut in graph.cuts[1:-1]:
        if cut.count == 1:
            (value,) = graph.live_values(cut.position)
            after = graph.nodes[cut.position - 1]
            waists.append({"after": str(after.name), "value": str(value.name), "bytes": cut.nbytes or None})
    return waists


def _coverage(graph: DataflowGraph, toolchains: Registry, target: Target) -> dict[str, Any]:
    """Return the operators that a target takes and refuses, as its toolchain states it."""
    toolchain = toolchains.for_target(target)
    found = availability_for(toolchain, target)
    answers = [(node, support_for(toolchain, node, target)) for node in graph.nodes] if found.available else []
    taken = Counter(node.op_type for node, support in answers if support.ok)
    refused = [
        {"node": str(node.name), "operator": node.op_type, "reason": support.reason}
        for node, support in answers
        if not support.ok
    ]
    return {
        "target": str(target),
        "whole_model": found.available and not refused,
        "reason": found.reason,
        "taken": taken.total(),
        "of": len(graph.nodes),
        "operators": dict(taken),
        "refused": refused,
    }


def _weights_bytes(model: Any) -> int:
    values = model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)
