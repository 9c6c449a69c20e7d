"""Devices in a compilation: what a user demands is planned on the prepared model, and the search stays within it.

Specification 001 decides where every operator runs; specification 003, phase 1, which targets may run it there: those
that refine what was planned. A kernel runs on one device. Where the plan leaves operators free, they go to its default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage._errors import ConfigError
from collage.device import (
    DevicePlan,
    DeviceRequests,
    KeptAnnotations,
    PlanDevices,
    SEScope,
    asked_scope,
    copies_from_identities,
    copies_to_identities,
    copy_scopes,
    has_demands,
    is_device_copy,
    read_device_plan,
)
from collage.graph import bodies
from collage.machine import usable_core_numbers
from collage.runtime import CopyRecord, DeviceLayout, KernelRecord
from collage.target import Target
from collage.transform import PassContext, prepare

__all__ = ["DevicePlacement", "lay_out", "place", "prepare_and_place"]

_MERGING = "EliminateCommonSubexpr"
"""The pass that makes one operator of equal ones, wherever they are to run."""


class DevicePlacement:
    """Where the operators of a prepared model run.

    Args:
        model: The model, annotated.
        requests: Which devices there are.
        notes: What became of annotations while the model was prepared.

    Raises:
        DeviceConflict: Demands contradict each other.
        ConfigError: A core set is not this process's to use, or an operator with bodies would have to be in two places.
        TargetError: A scope that is not configured.

    Attributes:
        config: The devices.
        cores: The core set of each device that has one.
        notes: As given.
    """

    def __init__(self, model: ir.Model, requests: DeviceRequests, notes: Sequence[str] = ()) -> None:
        _check_cores(requests)
        self.config = requests.config(PassContext.current().fallback_device)
        self.cores = requests.cores
        self.notes = tuple(notes)
        plan = DevicePlan(model, self.config)
        self._scopes: dict[str, SEScope] = {}
        self._targets: dict[str, set[Target]] = {}
        for node in model.graph:
            scope = self._scopes[str(node.name)] = plan.scope_of(node)
            inner = [n for body in bodies(node) for n in body.all_nodes() if not is_device_copy(n)]
            targets = (where.target for where in (scope, *map(plan.required, inner)))
            self._targets[str(node.name)] = {target for target in targets if target is not None}
            for n in inner:
                _check_inside(node, scope, n)

    @property
    def devices(self) -> tuple[SEScope, ...]:
        """The devices on which anything runs, in the order of the model."""
        return tuple(dict.fromkeys(scope.device for scope in self._scopes.values()))

    @property
    def threads(self) -> int:
        """Threads that kernels are timed with: what the smallest core set has; 0 where there is none."""
        return min(map(len, self.cores.values()), default=0)

    def scope_of(self, node: ir.Node) -> SEScope:
        """Where a node of the main graph runs, and what it is to be compiled for."""
        return self._scopes[str(node.name)]

    def allows(self, nodes: Iterable[ir.Node], target: Target) -> bool:
        """Whether a kernel for a target may consist of these nodes: one device, and the target refines every plan."""
        nodes = list(nodes)
        if len({self.scope_of(node).device for node in nodes}) > 1:
            return False
        wanted = {planned for node in nodes for planned in self._targets[str(node.name)]}
        return all(target.refines(planned) for planned in wanted)

    def result_scope(self, nodes: Iterable[ir.Node], target: Target) -> SEScope:
        """Where the results of a kernel lie, and what it is compiled for (``result_se_scope``)."""
        scopes = [self.scope_of(node) for node in nodes]
        memory = scopes[0].memory_scope if len({scope.memory_scope for scope in scopes}) == 1 else None
        return SEScope(scopes[0].device_type, scopes[0].virtual_device_id, target, memory)

    @property
    def digest(self) -> str:
        """Of everything that decides where a plan's kernels run: races on other devices are other races."""
        scopes = {name: str(scope) for name, scope in self._scopes.items()}
        cores = sorted((str(device), list(numbers)) for device, numbers in self.cores.items())
        return hashlib.sha256(json.dumps([scopes, cores], sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "devices": [str(device) for device in self.devices],
            "cores": {str(device): list(numbers) for device, numbers in self.cores.items()},
            "default": str(self.config.default),
            "host": str(self.config.host),
            "notes": list(self.notes),
        }


def prepare_and_place(
    model: ir.Model, devices: str | Path | DeviceRequests | None
) -> tuple[ir.Model, DevicePlacement | None]:
    """Prepares a model; where devices are asked for, here or in the model, annotations survive and are planned.

    Args:
        model: A model from ``read_model``. It gets the annotations.
        devices: What is demanded besides the annotations in the model: the path of a plan of devices, or what was read.

    Returns:
        The prepared model, and the placement of its operators; None if nothing was asked for.

    Raises:
        ConfigError: A plan that makes no sense, a conflict, or an annotated node that was simplified away.
    """
    requests = read_device_plan(devices) if isinstance(devices, str | Path) else devices
    if requests is None and not has_demands(model):
        return prepare(model), None
    named = set(KeptAnnotations(model).names)
    requests = requests or DeviceRequests()
    requests.annotate(model)
    for section in ("nodes", "values"):
        named |= set(requests.rules.get(section, {}))
    kept = KeptAnnotations(model)
    copies_from_identities(model)
    with _without_merging():
        prepared = prepare(model)
    lost = kept.restore(prepared)
    for annotation in lost:
        if annotation.name in named and not annotation.is_constant:
            raise ConfigError(f"{annotation} while the model was prepared; annotate an operator beside it")
    placement = DevicePlacement(prepared, requests, [str(annotation) for annotation in lost])
    # A copy is planned anew between the kernels that come of it; here its place is what counts.
    copies_to_identities(prepared)
    return prepared, placement


def place(model: ir.Model, devices: str | Path | DeviceRequests | None) -> DevicePlacement | None:
    """The placement of a model's operators as it is, without preparing it; None if nothing is asked for.

    Args:
        model: A model from ``read_model``. It gets the annotations.
        devices: As for ``prepare_and_place``.

    Raises:
        ConfigError: A plan that makes no sense, or a conflict.
    """
    requests = read_device_plan(devices) if isinstance(devices, str | Path) else devices
    if requests is None and not has_demands(model):
        return None
    requests = requests or DeviceRequests()
    requests.annotate(model)
    copies_from_identities(model)
    placement = DevicePlacement(model, requests)
    copies_to_identities(model)
    return placement


def lay_out(
    model: ir.Model, records: Sequence[KernelRecord], placement: DevicePlacement
) -> tuple[ir.Model, list[KernelRecord], DeviceLayout]:
    """Plans again what was partitioned, now that kernels say where they run, and tells the runtime what came of it.

    Args:
        model: The partitioned model, whose kernels have a ``result_se_scope``.
        records: Its kernels.
        placement: Where its operators run.

    Returns:
        The model with copies; the kernels, with the names and scopes of what they read and make; devices and copies.
    """
    before = {str(node.name): [value.name for value in _values_of(node)] for node in model.graph}
    model = PlanDevices(placement.config)(model)
    plan = DevicePlan(model, placement.config)
    calls = {str(node.name): node for node in model.graph}
    reads = {(read.reader, read.index): str(plan.scope_of_read(read).storage) for read in plan.reads}
    placed = []
    for record in records:
        call = calls[record.name]
        now = dict(zip(before[record.name], enumerate(_values_of(call)), strict=True))
        inputs, outputs = ([now[name] for name in names] for names in (record.inputs, record.outputs))
        placed.append(
            replace(
                record,
                inputs=tuple(str(value.name) for _, value in inputs),
                outputs=tuple(str(value.name) for _, value in outputs),
                device=str(plan.scope_of(call).device),
                reads=tuple(reads.get((call, index)) for index, _ in inputs),
                writes=tuple(str(plan.scope_of_value(value).storage) for _, value in outputs),
            )
        )
    copies = [
        CopyRecord(str(node.inputs[0].name), str(node.outputs[0].name), *(str(s.storage) for s in copy_scopes(node)))
        for node in model.graph
        if is_device_copy(node) and node.inputs[0] is not None
    ]
    cores = {str(device): tuple(numbers) for device, numbers in placement.cores.items()}
    arrivals = {str(value.name): str(plan.scope_of_value(value).storage) for value in model.graph.inputs}
    return model, placed, DeviceLayout(cores, tuple(copies), arrivals)


def _values_of(node: ir.Node) -> list[ir.Value]:
    """What a call of a kernel, which leaves nothing out, reads and makes."""
    return [value for value in (*node.inputs, *node.outputs) if value is not None]


def _without_merging() -> PassContext:
    now = PassContext.current()
    disabled = [*now.disabled_pass, _MERGING]
    return PassContext(
        now.opt_level, now.fallback_device, now.required_pass, disabled, now.config, now.instruments, now.trace
    )


def _check_cores(requests: DeviceRequests) -> None:
    usable = usable_core_numbers()
    for device, cores in requests.cores.items():
        missing = sorted(set(cores) - usable)
        if missing:
            raise ConfigError(
                f"device {device} is to be the cores {_listed(cores)}, but this process may only use {_listed(usable)}"
            )


def _check_inside(node: ir.Node, scope: SEScope, inner: ir.Node) -> None:
    """Control flow is one kernel, so all that it contains runs where it does."""
    asked = asked_scope(inner)
    if asked is not None and asked.device.join(scope.device) is None:
        raise ConfigError(
            f"{inner.name!r} ({inner.op_type}) is to be in {asked}, but it is inside of {node.name!r} ({node.op_type}), "
            f"which runs as a whole, in {scope.device}; place all that is in it alike"
        )


def _listed(cores: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
