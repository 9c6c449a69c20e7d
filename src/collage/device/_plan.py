"""DevicePlan: the scopes of values and nodes, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import onnx_ir as ir

from collage._errors import DeviceConflict
from collage.device._annotations import WHY, asked_scope, planned_scope
from collage.device._config import CompilationConfig
from collage.device._conflict import render_links
from collage.device._copy_op import is_device_copy
from collage.device._domains import Domains
from collage.device._kernels import is_opaque
from collage.device._placement_constraints import Flow, PlacementConstraints, Read
from collage.device._scope import ANYWHERE, SEScope
from collage.device._shapes import settle_shapes
from collage.graph import bodies
from collage.target import DEVICE_TYPES, Target

__all__ = ["DevicePlan", "PlannedCopy", "may_take", "targets_for"]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedCopy:
    """A value that is read in another scope than it lies in.

    Attributes:
        value: The value that is copied.
        src: Scope in which the value lies.
        dst: Scope in which the copy lies.
        reads: The readers of the copy.
    """

    value: ir.Value
    src: SEScope
    dst: SEScope
    reads: tuple[Read, ...]


def may_take(scope: SEScope, target: Target) -> bool:
    """Return True if a target may serve a scope: it has the same type of device, and refines the scope's target."""
    if scope.device_type not in (None, DEVICE_TYPES[target.kind]):
        return False
    return scope.target is None or target.refines(scope.target)


def targets_for(node: ir.Node, menu: Iterable[Target]) -> tuple[Target, ...]:
    """The targets of a menu that may take a node of a planned model; all of them, if it was not planned."""
    scope = planned_scope(node) or ANYWHERE
    return tuple(target for target in menu if may_take(scope, target))


class DevicePlan:
    """Scopes for all nodes and values of a model, which is not changed.

    Unification runs in steps. A step never changes a choice of an earlier step:

    1. annotations, kernels, and places that cannot differ (:class:`PlacementConstraints`);
    2. shape computations go to the host;
    3. readers pull their inputs, innermost loops first, in the order of the model;
    4. devices of which only the type is known take the id of a neighbour;
    5. places that are still free go to the default scope; inputs of the model go to the scope of their reader;
    6. memories, by the same rules, wherever devices agree.

    Attributes:
        model: The model.
        config: The devices.
        places: The places, those that must agree unified.
    """

    def __init__(self, model: ir.Model, config: CompilationConfig) -> None:
        """Plans.

        Raises:
            DeviceConflict: Demands contradict each other. The error holds the steps between them, and remedies.
            TargetError: A scope cannot be read, or is not configured.
        """
        self.model, self.config = model, config
        # A model has few scopes and many nodes.
        self._canonical = cache(config.canonical)

        @cache
        def stored(device: SEScope, memory: str | None) -> SEScope:
            memory = self._canonical(device).memory_scope if memory is None else memory
            return SEScope(device.device_type, device.virtual_device_id, None, memory)

        @cache
        def with_target(scope: SEScope, target: Target | None = None) -> SEScope:
            target = self._canonical(scope).target if target is None else target
            return SEScope(scope.device_type, scope.virtual_device_id, target, scope.memory_scope)

        self._stored, self._with_target = stored, with_target
        self.places = PlacementConstraints(model, config)
        self._host_domains = settle_shapes(self.places)
        self._planned = frozenset(self.places.nodes)
        self._constant_reads: dict[ir.Value, list[Read]] = {}
        for read in sorted(self.places.reads, key=lambda read: not self.places.is_main_output(read)):
            if read.value in self.places.constants:
                self._constant_reads.setdefault(read.value, []).append(read)
        self._required = {node: self._demanded(node) for node in self.places.of_node}
        self._tied = {read.value for read in self.places.reads if read.flow is Flow.HARD}
        self._arrivals = {value: self.places.devices.scope(self.places.of_value[value]) for value in self.places.inputs}
        self._unify_devices()
        self._devices = {root: self._settled(root) for root in self.places.devices.roots()}
        self._settle_outputs()
        self._homes: dict[int, SEScope] = {}
        self._place_inputs()
        self._unify_memories()
        self._place_inputs()
        # From here on nothing moves.
        self._storage = [self._scope_at(place) for place in range(self.places.count)]

    # Questions --------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[ir.Node]:
        """Every node that is planned, bodies and functions included; constants and insides of kernels are not."""
        return tuple(self.places.nodes)

    @property
    def values(self) -> Mapping[ir.Value, SEScope]:
        """Every value that lies in one scope. Constants lie wherever they are read."""
        return {value: self.scope_of_value(value) for value in self.places.of_value}

    @property
    def reads(self) -> Sequence[Read]:
        """Every use of a value whose data are read."""
        return tuple(self.places.reads)

    def scope_of(self, node: ir.Node) -> SEScope:
        """Return the scope in which a node runs, with its target.

        Control flow and calls of plain functions run where all that they contain runs; on the host, if that is not one
        scope.

        Raises:
            KeyError: The node is a constant, or belongs to another model.
        """
        place = self.places.of_node.get(node)
        if place is not None:
            return self._with_target(self._storage[place], self._target_of(node))
        inner = {self.scope_of(n) for n in self._inside(node) if not is_device_copy(n)}
        inner |= {self._with_target(self.scope_of_value(value)) for value in node.outputs}
        return inner.pop() if len(inner) == 1 else self.config.host

    def scope_of_value(self, value: ir.Value) -> SEScope:
        """Return the scope in which a value lies. Its target is that of its device.

        Raises:
            KeyError: The value is a constant, or belongs to another model.
        """
        return self._with_target(self._storage[self.places.of_value[value]])

    def scope_of_read(self, read: Read) -> SEScope:
        """Return the scope in which a reader wants its value."""
        return self._with_target(self._storage[read.place])

    @property
    def constants(self) -> Sequence[ir.Value]:
        """Initializers and constants, which lie wherever they are read."""
        return tuple(self.places.constants)

    @property
    def explicit_copies(self) -> Sequence[ir.Node]:
        """Copies that the model held before the plan."""
        return tuple(self.places.copies)

    def scope_of_copied(self, copy: ir.Node) -> SEScope:
        """Return the scope in which a copy of the model reads its source."""
        return next(self.scope_of_read(read) for read in self.places.reads if read.reader is copy)

    def scopes_of_constant(self, value: ir.Value) -> tuple[SEScope, ...]:
        """Every scope in which a constant is read; an output of the model first."""
        reads = self._constant_reads.get(value, [])
        found = dict.fromkeys(self.scope_of_read(read) for read in reads)
        return tuple(found) or (self.config.default,)

    def reads_of_constant(self, value: ir.Value, scope: SEScope) -> list[Read]:
        """Return the readers of a constant in a scope."""
        return [read for read in self._constant_reads.get(value, []) if self.scope_of_read(read) == scope]

    def required(self, node: ir.Node) -> SEScope:
        """Return the scope that annotations, kernels and shape computations demand of a node. A search decides free fields."""
        return self._required.get(node, ANYWHERE)

    def arrival(self, value: ir.Value) -> SEScope:
        """Return the device on which an input of the model is demanded to arrive. It is free without a demand."""
        return self._arrivals[value]

    def is_tied(self, value: ir.Value) -> bool:
        """Return True if a value has to be read where it lies, so that no copy may come between."""
        return value in self._tied

    def allows(self, node: ir.Node, target: Target, *, placed: bool = False) -> bool:
        """Return True if a kernel that is compiled for a target may contain a node.

        Args:
            node: The node; of control flow, all that it contains counts too.
            target: The target.
            placed: True to use the planned scope. Otherwise only demands count, and free nodes stay free.
        """
        scope = self.scope_of(node) if placed else self.required(node)
        inside = (n for n in self._inside(node) if not is_device_copy(n))
        return may_take(scope, target) and all(self.allows(n, target, placed=placed) for n in inside)

    def copies(self) -> list[PlannedCopy]:
        """The copies that the model lacks: one for each value and destination."""
        groups: dict[tuple[ir.Value, SEScope], list[Read]] = {}
        for read in self.places.reads:
            place = self.places.of_value.get(read.value)
            if place is None:
                continue
            dst = self._storage[read.place]
            if dst != self._storage[place]:
                groups.setdefault((read.value, dst), []).append(read)
        return [
            PlannedCopy(value, self.scope_of_value(value), self._with_target(dst), tuple(reads))
            for (value, dst), reads in groups.items()
        ]

    def why(self, what: ir.Value | ir.Node) -> str:
        """The chain of causes that put a value or node where it is.

        Raises:
            KeyError: It is a constant, or belongs to another model.
        """
        if isinstance(what, ir.Value) and what in self.places.constants:
            return f"constant {what.name!r} is stored wherever it is read: {', '.join(map(str, self.scopes_of_constant(what)))}"
        if isinstance(what, ir.Node) and what not in self.places.of_node:
            return f"{what.name!r} ({what.op_type}) is in {self.scope_of(what)}: that is where its contents are"
        place = self.places.of_node[what] if isinstance(what, ir.Node) else self.places.of_value[what]
        scope = self._with_target(self._storage[place])
        lines = [f"{self.places.describe(place)} is in {scope}"]
        if place in self._homes:
            return f"{lines[0]}: an input of the model that is first read there"
        device = self._explained("device", self.places.devices, place)
        lines += device or ["  nothing demands a device: it is the default"]
        lines += self._explained("memory", self.places.memories, place)
        return "\n".join(lines)

    def reason(self, node: ir.Node) -> str:
        """Return the origin of a node's scope, in a few words."""
        place = self.places.of_node.get(node)
        if place is None:
            return "where its contents are"
        own = self.places.devices.fixing_of(place)
        if own is not None:
            return own.cause
        fixings = self.places.devices.fixings(place)
        return f"with {self.places.describe(fixings[0].place)}, {fixings[0].cause}" if fixings else "default"

    def why_copy(self, copy: PlannedCopy | ir.Node) -> str:
        """Return the reason for a copy: the origins of the scopes of its value and of its first reader.

        Args:
            copy: A copy that the model lacks, or a node of a planned model that copies.
        """
        if isinstance(copy, ir.Node):
            return copy.metadata_props.get(WHY, "the copy was in the model")
        first = copy.reads[0]
        others = f", and for {len(copy.reads) - 1} more" if len(copy.reads) > 1 else ""
        here = self._source_of(self.places.of_value[copy.value])
        there = self._source_of(first.place)
        wanted = f"{first.use} reads it in {copy.dst} ({there}){others}"
        return f"{copy.value.name!r} lies in {copy.src} ({here}), and {wanted}"

    # Steps ------------------------------------------------------------------------------------------------------------

    def _unify_devices(self) -> None:
        devices = self.places.devices
        for read in sorted(self.places.reads, key=lambda read: -read.depth):
            if read.flow is Flow.FREE and not self._touches_host(read):
                devices.try_unify(self.places.of_value[read.value], read.place, str(read))
        for read in self.places.reads:
            place = self.places.of_value.get(read.value)
            if place is not None and read.flow is Flow.CUT and not self._touches_host(read):
                one, other = devices.scope(place), devices.scope(read.place)
                if one.device_type == other.device_type is not None and one != other:
                    devices.try_unify(place, read.place, str(read))

    def _unify_memories(self) -> None:
        places = self.places
        for read in sorted(places.reads, key=lambda read: -read.depth):
            place = places.of_value.get(read.value)
            if place is None or places.host in (place, read.place) or read.value in places.inputs:
                continue
            asked = asked_scope(read.value)
            bound = asked is not None and asked.memory_scope is not None
            if not bound and not places.is_main_output(read) and self._device_at(place) == self._device_at(read.place):
                places.memories.try_unify(place, read.place, str(read))

    def _settled(self, root: int) -> SEScope:
        """The device of a domain, with free fields filled in."""
        scope = self.places.devices.scope(root)
        return (self.config.default if scope.is_free else self.config.canonical(scope)).device

    def _settle_outputs(self) -> None:
        """An output of which a demand leaves the number of the device open is read where its value lies, if it may be."""
        find = self.places.devices.find
        for read in filter(self.places.is_main_output, self.places.reads):
            place = self.places.of_value.get(read.value)
            if place is not None and self.places.devices.scope(read.place).join(self._devices[find(place)]) is not None:
                self._devices[find(read.place)] = self._devices[find(place)]

    def _place_inputs(self) -> None:
        """Inputs that nothing places: on the host if it reads them, else where they are read first."""
        reads: dict[ir.Value, list[Read]] = {}
        for read in self.places.reads:
            if read.value in self.places.inputs and read.place != self.places.of_value[read.value]:
                reads.setdefault(read.value, []).append(read)
        for value, readers in reads.items():
            place = self.places.of_value[value]
            if self.places.devices.scope(place).is_free:
                wanted = [self._scope_at(read.place) for read in readers]
                host = next((scope for scope in wanted if scope.device == self.config.host.device), None)
                self._homes[place] = host or wanted[0]
            elif self.places.memories.scope(place).is_free:
                here = [s for s in (self._scope_at(r.place) for r in readers) if s.device == self._device_at(place)]
                if here:
                    self._homes[place] = here[0]

    # Look-ups ---------------------------------------------------------------------------------------------------------

    def _touches_host(self, read: Read) -> bool:
        """Return True if a use joins the host's places with others. Those within an island are of one scope anyway."""
        find = self.places.devices.find
        return find(read.place) in self._host_domains or find(self.places.of_value[read.value]) in self._host_domains

    def _device_at(self, place: int) -> SEScope:
        home = self._homes.get(place)
        return self._devices[self.places.devices.find(place)] if home is None else home.device

    def _scope_at(self, place: int) -> SEScope:
        """Device and memory of a place."""
        home = self._homes.get(place)
        if home is not None:
            return home
        device = self._devices[self.places.devices.find(place)]
        return self._stored(device, self.places.memories.scope(place).memory_scope)

    def _target_of(self, node: ir.Node) -> Target | None:
        """The target that is asked for, or that the kernel was compiled for; the finer one, if both."""
        function = self.model.functions.get(node.op_identifier())
        wishes = [asked_scope(node), planned_scope(node)] if node.metadata_props else []
        if function is not None and is_opaque(function):
            wishes.append(self.places.signature_of(function).scope)
        target: Target | None = None
        for wish in wishes:
            if wish is None or wish.target is None:
                continue
            if target is None or wish.target.refines(target):
                target = wish.target
            elif not target.refines(wish.target):
                one, other = f"{node.name!r} is to be compiled for {target}", f"and for {wish.target}"
                raise DeviceConflict(one, other, (), ("drop one of the two demands",))
        return target

    def _demanded(self, node: ir.Node) -> SEScope:
        place = self.places.of_node[node]
        device = self.places.devices.scope(place)
        memory = self.places.memories.scope(place).memory_scope
        return SEScope(device.device_type, device.virtual_device_id, self._target_of(node), memory)

    def _inside(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the values that control flow or a call consists of, without constants."""
        function = self.model.functions.get(node.op_identifier())
        graphs: Iterable[ir.Graph | ir.Function] = bodies(node) if function is None else (function,)
        return (inner for graph in graphs for inner in graph if inner in self._planned)

    def _explained(self, what: str, domains: Domains, place: int) -> list[str]:
        sources = domains.sources(place)
        if not sources:
            return []
        fixing, links = sources[0]
        lines = [f"  {step}" for step in render_links(links, self.places.describe)]
        return [*lines, f"  {self.places.describe(fixing.place)} has {what} {fixing.scope}: {fixing.cause}"]

    def _source_of(self, place: int) -> str:
        if place in self._homes:
            return "an input that is first read there"
        for domains in (self.places.devices, self.places.memories):
            sources = domains.sources(place)
            if sources:
                fixing = sources[0][0]
                return f"{self.places.describe(fixing.place)}: {fixing.cause}"
        return "default"
