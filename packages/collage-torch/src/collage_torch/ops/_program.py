"""A kernel as a torch module: the table's entries in order, constants bound."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from collage.toolchains import Unsupported
from collage.toolchains.sdk.model_files import elem_type
from collage_torch.ops._dtypes import TYPES, constant_array, from_array
from collage_torch.ops._table import HOST_OPS, OPS, Call

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Fused", "Program", "Step", "unsupported"]

_OLDEST_OPSET = 7
"""Broadcasting was another before."""

_MAKES_SHAPES = frozenset(("Shape", "Size"))


@dataclass(slots=True)
class Step:
    """One call of a program.

    Attributes:
        function: The function to call.
        inputs: Slots that it reads; -1 is an input left out.
        outputs: Slots that it writes.
        single: True if it returns its only output directly, not in a tuple.
    """

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    single: bool


def unsupported(node: ir.Node, version: int | None = None) -> str | None:
    """Return the reason why the table does not take a node, or None. Reasons in shapes show when it is run."""
    import onnx_ir as ir

    if node.domain not in ("", "ai.onnx"):
        return f"torch has no {node.domain}.{node.op_type}"
    if node.op_type not in OPS and node.op_type not in _MAKES_SHAPES:
        return f"{node.op_type} is not in the table of torch calls"
    if version is not None and version < _OLDEST_OPSET:
        return f"opset {version} is older than {_OLDEST_OPSET}"
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            return f"torch computes with tensors only ({value.name!r} is {value.type})"
        dtype = elem_type(value)
        if dtype is not None and int(dtype) not in TYPES:
            return f"torch does not compute in {dtype.name.lower()} ({value.name!r})"
    return None


class Program(torch.nn.Module):  # type: ignore[misc]
    """A kernel whose ``forward`` takes and returns tensors in the order of the kernel's inputs and outputs.

    Attributes:
        steps: Calls, in order.
        reads_values_on_host: True if a shape or an axis is computed from the values of an input, not only from its shape.

    Args:
        model: The kernel.
        fuse: Finds groups of nodes that are one call; None merges nothing.

    Raises:
        Unsupported: It has an operator or a type that the table does not take.
    """

    def __init__(self, model: ir.Model, fuse: Callable[[ir.Graph], Sequence[Fused]] | None = None) -> None:
        super().__init__()
        version = model.opset_imports.get("", _OLDEST_OPSET)
        for node in model.graph:
            if (reason := unsupported(node, version)) is not None:
                raise Unsupported(reason)
        self._version = version
        self._slots: dict[tuple[ir.Value, bool], int] = {}
        self._on_host: set[ir.Value] = set()
        self._initial: list[Any] = []
        self._frozen: set[int] = set()
        self.steps: list[Step] = []
        self._input_slots = [self._new(value, False) for value in model.graph.inputs]
        self._add_all(model.graph, {fused.last: fused for fused in (fuse(model.graph) if fuse else ())})
        self._output_slots = [self._slot(value, False) for value in model.graph.outputs]
        self.steps = list(self._with_weights_folded(self.steps))
        self._initial.append(None)  # what a left-out input, slot -1, reads
        self._plan = tuple(
            (step.function, step.inputs, step.outputs, step.single, done)
            for step, done in zip(self.steps, _last_uses(self.steps, self._output_slots), strict=True)
        )
        self.reads_values_on_host = any(step.function is _to_host for step in self.steps)

    def constants(self) -> list[Any]:
        """The tensors that are bound. Not buffers: exported modules would hold them twice."""
        return [x for x in self._initial if isinstance(x, torch.Tensor)]

    def place(self, device: str) -> None:
        """Move the constants to a device."""
        self._initial = [x.to(device) if isinstance(x, torch.Tensor) else x for x in self._initial]

    def forward(self, *inputs: Any) -> list[Any]:
        """Run the steps."""
        values = self._initial.copy()
        for slot, x in zip(self._input_slots, inputs, strict=True):
            values[slot] = x
        for function, reads, writes, single, done in self._plan:
            result = function(*[values[slot] for slot in reads])
            if single:
                values[writes[0]] = result
            else:
                for slot, value in zip(writes, result, strict=False):
                    values[slot] = value
            for slot in done:
                values[slot] = None
        return [values[slot] for slot in self._output_slots]

    def _add_all(self, graph: ir.Graph, fused: dict[ir.Node, Fused]) -> None:
        merged = {node for each in fused.values() for node in each.nodes}
        for node in graph:
            if node in fused:
                each = fused[node]
                inputs = tuple(-1 if value is None else self._slot(value, False) for value in each.inputs)
                made = tuple(self._new(value, False) for value in node.outputs[: _used_outputs(node)])
                self.steps.append(Step(each.function, inputs, made, node.op_type not in _ALWAYS_TUPLES))
            elif node not in merged:
                self._add(node)

    def _add(self, node: ir.Node) -> None:
        host = self._is_shape_arithmetic(node)
        entry = None if host else OPS[node.op_type]
        outputs = _used_outputs(node)
        slots, frozen = [], []
        for i, value in enumerate(node.inputs):
            if entry is None:
                wants_host = host and node.op_type not in _MAKES_SHAPES
            else:
                constant = None if value is None else value.const_value
                number = constant is not None and constant.size == 1
                wants_host = i in entry.host or (number and i in entry.host_constants)
            slots.append(-1 if value is None else self._slot(value, wants_host))
            if value is not None and slots[-1] in self._frozen:
                frozen.append(i)
            if value is None:
                frozen.append(i)
        frozen += range(len(node.inputs), 8)
        call = Call(node.op_type, self._version, _attributes(node), outputs, frozenset(frozen))
        function = functools.partial(HOST_OPS[node.op_type] if entry is None else entry.function, call)
        if host:
            self._on_host.add(node.outputs[0])
        made = tuple(self._new(value, host) for value in node.outputs[:outputs])
        single = outputs == 1 and node.op_type not in _ALWAYS_TUPLES
        self.steps.append(Step(function, tuple(slots), made, single))

    def _is_shape_arithmetic(self, node: ir.Node) -> bool:
        if node.op_type in _MAKES_SHAPES:
            return True
        given = [value for value in node.inputs if value is not None]
        known = all(value in self._on_host or _is_small_integer(value) for value in given)
        return known and any(value in self._on_host for value in given) and node.op_type in HOST_OPS

    def _new(self, value: ir.Value, host: bool, content: Any = None) -> int:
        slot = len(self._initial)
        self._initial.append(content)
        self._slots[value, host] = slot
        return slot

    def _slot(self, value: ir.Value, host: bool) -> int:
        """The slot of a value, as a tensor or as a host array; converts where it only exists as the other."""
        if (value, host) in self._slots:
            return self._slots[value, host]
        if value.const_value is not None:
            array = constant_array(value.const_value)
            slot = self._new(value, host, array if host else from_array(array))
            self._frozen.add(slot)
            return slot
        source = self._slots[value, not host]
        slot = self._new(value, host)
        self.steps.append(Step(_to_host if host else _to_device, (source,), (slot,), True))
        return slot

    def _with_weights_folded(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Steps whose inputs are all constants run once, now."""
        for step in steps:
            if not step.inputs or not all(i < 0 or i in self._frozen for i in step.inputs):
                yield step
                continue
            result = step.function(*[self._initial[i] if i >= 0 else None for i in step.inputs])
            for slot, value in zip(step.outputs, (result,) if step.single else result, strict=False):
                self._initial[slot] = value
                self._frozen.add(slot)


@dataclass(frozen=True)
class Fused:
    """Several nodes as one call.

    Attributes:
        nodes: All of them.
        last: The one whose outputs it has.
        inputs: Values that the call reads; None for inputs that are left out.
        function: The function to call, with tensors; returns the same as the last node's entry.
    """

    nodes: tuple[ir.Node, ...]
    last: ir.Node
    inputs: tuple[ir.Value | None, ...]
    function: Callable[..., Any]


_ALWAYS_TUPLES = frozenset(("DynamicQuantizeLinear", "GRU", "LSTM", "RNN", "Split", "TopK"))


def _used_outputs(node: ir.Node) -> int:
    """Number of outputs up to the last one that anybody reads."""
    if node.op_type == "Split":
        return len(node.outputs)
    used = [i for i, v in enumerate(node.outputs) if v.uses() or v.is_graph_output()]
    return max(used, default=0) + 1


def _is_small_integer(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_integer() and len(tensor.shape) <= 1


def _to_host(x: Any) -> Any:
    return x.detach().cpu().numpy()


def _to_device(x: Any) -> Any:
    if x.dtype == object:
        return torch.stack([torch.as_tensor(size) for size in x.reshape(-1)]).reshape(x.shape)
    return torch.from_numpy(np.array(x)).to(torch.get_default_device())


def _attributes(node: ir.Node) -> dict[str, Any]:
    import onnx_ir as ir

    result: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.TENSOR:
            result[name] = attribute.as_tensor().numpy()
        else:
            value = attribute.value
            result[name] = list(value) if isinstance(value, tuple | list) else value
    return result


def _last_uses(steps: Sequence[Step], outputs: Sequence[int]) -> list[tuple[int, ...]]:
    """Slots without a reader after each step, whose memory can be reused."""
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        last.update(dict.fromkeys(step.inputs, index))
        last.update({slot: index for slot in step.outputs if slot not in last})
    made = {slot for step in steps for slot in step.outputs} - set(outputs)
    plan: list[list[int]] = [[] for _ in steps]
    for slot in made:
        plan[last[slot]].append(slot)
    return [tuple(slots) for slots in plan]
