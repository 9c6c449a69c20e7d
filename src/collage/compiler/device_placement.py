"""Devices in a compilation: a user's demands are planned on the prepared model, and the search keeps to that plan.

Planning (see ``docs/devices.md``) decides where operators run that the user annotated. The targets that may run them there
are those that refine the planned scope. A kernel runs on one device. Operators that were left free go to the default device, if
there is one. If there is none, the search places them: each candidate then comes once for every device that may run it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
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
    candidates_of,
    copies_from_identities,
    copies_to_identities,
    copy_scopes,
    demand_memory_scope,
    has_demands,
    host_operands,
    is_device_copy,
    read_device_plan,
    required_output,
    unread_operands,
)
from collage.fusion import CandidateKernel
from collage.graph import DataflowGraph, bits_of, bodies, value_nbytes
from collage.runtime import CopyRecord, DeviceLayout, KernelRecord
from collage.search import Transfer
from collage.system.machine import usable_core_numbers
from collage.target import Target
from collage.transform import PassContext, parse_pipeline

__all__ = ["DeviceCandidate", "DevicePlacement", "lay_out", "prepare_and_plan_devices"]

_MERGING = "EliminateCommonSubexpr"
"""The pass that merges equal operators, even if they are annotated for different devices."""


@dataclass(frozen=True, slots=True)
class DeviceCandidate(CandidateKernel):
    """A candidate on one of the devices that may run it.

    Attributes:
        scope: The device.
        device: Its number among the devices of the placement.
    """

    scope: SEScope
    device: int


class DevicePlacement:
    """The devices on which the operators of a prepared model run, or may run.

    Args:
        model: The model, annotated.
        requests: The devices.
        notes: Changes of annotations while the model was prepared.

    Raises:
        DeviceConflict: Demands contradict each other.
        ConfigError: A core set is not this process's to use, or an operator with bodies would have to be in two places.
        TargetError: A scope that is not configured.

    Attributes:
        config: The devices.
        cores: The core set of each device that has one.
        notes: Notes for the report.
        devices: The devices on which anything runs, or may run; those that win where all else is equal come first.
        is_free: True if there are operators that the search places.
    """

    def __init__(self, model: ir.Model, requests: DeviceRequests, notes: Sequence[str] = ()) -> None:
        _check_cores(requests)
        fallback = PassContext.current().fallback_device
        self.config = requests.config(fallback)
        self.cores = requests.cores
        self.notes = tuple(notes)
        plan = DevicePlan(model, self.config)
        self._planned = {str(node.name): plan.scope_of(node) for node in model.graph}
        inside = {
            node: [n for b in bodies(node) for n in b.all_nodes() if not is_device_copy(n)] for node in model.graph
        }
        self._inside = {str(node.name): [plan.required(n).target for n in inner] for node, inner in inside.items()}
        self._demanded = {str(node.name): _demanded(plan, node, inner) for node, inner in inside.items()}
        told = {str(node.name): tuple(map(self.config.canonical, candidates_of(node))) for node in model.graph}
        self._candidates = {name: scopes for name, scopes in told.items() if scopes}
        for name, candidates in self._candidates.items():
            if len({scope.device for scope in candidates}) > 1:
                self._demanded[name] = SEScope()
        self._tied = {str(value.name) for value in plan.values if plan.is_tied(value)}
        arrivals = {str(value.name): plan.arrival(value) for value in model.graph.inputs}
        deliveries = {str(value.name): required_output(model.graph, str(value.name)) for value in model.graph.outputs}
        self._arrivals = {name: self.config.canonical(s).device for name, s in arrivals.items() if not s.is_free}
        self._deliveries = {name: self.config.canonical(s).device for name, s in deliveries.items() if s is not None}
        scopes = [*self._planned.values(), *self._arrivals.values(), *self._deliveries.values(), *self.config.scopes]
        scopes += [scope for candidates in self._candidates.values() for scope in candidates]
        self.devices: tuple[SEScope, ...] = tuple(sorted({scope.device for scope in scopes}, key=self._rank))
        is_open = requests.default is None and fallback == PassContext().fallback_device
        self.is_free = is_open and any(len(self._open_to(name)) > 1 for name in self._demanded)
        if not self.is_free:
            self.devices = tuple(dict.fromkeys(scope.device for scope in self._planned.values()))
        for node, inner in inside.items():
            for n in inner:
                _check_inside(node, (self._demanded if self.is_free else self._planned)[str(node.name)], n)

    @property
    def threads(self) -> int:
        """Threads that kernels are timed with: the number of cores in the smallest core set; 0 if there is none."""
        return min(map(len, self.cores.values()), default=0)

    @property
    def has_overlap(self) -> bool:
        """True if kernels of different devices run at once. The runtime has threads for devices if any has cores."""
        return bool(self.cores)

    def scope_of(self, node: ir.Node, rest: SEScope | None = None) -> SEScope:
        """Return the device and the target of a node of the main graph.

        Args:
            node: The node.
            rest: The device that free nodes go to, if it may run them; None is the default.
        """
        name = str(node.name)
        if not self.is_free or rest is None or rest not in self._devices_of(name):
            return self._planned[name]
        return self._on(name, rest)

    def why_not(self, node: ir.Node, device: SEScope, target: Target) -> str | None:
        """Return the reason why a kernel for a target on a device cannot contain a node; None if it can."""
        name = str(node.name)
        if device not in self._devices_of(name):
            return f"it is planned for {self._planned[name]}"
        # A coarser type is granted by an accuracy budget, wherever an operator runs.
        full = replace(target, options=tuple(option for option in target.options if option[0] != "precision"))

        def fits(planned: Target | None) -> bool:
            return planned is None or target.refines(planned) or full.refines(planned)

        offered = self._offered(name, device)
        if any(fits(scope.target) for scope in offered) and all(map(fits, self._inside[name])):
            return None
        return f"{target} does not refine {' or '.join(map(str, offered))}"

    def devices_for(self, nodes: Iterable[ir.Node], target: Target) -> tuple[SEScope, ...]:
        """The devices on which a kernel for a target may consist of these nodes."""
        nodes = list(nodes)
        return tuple(d for d in self.devices if all(self.why_not(node, d, target) is None for node in nodes))

    def allows(self, nodes: Iterable[ir.Node], target: Target) -> bool:
        """Return True if a kernel for a target may consist of these nodes: one device, and the target refines every plan."""
        return bool(self.devices_for(nodes, target))

    def within(self, candidates: Iterable[CandidateKernel]) -> Iterator[CandidateKernel]:
        """Return the allowed candidates of a graph, once for each device if the search chooses one."""
        refused: dict[tuple[Target, SEScope], int] = {}
        for candidate in candidates:
            target, nodes = candidate.target, candidate.sub_graph.graph.nodes
            for number, device in enumerate(self.devices):
                if (target, device) not in refused:
                    refused[target, device] = bits_of(
                        index for index, node in enumerate(nodes) if self.why_not(node, device, target) is not None
                    )
                if candidate.bits & refused[target, device]:
                    continue
                if not self.is_free:
                    yield candidate
                    break
                yield DeviceCandidate(candidate.sub_graph, target, candidate.spec, candidate.rules, device, number)

    def result_scope(self, nodes: Iterable[ir.Node], target: Target, device: SEScope | None = None) -> SEScope:
        """Return the place of the results of a kernel and its target (``result_se_scope``).

        Args:
            nodes: The kernel's nodes.
            target: Its target.
            device: The device that the search chose; None is the one that was planned.
        """
        scopes = [self.scope_of(node, device) for node in nodes]
        memory = scopes[0].memory_scope if len({scope.memory_scope for scope in scopes}) == 1 else None
        return SEScope(scopes[0].device_type, scopes[0].virtual_device_id, target, memory)

    def transfers(
        self,
        graph: DataflowGraph,
        copy_s: Callable[[SEScope, SEScope, int], float] = lambda src, dst, nbytes: 0.0,
        nbytes_of: Callable[[ir.Value], int] = lambda value: value_nbytes(value) or 0,
    ) -> list[Transfer]:
        """Return the values that operators hand to each other, with the costs of copying them from device to device.

        Inputs arrive in the host's memory, and outputs are delivered there, unless something else is demanded. Sets of
        this machine's cores all see that memory, so where there is no other device, only demands count.

        Args:
            graph: The dataflow graph of the prepared model.
            copy_s: Seconds of a copy from one device to another, given its bytes. By default copies cost nothing, but of
                equal plans the one with fewer of them wins.
            nbytes_of: Size of a value.
        """
        readers: dict[ir.Value, dict[int, int | None]] = {}
        host = self.devices.index(self.config.host.device)
        for index, node in enumerate(graph.nodes):
            for value in graph.inputs_of(index):
                use = _use_of(node, value)
                if use is not _Use.UNREAD:
                    readers.setdefault(value, {})[index] = host if use is _Use.ON_HOST else None
        anywhere = all(device.device_type == self.config.host.device_type for device in self.devices)
        found = []
        for value in dict.fromkeys([*readers, *graph.graph.outputs]):
            name, producer = str(value.name), value.producer()
            made = graph.index_of(producer) if producer is not None and producer in graph else None
            home = self._arrivals.get(name)
            if made is None and home is None and not anywhere:
                home = self.config.host.device
            delivered = self._deliveries.get(name)
            if delivered is None and graph.is_output(value) and not anywhere:
                delivered = self.config.host.device
            if (made is None and home is None) or (value not in readers and delivered is None):
                continue
            size = nbytes_of(value)
            prices = [[self._price(name, src, dst, copy_s, size) for dst in self.devices] for src in self.devices]
            found.append(
                Transfer(
                    made,
                    readers.get(value, {}),
                    prices,
                    None if home is None else self.devices.index(home),
                    frozenset() if delivered is None else frozenset({self.devices.index(delivered)}),
                )
            )
        return found

    def why_no_target(self, menu: Iterable[Target]) -> str | None:
        """Return which planned target no target of a menu refines, and what to do; None if there is none."""
        menu = tuple(menu)
        for name, scope in self._planned.items():
            wanted = scope.target
            if wanted is None or (wanted.is_native and not wanted.options):
                continue
            offered = [each.target for each in (scope, *self._candidates.get(name, ())) if each.target is not None]
            if any(t.refines(each) for t in menu for each in offered):
                continue
            return (
                f"{name!r} is planned for {scope}, and no target of the menu refines {wanted}: name it too, in Python "
                f'targets=[..., "{wanted}"], on the command line --target "{wanted}"'
            )
        return None

    @property
    def digest(self) -> str:
        """A digest of everything that decides on the devices of kernels. Timings on other devices have another digest."""
        scopes = {
            name: [str(scope), *map(str, self._candidates.get(name, ()))] for name, scope in self._planned.items()
        }
        cores = sorted((str(device), list(numbers)) for device, numbers in self.cores.items())
        free = [str(device) for device in self.devices] if self.is_free else []
        return hashlib.sha256(json.dumps([scopes, cores, *free], sort_keys=True).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """Return the section of the report on devices."""
        return {
            "devices": [str(device) for device in self.devices],
            "cores": {str(device): list(numbers) for device, numbers in self.cores.items()},
            "default": None if self.is_free else str(self.config.default),
            "host": str(self.config.host),
            "notes": list(self.notes),
        }

    def _devices_of(self, name: str) -> tuple[SEScope, ...]:
        """The devices that a node may run on."""
        return self._open_to(name) if self.is_free else (self._planned[name].device,)

    def _open_to(self, name: str) -> tuple[SEScope, ...]:
        """The devices that meet the demands on a node."""
        demanded, candidates = self._demanded[name], {scope.device for scope in self._candidates.get(name, ())}
        fit = [device for device in self.devices if demanded.join(device) is not None]
        return tuple(device for device in fit if not candidates or device in candidates)

    def _on(self, name: str, device: SEScope) -> SEScope:
        """The scope of a node on a device. Its target is the demanded one, or the one configured there."""
        planned = self._planned[name]
        return (
            planned if planned.device == device else self.config.canonical(self._demanded[name].join(device) or device)
        )

    def _offered(self, name: str, device: SEScope) -> Sequence[SEScope]:
        """Return the scopes that a node may have on a device: one, unless ``AnnotateSEScopes`` found several."""
        candidates = [scope for scope in self._candidates.get(name, ()) if scope.device == device]
        return candidates or [self._on(name, device)]

    def _rank(self, device: SEScope) -> tuple[bool, int, str]:
        configured = [scope.device for scope in self.config.scopes]
        known = configured.index(device) if device in configured else len(configured)
        return device != self.config.default.device, known, str(device)

    def _price(
        self, name: str, src: SEScope, dst: SEScope, copy_s: Callable[[SEScope, SEScope, int], float], size: int
    ) -> float:
        if src == dst:
            return 0.0
        return math.inf if name in self._tied else copy_s(src, dst, size)


class _Use(Enum):
    """Ways in which a node reads a value."""

    DATA = auto()
    ON_HOST = auto()
    UNREAD = auto()


def _use_of(node: ir.Node, value: ir.Value) -> _Use:
    """Return the way in which a node, its bodies included, reads one of its values."""
    inside = {node, *(inner for body in bodies(node) for inner in body.all_nodes())}
    uses = [use for use in value.uses() if use.node in inside and use.idx not in unread_operands(use.node)]
    if not uses:
        return _Use.UNREAD
    return _Use.ON_HOST if all(use.idx in host_operands(use.node) for use in uses) else _Use.DATA


def _demanded(plan: DevicePlan, node: ir.Node, inside: Sequence[ir.Node]) -> SEScope:
    """Return the demands on a node. For control flow they are the annotations in it, or of its results."""
    demanded = plan.required(node)
    annotated: Sequence[ir.Node | ir.Value] = (*inside, *node.outputs) if inside else ()
    for scope in map(asked_scope, annotated):
        if scope is not None:
            demanded = demanded.join(plan.config.device_of(scope)) or demanded
    return demanded


def prepare_and_plan_devices(
    model: ir.Model, devices: str | Path | DeviceRequests | None, left_out: Sequence[str] = (), passes: str = "prepare"
) -> tuple[ir.Model, DevicePlacement | None]:
    """Prepare a model; where devices are asked for, here or in the model, annotations survive and are planned.

    Args:
        model: A model from ``read_model``. It gets the annotations.
        devices: Demands besides the annotations in the model: the path of a plan of devices, or its parsed content.
        left_out: Names of passes that are not to run.
        passes: The passes that prepare the model, see ``parse_pipeline``.

    Returns:
        The prepared model, and the placement of its operators; None if nothing was asked for.

    Raises:
        ConfigError: A plan that makes no sense, a conflict, or an annotated node that was simplified away.
    """
    requests = read_device_plan(devices) if isinstance(devices, str | Path) else devices
    if requests is None and not has_demands(model):
        with _without(*left_out):
            return parse_pipeline(passes)(model), None
    named = set(KeptAnnotations(model).names)
    requests = requests or DeviceRequests()
    requests.annotate(model)
    for section in ("nodes", "values"):
        named |= set(requests.rules.get(section, {}))
    kept = KeptAnnotations(model)
    copies_from_identities(model)
    with _without(_MERGING, *left_out):
        prepared = parse_pipeline(passes)(model)
    lost = kept.restore(prepared)
    for annotation in lost:
        if annotation.name in named and not annotation.is_constant:
            raise ConfigError(f"{annotation} while the model was prepared; annotate an operator beside it")
    placement = DevicePlacement(prepared, requests, [str(annotation) for annotation in lost])
    # A copy is planned again between the kernels that come of it; here its place is what counts.
    copies_to_identities(prepared)
    return prepared, placement


def lay_out(
    model: ir.Model, records: Sequence[KernelRecord], placement: DevicePlacement
) -> tuple[ir.Model, list[KernelRecord], DeviceLayout]:
    """Plan the devices of the partitioned model again, now that kernels have devices, and return the layout for the runtime.

    Args:
        model: The partitioned model, whose kernels have a ``result_se_scope``.
        records: Its kernels.
        placement: The devices that its operators run on.

    Returns:
        The model with copies; the kernels, with the names and scopes of their inputs and outputs; devices and copies.
    """
    _demand_memories(model, records)
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


def _demand_memories(model: ir.Model, records: Sequence[KernelRecord]) -> None:
    """Annotate functions with the memories in which their toolchains want arguments, or leave results."""
    calls = {str(node.name): node for node in model.graph}
    for record in records:
        call = calls[record.name]
        function = model.functions[call.op_identifier()]
        formals = dict(
            zip((str(value.name) for value in _values_of(call)), (*function.inputs, *function.outputs), strict=True)
        )
        for name, memory in record.compiled.memory_scopes(record.inputs, record.outputs).items():
            demand_memory_scope(function, str(formals[name].name), memory)


def _values_of(node: ir.Node) -> list[ir.Value]:
    """Return the values that a call of a kernel reads and makes. A call leaves nothing out."""
    return [value for value in (*node.inputs, *node.outputs) if value is not None]


def _without(*names: str) -> PassContext:
    now = PassContext.current()
    disabled = [*now.disabled_pass, *names]
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
