"""From a model to places: equalities that must hold, those that should, and the readers of each value.

Each operator is a place: its operands and results lie where it runs. The exceptions are operands that the host reads,
results of control flow and of function calls, and arguments of kernels that demand a memory of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

import onnx_ir as ir

from collage._errors import ModelError, TargetError
from collage.device._annotations import (
    WHY,
    asked_scope,
    demanded_memory_scopes,
    is_result_fixed,
    planned_scope,
    planned_value_scope,
    required_output,
)
from collage.device._config import CompilationConfig
from collage.device._conflict import conflict_from
from collage.device._copy_op import copy_scopes, is_device_copy
from collage.device._domains import Clash, Domains
from collage.device._kernels import KernelSignature, is_opaque, kernel_signature
from collage.device._operators import has_host_result, host_operands, is_standard, unread_operands
from collage.device._scope import SEScope
from collage.graph import bodies, constant_tensor

__all__ = ["ANNOTATED", "PLANNED", "SHAPES", "Flow", "PlacementConstraints", "Read"]

ANNOTATED = "annotated on_device"
PLANNED = "planned by an earlier PlanDevices"
SHAPES = "computes shapes, on the host"

_LOOPS = ("Loop", "Scan", "SequenceMap")


class Flow(Enum):
    """The strength of the bond between a reader and the value that it reads."""

    FREE = auto()
    """Better in one place than copied."""

    CUT = auto()
    """Each where it is; a copy comes between if need be."""

    HARD = auto()
    """In one place: no copy is possible, or allowed."""


@dataclass(slots=True, eq=False)
class Read:
    """A use of a value.

    Attributes:
        value: The value that is read.
        place: The place from which the reader reads it.
        reader: The node that reads, or the graph of which it is an output.
        index: Index of the reader's input, or of the graph's output.
        graph: The graph in which the use stands.
        depth: Number of loops around it.
        flow: True if reader and value pull each other.
    """

    value: ir.Value
    place: int
    reader: ir.Node | ir.Graph
    index: int
    graph: ir.Graph
    depth: int
    flow: Flow

    @property
    def use(self) -> str:
        """The use, for people."""
        if isinstance(self.reader, ir.Node):
            return f"input {self.index} of {_text_of_node(self.reader)}"
        return f"output {self.index} of graph {self.reader.name!r}"

    def __str__(self) -> str:
        return f"{self.use} is {self.value.name!r}"


class PlacementConstraints:
    """The places of a model, with all hard constraints applied.

    Attributes:
        devices: Sets of places that share a device.
        memories: Sets of places that share a memory of it.
        host: The place of the host's own data.
        of_value: Places of values; constants have none, they are in every place that reads them.
        of_node: Places of nodes; control flow and calls have none.
        reads: Every use of a value whose data are read.
        inputs: Inputs of the main graph, which lie wherever their readers are unless something demands otherwise.
        constants: Values that lie wherever they are read, with their graphs.
        parents: The node that holds each body, by body.
        nodes: Every node that is planned, in order.
        copies: The explicit copies among them.
    """

    def __init__(self, model: ir.Model, config: CompilationConfig) -> None:
        """Walk a model.

        Raises:
            DeviceConflict: Hard constraints contradict each other.
            ModelError: A function calls itself.
            TargetError: A scope that cannot be read, or is not configured.
        """
        self.model, self.config = model, config
        self._device_of = lru_cache(maxsize=None)(config.device_of)
        self.devices, self.memories = Domains(), Domains()
        self.of_value: dict[ir.Value, int] = {}
        self.of_node: dict[ir.Node, int] = {}
        self.reads: list[Read] = []
        self.inputs: dict[ir.Value, None] = {}
        self.constants: dict[ir.Value, ir.Graph] = {}
        self.parents: dict[ir.Graph, ir.Node] = {}
        self.nodes: list[ir.Node] = []
        self.copies: list[ir.Node] = []
        self._owners: list[ir.Node | ir.Value | str] = []
        self._walked: list[ir.OperatorIdentifier] = []
        self._signatures: dict[ir.OperatorIdentifier, KernelSignature] = {}
        self._function_results: dict[ir.OperatorIdentifier, list[int]] = {}
        self._depth = 0
        self.host = self._add("the host")
        self.devices.fix(self.host, config.host.device, "the host")
        try:
            self._main_graph(model.graph)
            for identifier, function in model.functions.items():
                if not is_opaque(function):
                    self._results_of(identifier, function)
            for read in self.reads:
                if read.flow is Flow.HARD:
                    self._unify(self.of_value[read.value], read.place, f"{read}, {self._why_hard(read)}")
        except Clash as clash:
            raise conflict_from(clash, self.describe) from None

    @property
    def count(self) -> int:
        """The number of places, which are numbered from 0."""
        return len(self._owners)

    def describe(self, place: int) -> str:
        """A place, for people."""
        owner = self._owners[place]
        if isinstance(owner, ir.Node):
            return _text_of_node(owner)
        return f"value {owner.name!r}" if isinstance(owner, ir.Value) else owner

    def signature_of(self, function: ir.Function) -> KernelSignature:
        """Return the place where a kernel runs, and those where it reads."""
        identifier = function.identifier()
        if identifier not in self._signatures:
            self._signatures[identifier] = kernel_signature(function)
        return self._signatures[identifier]

    def is_main_output(self, read: Read) -> bool:
        """Return True if a use is an output of the model."""
        return read.reader is self.model.graph

    def graph_around(self, body: ir.Graph) -> ir.Graph:
        """The graph in which the node of a body stands."""
        graph = self.parents[body].graph
        assert graph is not None
        return graph.graph if isinstance(graph, ir.Function) else graph

    def is_loop_body(self, graph: ir.Graph) -> bool:
        """Return True if a body may run more than once."""
        parent = self.parents.get(graph)
        return parent is not None and parent.op_type in _LOOPS

    # Graphs -----------------------------------------------------------------------------------------------------------

    def _main_graph(self, graph: ir.Graph) -> None:
        for value in graph.inputs:
            self.inputs[value] = None
            self._fix_value(value, self._value_place(value))
        self._contents(graph)
        for index, value in enumerate(graph.outputs):
            wish = required_output(graph, str(value.name))
            if wish is None:
                continue
            place = self._add(f"output {value.name!r}")
            self._fix(place, wish, "demanded of the output")
            # An output that is an input cannot be a copy of it: both have one name.
            flow = Flow.HARD if value in self.inputs or not _can_be_copied(value) else Flow.CUT
            self.reads.append(Read(value, place, graph, index, graph, 0, flow))

    def _contents(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value in self.inputs:
                continue
            if asked_scope(value) is None:
                self.constants[value] = graph
            else:
                self._fix_value(value, self._value_place(value))
        for node in graph:
            self._node(node, graph)

    def _body(self, node: ir.Node, body: ir.Graph, results: list[int]) -> None:
        """A body whose outputs go to the given places."""
        self.parents[body] = node
        loop = node.op_type in _LOOPS
        self._depth += loop
        for value in body.inputs:
            self._fix_value(value, self.of_value[value])
        self._contents(body)
        for index, (value, place) in enumerate(zip(body.outputs, results, strict=False)):
            self._read(value, place, body, index, body)
        self._depth -= loop

    def _results_of(self, identifier: ir.OperatorIdentifier, function: ir.Function) -> list[int]:
        """The places of a function's results; walks its body the first time."""
        if identifier not in self._function_results:
            for value in function.inputs:
                self._fix_value(value, self._value_place(value))
            name = function.name
            results = [self._add(f"result {k} of function {name!r}") for k in range(len(function.outputs))]
            self._function_results[identifier] = results
            depth, self._depth = self._depth, 0
            self._walked.append(identifier)
            self._contents(function.graph)
            self._walked.pop()
            for index, value in enumerate(function.outputs):
                self._read(value, results[index], function.graph, index, function.graph)
            self._depth = depth
        elif identifier in self._walked:
            raise ModelError(f"function {function.name!r} calls itself, directly or through others")
        return self._function_results[identifier]

    # Nodes ------------------------------------------------------------------------------------------------------------

    def _node(self, node: ir.Node, graph: ir.Graph) -> None:
        if len(node.outputs) == 1 and constant_tensor(node.outputs[0]) is not None and asked_scope(node) is None:
            self.constants[node.outputs[0]] = graph
            return
        self.nodes.append(node)
        function = self.model.functions.get(node.op_identifier())
        if is_device_copy(node):
            self._copy(node)
        elif function is not None and is_opaque(function):
            self._kernel(node, function)
        elif function is not None:
            self._call(node, function)
        elif is_standard(node, "If"):
            self._if(node)
        elif is_standard(node, "Loop"):
            self._loop(node)
        elif is_standard(node, "Scan"):
            self._scan(node)
        elif is_standard(node, "SequenceMap"):
            self._sequence_map(node)
        else:
            self._operator(node)

    def _operator(self, node: ir.Node) -> None:
        place = self.of_node[node] = self._add(node)
        self._fix_node(node, place)
        if has_host_result(node) and self.devices.scope(place).is_free:
            self.devices.fix(place, self.config.host.device, SHAPES)
        for index, value in enumerate(node.outputs):
            self.of_value[value] = place
            if len(node.outputs) > 1:
                self._fix_output(node, index, value, place)
        on_host, unread = host_operands(node), unread_operands(node)
        for index, operand in enumerate(node.inputs):
            if operand is not None and index not in unread:
                self._read(operand, self.host if index in on_host else place, node, index, node.graph)
        for body in bodies(node):
            for formal in body.inputs:
                self.of_value[formal] = place
            self._body(node, body, [place] * len(body.outputs))

    def _fix_output(self, node: ir.Node, index: int, value: ir.Value, place: int) -> None:
        """One of several results: its device is the node's, its memory may be its own."""
        if asked_scope(value) == asked_scope(node) and planned_value_scope(value) == planned_scope(node):
            return
        own = self.of_value[value] = self._add(value)
        self.devices.unify(own, place, f"they are both results of {_text_of_node(node)}")
        self._fix_value(value, own)

    def _copy(self, node: ir.Node) -> None:
        """Add a copy that the model holds already: two places, each with its own scope."""
        self.copies.append(node)
        src, dst = copy_scopes(node)
        result = self.of_node[node] = self.of_value[node.outputs[0]] = self._add(node)
        self._fix(result, dst, "the destination of a device_copy")
        (operand,) = node.inputs
        assert operand is not None
        source = self.of_value.get(operand)
        if source is None or not src.is_free:
            source = self._add(f"the source of {_text_of_node(node)}")
            self._fix(source, src, "the source of a device_copy")
        self._read(operand, source, node, 0, node.graph)

    def _kernel(self, node: ir.Node, function: ir.Function) -> None:
        """A call of a kernel: one device, but each argument and result may demand a memory."""
        signature = self.signature_of(function)
        place = self.of_node[node] = self._add(node)
        self._fix(place, signature.scope, f"what kernel {function.name!r} is compiled for")
        self._fix_node(node, place)
        demands = demanded_memory_scopes(function)
        for index, value in enumerate(node.outputs):
            formal = str(function.outputs[index].name)
            own = self.of_value[value] = self._slot(node, place, demands, formal, f"result {index}")
            if index in signature.host_results:
                self.of_value[value] = self.host
            elif own != place:
                self._fix_value(value, own)
        for index, operand in enumerate(node.inputs):
            if operand is None or index in signature.unread:
                continue
            formal = str(function.inputs[index].name)
            own = self.host
            if index not in signature.host_operands:
                own = self._slot(node, place, demands, formal, f"argument {index}")
            self._read(operand, own, node, index, node.graph)

    def _slot(self, node: ir.Node, place: int, demands: dict[str, str], formal: str, what: str) -> int:
        """Return the place of an argument or result of a kernel: the kernel's own place unless memories are demanded."""
        if not demands:
            return place
        own = self._add(f"{what} of {_text_of_node(node)}")
        self.devices.unify(own, place, f"{what} lies where kernel {_text_of_node(node)} runs")
        if formal in demands:
            demand = SEScope(memory_scope=demands[formal])
            self.memories.fix(own, demand, f"kernel {node.op_type!r} demands it of {formal!r}")
        return own

    def _call(self, node: ir.Node, function: ir.Function) -> None:
        results = self._results_of(node.op_identifier(), function)
        for index, operand in enumerate(node.inputs):
            if operand is not None and index < len(function.inputs):
                self._read(operand, self.of_value[function.inputs[index]], node, index, node.graph)
        for index, value in enumerate(node.outputs):
            place = self.of_value[value] = self._add(value)
            cause = f"result {index} of {_text_of_node(node)} is result {index} of function {function.name!r}"
            self._unify(place, results[index], cause)
            self._fix_value(value, place)

    def _if(self, node: ir.Node) -> None:
        results = self._results(node)
        self._operand(node, 0, self.host)
        for body in bodies(node):
            self._body(node, body, results)

    def _loop(self, node: ir.Node) -> None:
        """A Loop: each carried value has one place, before, in and after the loop."""
        results = self._results(node)
        (body,) = bodies(node)
        carried = len(body.inputs) - 2
        for formal, place in zip(body.inputs, (self.host, self.host, *results), strict=False):
            self.of_value[formal] = place
        self._operand(node, 0, self.host)
        self._operand(node, 1, self.host)
        for index in range(carried):
            self._operand(node, 2 + index, results[index])
        self._body(node, body, [self.host, *results])

    def _scan(self, node: ir.Node) -> None:
        results = self._results(node)
        (body,) = bodies(node)
        states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
        first = len(node.inputs) - len(body.inputs)  # opset 8 has an input before the states
        for index, formal in enumerate(body.inputs):
            place = self.of_value[formal] = results[index] if index < states else self._add(formal)
            self._operand(node, first + index, place)
        self._body(node, body, results)

    def _sequence_map(self, node: ir.Node) -> None:
        results = self._results(node)
        (body,) = bodies(node)
        for index, formal in enumerate(body.inputs):
            self._operand(node, index, self._value_place(formal))
        self._body(node, body, results)

    def _results(self, node: ir.Node) -> list[int]:
        places = [self._value_place(value) for value in node.outputs]
        for value, place in zip(node.outputs, places, strict=True):
            self._fix_value(value, place)
        return places

    def _operand(self, node: ir.Node, index: int, place: int) -> None:
        operand = node.inputs[index] if index < len(node.inputs) else None
        if operand is not None:
            self._read(operand, place, node, index, node.graph)

    # Constraints ------------------------------------------------------------------------------------------------------

    def _add(self, owner: ir.Node | ir.Value | str) -> int:
        self._owners.append(owner)
        self.memories.add()
        return self.devices.add()

    def _value_place(self, value: ir.Value) -> int:
        place = self.of_value[value] = self._add(value)
        return place

    def _fix(self, place: int, scope: SEScope, cause: str) -> None:
        """Constrain device and memory; a target alone means the devices that are configured for it."""
        try:
            device = self._device_of(scope)
        except TargetError as error:
            raise TargetError(f"{self.describe(place)}: {error}") from None
        self.devices.fix(place, device, cause)
        if scope.memory_scope is not None:
            self.memories.fix(place, SEScope(memory_scope=scope.memory_scope), cause)

    def _fix_node(self, node: ir.Node, place: int) -> None:
        if not node.metadata_props:
            return
        if (asked := asked_scope(node)) is not None:
            self._fix(place, asked, ANNOTATED)
        if (planned := planned_scope(node)) is not None:
            self._fix(place, planned, _planned_why(node))

    def _fix_value(self, value: ir.Value, place: int) -> None:
        if (asked := asked_scope(value)) is not None:
            self._fix(place, asked, ANNOTATED)
        if (planned := planned_value_scope(value)) is not None:
            self._fix(place, planned, _planned_why(value.producer()))

    def _unify(self, one: int, other: int, cause: str) -> None:
        self.devices.unify(one, other, cause)
        self.memories.unify(one, other, cause)

    def _read(
        self, value: ir.Value, place: int, reader: ir.Node | ir.Graph, index: int, graph: ir.Graph | ir.Function | None
    ) -> None:
        own = graph.graph if isinstance(graph, ir.Function) else graph
        assert own is not None
        self.reads.append(Read(value, place, reader, index, own, self._depth, self._flow(value, place)))

    def _flow(self, value: ir.Value, place: int) -> Flow:
        if value in self.constants:
            return Flow.CUT
        if is_result_fixed(value) or not _can_be_copied(value):
            return Flow.HARD
        # Whatever reads an input, or an annotated value, is not bound by where that is.
        if value in self.inputs or place == self.host or asked_scope(value) is not None:
            return Flow.CUT
        return Flow.FREE

    def _why_hard(self, read: Read) -> str:
        if is_result_fixed(read.value):
            return "has a fixed scope for its reader"
        return "which cannot be copied" if not _can_be_copied(read.value) else "an input of the same name"


def _can_be_copied(value: ir.Value) -> bool:
    """Tensors of numbers can; sequences, optionals, maps and strings stay where they are."""
    if value.type is not None:
        return isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.STRING
    node = value.producer()
    return node is None or not node.op_type.startswith(("Sequence", "SplitToSequence", "Optional", "String"))


def _planned_why(node: ir.Node | None) -> str:
    """Return the reason of an earlier plan for a place."""
    why = None if node is None else node.metadata_props.get(WHY)
    return PLANNED if why is None else f"{PLANNED}: {why}"


def _text_of_node(node: ir.Node) -> str:
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"{name!r} ({node.op_type})"
