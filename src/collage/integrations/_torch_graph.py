"""A graph that Dynamo traced, as a function without side effects. Its effects are applied after each call.

ONNX models are functions: they change nothing and their outputs share no memory. PyTorch's graphs may write to their
arguments, and may return views of these or of each other. So a graph is taken apart here. ``PureGraph.program``
computes the new contents of tensors that are written to, and the outputs that are new tensors. ``PureGraph.finish``
writes the contents back, and returns the outputs as PyTorch lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from collage._errors import ModelError
from collage.integrations._graph_cache import GraphFacts
from collage.integrations._length_guards import guards_of, hold
from collage.integrations._lifted_weights import WEIGHT_MARK

__all__ = ["PureGraph", "exported_bound", "weights_of"]

_RANDOM = torch.Tag.nondeterministic_seeded
_KEPT_LENGTHS = 1024
"""So many sets of lengths are remembered before all are forgotten."""


class PureGraph:
    """A graph without its side effects.

    Args:
        graph: The graph that Dynamo traced.
        arguments: The arguments of the call.
        known: Findings of another process about the same graph.

    Attributes:
        takes: Positions of the arguments that the program takes. The others are lengths of these.
        written: Positions of the arguments that the graph writes to.
        returns: Names of the program's outputs.
        unique: Names of the program's outputs, each once.
        guards: Conditions on the arguments that the program takes.
        has_work: The graph computes something, rather than only making views.

    Raises:
        ModelError: The graph cannot be taken apart; the message says why.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        known: GraphFacts | None = None,
    ) -> None:
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._graph = graph
        self._fakes = [node.meta.get("example_value") for node in nodes]
        (results,) = next(node for node in graph.graph.nodes if node.op == "output").args
        self._weights = weights_of(graph, arguments)
        self._results = [r.meta.get("example_value") if isinstance(r, torch.fx.Node) else r for r in results]
        self._symbols = _symbols(self._fakes)
        self._known_layouts: dict[tuple[int, ...], list[_Layout | None]] = {}
        self._check_metadata(arguments)
        for fake in self._results:
            _check_result(fake)
        self._shared = self._sharing()
        self._fresh = [
            i for i, fake in enumerate(self._results) if isinstance(fake, torch.Tensor) and i not in self._shared
        ]
        derived = {i for i, fake in enumerate(self._fakes) if self._is_derived(i, fake)}
        self.takes = [i for i in range(len(nodes)) if i not in derived]
        self._program: torch.export.ExportedProgram | None = None
        if known is None:
            self._export(arguments)
        else:
            self.returns, self.written, self.guards = list(known.returns), list(known.written), known.guards
        self.unique = list(dict.fromkeys(self.returns))
        self._places = [self.unique.index(name) for name in self.returns]
        self._is_plain = not self.written and len(self._fresh) == len(self._results)
        self.has_work = bool(self.written or self._fresh)
        self._layouts(arguments)

    def program(self, arguments: Sequence[Any]) -> torch.export.ExportedProgram:
        """Return the function. It takes the selected arguments, and returns written tensors, then new outputs."""
        if self._program is None:
            self._export(arguments)
        assert self._program is not None
        return self._program

    def _export(self, arguments: Sequence[Any]) -> None:
        taken = tuple(_detached(arguments[i]) for i in self.takes)
        function = _Outputs(self._graph, self, len(self._fakes))
        shapes = tuple(_dynamic(self._fakes[i]) for i in self.takes)
        program = _export(function, taken, shapes, functional=True)
        self.guards = _guards(program)
        program.example_inputs = None  # They would keep weights in memory.
        names = [spec.arg.name for spec in program.graph_signature.input_specs if _is_user_input(spec)]
        returns = [spec.arg.name for spec in program.graph_signature.output_specs]
        mutated = program.graph_signature.user_inputs_to_mutate
        written = [self.takes[names.index(name)] for name in mutated.values()]
        if program.graph_signature.buffers_to_mutate:
            raise ModelError("it writes to a constant of its own")
        _check_deterministic(program)
        self.returns, self.written, self._program = returns, written, program

    def lengths(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return the values of all symbols of the graph."""
        if not self._symbols:
            return ()
        return tuple(int(arguments[i] if dim is None else arguments[i].shape[dim]) for i, dim in self._symbols.values())

    def is_weight(self, position: int) -> bool:
        """Return if an argument is a parameter or a buffer of a module."""
        return position in self._weights

    def allows(self, arguments: Sequence[Any]) -> bool:
        """Return True if the program fits the graph at these arguments. It may not fit at every length."""
        return hold(self.guards, [arguments[i] for i in self.takes])

    def restored(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return results of the program as they are when each is there as often as the program returns it."""
        return [results[i] for i in self._places]

    def overlaps(self, arguments: Sequence[Any]) -> bool:
        """Return if memory that the graph writes to is also that of another argument."""
        if not self.written:
            return False
        stores = [a.untyped_storage().data_ptr() for a in arguments if isinstance(a, torch.Tensor) and a.numel()]
        written = {arguments[i].untyped_storage().data_ptr() for i in self.written if arguments[i].numel()}
        return any(stores.count(store) > 1 for store in written)

    def outputs_of(self, results: Sequence[Any]) -> list[Any]:
        """Return those of the graph's outputs that are new tensors."""
        return [results[i] for i in self._fresh]

    def finish(self, arguments: Sequence[Any], computed: Sequence[torch.Tensor]) -> list[Any]:
        """Write back the tensors that the graph changes, and return its outputs.

        Args:
            arguments: The arguments of the graph.
            computed: Outputs of the program.
        """
        layouts = self._layouts(arguments)
        if self._is_plain and not any(layouts):
            return list(computed)
        for i, value in zip(self.written, computed, strict=False):
            arguments[i].copy_(value)
        fresh = dict(zip(self._fresh, computed[len(self.written) :], strict=True))
        memory: dict[int, torch.Tensor] = {}
        results = []
        for i, (fake, layout) in enumerate(zip(self._results, layouts, strict=True)):
            if not isinstance(fake, torch.Tensor):
                results.append(self._number(fake, arguments))
            elif i in self._shared:
                results.append(self._view(arguments, i, layout))
            else:
                results.append(fresh[i] if layout is None else layout.place(fresh[i], memory))
        return results

    def _check_metadata(self, arguments: Sequence[Any]) -> None:
        """Raise ModelError if the graph gives an argument another shape, or asks for its gradients."""
        for fake, value in zip(self._fakes, arguments, strict=True):
            if not isinstance(fake, torch.Tensor | torch.SymInt | int):
                raise ModelError(f"it takes {value!r}, which is neither a tensor nor a length")
            if isinstance(fake, torch.Tensor):
                layout = (self._concrete(fake.shape, arguments), self._concrete(fake.stride(), arguments))
                if layout != (tuple(value.shape), tuple(value.stride())):
                    raise ModelError("it changes the shape of a tensor in place")
                if fake.requires_grad != value.requires_grad:
                    raise ModelError("it has gradients computed; run it under torch.no_grad()")

    def _is_derived(self, position: int, fake: Any) -> bool:
        """Return if an argument is the length of another one, or a length that turned out to be fixed."""
        if not isinstance(fake, torch.SymInt):
            return False
        where = self._symbols.get(fake.node.expr)
        return not _varies(fake) or (where is not None and where[1] is not None)

    def _sharing(self) -> dict[int, int]:
        """Return the outputs that lie in the memory of an argument, each with the position of that argument."""
        owners: dict[int, list[int]] = {}
        for i, fake in enumerate(self._fakes):
            if isinstance(fake, torch.Tensor):
                owners.setdefault(fake.untyped_storage()._cdata, []).append(i)
        same = {id(fake): i for i, fake in enumerate(self._fakes)}
        shared = {}
        for i, fake in enumerate(self._results):
            if isinstance(fake, torch.Tensor) and (sharers := owners.get(fake.untyped_storage()._cdata)):
                owner = shared[i] = same.get(id(fake), sharers[0])
                if len(sharers) > 1 and id(fake) not in same:
                    # The arguments of a later call may share none, and the graph does not tell which one it is a view of.
                    raise ModelError("an output is memory that two arguments share")
                if fake.dtype != self._fakes[owner].dtype or fake.is_conj() or fake.is_neg():
                    raise ModelError("an output is memory of an argument under another type")
        return shared

    def _view(self, arguments: Sequence[Any], position: int, layout: _Layout | None) -> torch.Tensor:
        owner = self._shared[position]
        value: torch.Tensor = arguments[owner]
        if self._results[position] is self._fakes[owner]:
            return value
        assert layout is not None
        (begin,) = self._concrete([self._fakes[owner].storage_offset()], arguments)
        return value.as_strided(layout.shape, layout.strides, value.storage_offset() + layout.offset - begin)

    def _layouts(self, arguments: Sequence[Any]) -> list[_Layout | None]:
        """Return how each output lies in memory; None is row-major and alone."""
        key = self.lengths(arguments)
        if key not in self._known_layouts:
            _forget_some(self._known_layouts)
            self._known_layouts[key] = self._laid_out(arguments)
        return self._known_layouts[key]

    def _laid_out(self, arguments: Sequence[Any]) -> list[_Layout | None]:
        stores = [fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) else None for fake in self._results]
        layouts: list[_Layout | None] = []
        for i, (fake, store) in enumerate(zip(self._results, stores, strict=True)):
            if not isinstance(fake, torch.Tensor):
                layouts.append(None)
                continue
            is_alone = stores.count(store) == 1 and i not in self._shared
            try:
                shape, strides = (self._concrete(x, arguments) for x in (fake.shape, fake.stride()))
                (offset,) = self._concrete([fake.storage_offset()], arguments)
            except ModelError:
                if not is_alone:
                    raise
                layouts.append(None)  # Lengths that depend on data.
                continue
            if is_alone and _is_row_major(shape, strides):
                layouts.append(None)
                continue
            together = [self._results[j] for j, other in enumerate(stores) if other == store]
            if any(one.dtype != fake.dtype for one in together):
                raise ModelError("two outputs are the same memory under different types")
            ends = [_end(*(self._concrete(x, arguments) for x in _extent(one))) for one in together]
            layouts.append(_Layout(shape, strides, offset, max(ends), i if is_alone else int(store or 0)))
        return layouts

    def _number(self, value: Any, arguments: Sequence[Any]) -> Any:
        return self._concrete([value], arguments)[0] if isinstance(value, torch.SymInt) else value

    def _concrete(self, lengths: Sequence[Any], arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return lengths as they are for these arguments."""
        return tuple(n if type(n) is int else _value(n, self._symbols, arguments) for n in lengths)


class _Layout:
    """The memory layout of an output. Several outputs may share one block of memory."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, end: int, store: int) -> None:
        self.shape, self.strides, self.offset = shape, strides, offset
        self._end, self._store = end, store

    def place(self, value: torch.Tensor, memory: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return a value at its place in memory that is made when the first of its outputs comes."""
        if self._store not in memory:
            memory[self._store] = torch.empty(self._end, dtype=value.dtype)
        return memory[self._store].as_strided(self.shape, self.strides, self.offset).copy_(value)


class _Outputs(torch.nn.Module):  # type: ignore[misc]
    """A graph that takes no lengths of its arguments, and returns only outputs that are new tensors."""

    def __init__(self, graph: torch.fx.GraphModule, pure: PureGraph, count: int) -> None:
        super().__init__()
        self._graph = graph
        self._pure = [pure]
        self._count = count

    def forward(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Call the graph."""
        (pure,) = self._pure
        values: list[Any] = [None] * self._count
        for i, value in zip(pure.takes, arguments, strict=True):
            values[i] = value
        for i, fake in enumerate(pure._fakes):
            if i not in pure.takes and _varies(fake):
                source, dim = pure._symbols[fake.node.expr]
                values[i] = values[source].shape[dim]
            elif i not in pure.takes:
                values[i] = int(fake.node.expr)
        return pure.outputs_of(self._graph(*values))


class _Bound(torch.nn.Module):  # type: ignore[misc]
    """A program some of whose arguments are constants. It returns no tensor twice, and none of its arguments."""

    def __init__(
        self, pure: PureGraph, program: torch.export.ExportedProgram, bound: Mapping[int, torch.Tensor]
    ) -> None:
        super().__init__()
        names = pure.returns
        self._chosen = [names.index(name) for name in pure.unique]
        inputs = {spec.arg.name for spec in program.graph_signature.input_specs}
        self._is_input = [name in inputs for name in pure.unique]
        self._function = program.graph_module
        self._feed: list[str | int] = []
        position = waiting = 0
        for n, spec in enumerate(program.graph_signature.input_specs):
            if not _is_user_input(spec):
                constant = program.state_dict.get(spec.target)
                self._constant(f"constant_{n}", program.constants[spec.target] if constant is None else constant)
            elif position in bound:
                self._constant(f"weight_{position}", bound[position])
                position += 1
            else:
                self._feed.append(waiting)
                position, waiting = position + 1, waiting + 1

    def forward(self, varying: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Call the program."""
        results = self._function(*[getattr(self, one) if isinstance(one, str) else varying[one] for one in self._feed])
        chosen = zip(self._chosen, self._is_input, strict=True)
        return tuple(results[i].clone() if is_input else results[i] for i, is_input in chosen)

    def _constant(self, name: str, tensor: torch.Tensor) -> None:
        self.register_buffer(name, tensor.detach())
        self._feed.append(name)


def weights_of(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> set[int]:
    """Return the positions of those arguments of a graph that are parameters and buffers of modules."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    marked = {i for i, node in enumerate(nodes) if WEIGHT_MARK in node.meta.get("tensor_dict", ())}
    return marked | {i for i, value in enumerate(arguments) if isinstance(value, torch.nn.Parameter)}


def exported_bound(
    pure: PureGraph, arguments: Sequence[Any], bound: Sequence[int]
) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """Return the program of a graph with constants in place of some arguments, and the conditions on its arguments.

    Args:
        pure: The graph.
        arguments: The arguments of the call.
        bound: Positions of those that become constants; the others stay inputs, in order.

    Raises:
        ModelError: PyTorch cannot export it.
    """
    weights = {n: arguments[i] for n, i in enumerate(pure.takes) if i in bound}
    varying = [i for i in pure.takes if i not in bound]
    shapes = tuple(_dynamic(pure._fakes[i]) for i in varying)
    program = _export(
        _Bound(pure, pure.program(arguments), weights), tuple(_detached(arguments[i]) for i in varying), shapes
    )
    return program, _guards(program)


def _export(module: torch.nn.Module, arguments: tuple[Any, ...], shapes: Any, functional: bool = False) -> Any:
    # Late: a graph from the cache is not exported, and needs no library for models.
    from collage.frontend._torch import quiet_export, reason_of

    try:
        with torch.no_grad(), quiet_export():
            program = torch.export.export(module, (arguments,), dynamic_shapes=(shapes,), strict=False)
            return program.run_decompositions({}) if functional else program
    except Exception as error:
        raise ModelError(f"PyTorch cannot export it: {reason_of(error)}") from error


def _guards(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    from collage.frontend._torch import quiet_export  # Late for the same reason.

    with quiet_export():
        return guards_of(program)


def _symbols(fakes: Sequence[Any]) -> dict[Any, tuple[int, int | None]]:
    """Return where the value of each symbol is found: in a dimension of an argument, or as an argument itself."""
    found: dict[Any, tuple[int, int | None]] = {}
    for i, fake in enumerate(fakes):
        if isinstance(fake, torch.Tensor):
            for dim, length in enumerate(fake.shape):
                if isinstance(length, torch.SymInt) and length.node.expr.is_symbol:
                    found.setdefault(length.node.expr, (i, dim))
    for i, fake in enumerate(fakes):
        if isinstance(fake, torch.SymInt) and fake.node.expr.is_symbol:
            found.setdefault(fake.node.expr, (i, None))
    return found


def _value(length: Any, symbols: Mapping[Any, tuple[int, int | None]], arguments: Sequence[Any]) -> int:
    expression = length.node.expr
    values = {}
    for symbol in expression.free_symbols:
        if symbol not in symbols:
            raise ModelError("the memory that outputs share depends on data")
        i, dim = symbols[symbol]
        values[symbol] = int(arguments[i] if dim is None else arguments[i].shape[dim])
    return int(expression.subs(values))


def _dynamic(fake: Any) -> Any:
    """Return the varying dimensions of an argument, in the form of ``torch.export``."""
    if isinstance(fake, torch.SymInt):
        return torch.export.Dim.DYNAMIC
    if not isinstance(fake, torch.Tensor):
        return None
    return {dim: torch.export.Dim.DYNAMIC for dim, n in enumerate(fake.shape) if _varies(n)} or None


def _varies(length: Any) -> bool:
    """Return True if a length is symbolic, and Dynamo did not fix it later."""
    return isinstance(length, torch.SymInt) and bool(length.node.expr.free_symbols)


def _check_result(fake: Any) -> None:
    if fake is None or isinstance(fake, torch.SymInt | int):
        return
    if not isinstance(fake, torch.Tensor):
        raise ModelError(f"it returns {fake!r}, which is neither a tensor nor a length")
    if fake.requires_grad and not fake.is_leaf:
        raise ModelError("gradients may be requested; run it under torch.no_grad() or torch.inference_mode()")
    if fake.layout is not torch.strided or fake.device.type != "cpu":
        raise ModelError(f"an output is a {fake.layout} tensor on {fake.device}")


def _check_deterministic(program: torch.export.ExportedProgram) -> None:
    """Raise ModelError if a program draws random numbers."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.op == "call_function" and _is_random(node):
                raise ModelError(f"{node.target} draws random numbers; evaluation mode, module.eval(), has no dropout")


def _is_random(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    given = {
        argument.name: node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        for i, argument in enumerate(schema.arguments)
    }
    is_training = given.get("train", given.get("training", True))
    share = given.get("dropout_p", given.get("dropout", given.get("p")))
    if is_training is False or share == 0:
        return False
    # Recurrent layers with dropout are not tagged.
    return _RANDOM in getattr(node.target, "tags", ()) or ("dropout" in given and is_training is True)


def _is_user_input(spec: Any) -> bool:
    return bool(spec.kind == InputKind.USER_INPUT)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return 0 in shape
        expected *= length
    return True


def _extent(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return fake.shape, fake.stride(), [fake.storage_offset()]


def _end(shape: Sequence[int], strides: Sequence[int], offset: Sequence[int]) -> int:
    """Return where a tensor's memory ends, in elements."""
    if 0 in shape:
        return offset[0]
    return offset[0] + 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def _forget_some(known: dict[tuple[int, ...], Any]) -> None:
    if len(known) >= _KEPT_LENGTHS:
        known.clear()
