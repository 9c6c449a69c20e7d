"""Single assignment, defined inputs, no cycles: checked by us, because not every reader does.

A body may define a name that an outer graph defines too, as ONNX Runtime has it: the inner value is meant in all of the body.
Names are made unique later.

One toolchain of the menu accepts cyclic graphs, and another duplicate outputs; both are refused here, before any of
them sees the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
import onnx.defs

from collage._errors import ModelError
from collage.frontend._nodes import bodies_of, node_label
from collage.frontend.contrib_ops import is_contributed

__all__ = ["check_structure"]

_Visible = tuple[dict[str, int], ...]
"""The names that each enclosing graph defines, outermost first; not merged, since bodies may be many."""

_CONSTANTS = (("Constant", ""), ("Constant", "ai.onnx"))
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")


def check_structure(model: onnx.ModelProto) -> None:
    """Refuse a model whose graphs, bodies or functions are not well-formed.

    Raises:
        ModelError: A value is defined twice or never, nodes wait for each other in a circle, an operator or its opset
            is unknown, or a function's signature repeats a name.
    """
    functions = {(f.domain, f.name, f.overload) for f in model.functions}
    imports = _imports(model.opset_import, "the model")
    graph = model.graph
    for kind, values in (("input", graph.input), ("output", graph.output)):
        if kind == "input":
            _refuse_repeats([value.name for value in values], kind, "the main graph")
        for value in values:
            if not value.name:
                raise ModelError(f"an {kind} of the main graph has no name")
            if not value.HasField("type"):
                raise ModelError(f"{kind} {value.name!r} of the main graph has no type")
            if _holds_maps(value.type):
                remedy = (
                    "an operator other than ZipMap makes them, or something reads them; sklearn-onnx has zipmap=False"
                )
                if kind == "input":
                    remedy = "make the tensor that DictVectorizer or CastMap makes of it outside the model"
                raise ModelError(
                    f"{kind} {value.name!r} of the main graph is made of maps, which are not supported; export the model "
                    f"with tensors instead ({remedy})"
                )
    if not graph.output:
        raise ModelError("the main graph has no outputs")
    _Checker(functions, imports).check_graph(graph, (), "the main graph")
    for function in model.functions:
        place = f"function {function.name!r}"
        checker = _Checker(functions, _imports(function.opset_import, place))
        _refuse_repeats(list(function.input), "input", place)
        _refuse_repeats(list(function.attribute) + [a.name for a in function.attribute_proto], "attribute", place)
        checker.check_nodes(function.node, set(function.input), (), list(function.output), place)


def _imports(entries: Sequence[onnx.OperatorSetIdProto], place: str) -> dict[str, int]:
    imports: dict[str, int] = {}
    for entry in entries:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if imports.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"{place} imports the operator set {domain or 'ai.onnx'!r} in two versions")
        known = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}.get(domain)
        if entry.version < 1 or (known is not None and entry.version > known):
            raise ModelError(
                f"{place} imports version {entry.version} of the operator set {domain or 'ai.onnx'!r}; "
                f"versions 1 to {known or 'any'} are known"
            )
    return imports


@dataclass(slots=True)
class _Scope:
    """One node list being checked.

    Attributes:
        producer: Index of the node that makes each value; -1 for inputs and initializers.
        needs: Values that each node reads, with captures of its bodies.
    """

    producer: dict[str, int]
    needs: list[list[str]] = field(default_factory=list)


class _Checker:
    """Checks one graph or function with everything nested in it."""

    def __init__(self, functions: set[tuple[str, str, str]], imports: dict[str, int]) -> None:
        self._functions = functions
        self._imports = imports
        self._known: set[tuple[str, str, str]] = set()

    def check_graph(self, graph: onnx.GraphProto, outer: _Visible, place: str) -> set[str]:
        """Return the names of outer values that the graph captures."""
        _refuse_repeats([value.name for value in graph.input], "input", place)
        _refuse_repeats([tensor.name for tensor in graph.initializer], "initializer", place)
        given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        if "" in given:
            raise ModelError(f"an input or initializer of {place} has no name")
        return self.check_nodes(graph.node, given, outer, [value.name for value in graph.output], place)

    def check_nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: set[str],
        outer: _Visible,
        outputs: list[str],
        place: str,
    ) -> set[str]:
        scope = _Scope(dict.fromkeys(given, -1))
        for index, node in enumerate(nodes):
            for name in filter(None, node.output):
                if name in scope.producer:
                    raise ModelError(f"{node_label(node)} of {place} defines value {name!r}, which is already defined")
                scope.producer[name] = index
        visible = (*outer, scope.producer)
        captured: set[str] = set()
        for node in nodes:
            needs = self._needs(node, visible, place)
            captured |= {name for name in needs if name not in scope.producer}
            scope.needs.append([name for name in needs if name in scope.producer])
        for name in outputs:
            if not _defined(name, visible):
                raise ModelError(f"output {name!r} of {place} is never computed")
            if name not in scope.producer:
                captured.add(name)
        _refuse_cycles(nodes, scope, place)
        return captured

    def _needs(self, node: onnx.NodeProto, visible: _Visible, place: str) -> list[str]:
        self._check_operator(node, place)
        needs = [name for name in node.input if name]
        undefined = next((name for name in needs if not _defined(name, visible)), None)
        if undefined is not None:
            raise ModelError(f"{node_label(node)} of {place} reads value {undefined!r}, which nothing defines")
        _refuse_repeats([a.name for a in node.attribute], "attribute", f"{node_label(node)} of {place}")
        if (node.op_type, node.domain) in _CONSTANTS and len(node.attribute) != 1:
            raise ModelError(
                f"{node_label(node)} of {place} has {len(node.attribute)} attributes, not one with its value"
            )
        for body in bodies_of(node):
            needs += sorted(self.check_graph(body, visible, f"a body of {node_label(node)}"))
        return needs

    def _check_operator(self, node: onnx.NodeProto, place: str) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        operator = (domain, node.op_type, node.overload)
        if operator in self._known:
            return
        if (node.domain, node.op_type, node.overload) not in self._functions:
            if domain not in self._imports:
                raise ModelError(
                    f"{node_label(node)} of {place} is of the domain {node.domain!r}, which is not imported"
                )
            version = self._imports[domain]
            known = onnx.defs.has(node.op_type, version, domain) or is_contributed(domain, node.op_type, version)
            if domain in _STANDARD and not known:
                raise ModelError(
                    f"{node_label(node)} of {place} is not an operator of version {version} of the set {domain or 'ai.onnx'!r}"
                )
        self._known.add(operator)


def _refuse_cycles(nodes: Sequence[onnx.NodeProto], scope: _Scope, place: str) -> None:
    """Kahn's algorithm; what never becomes ready waits for itself."""
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, names in enumerate(scope.needs):
        for producer in {scope.producer[name] for name in names} - {-1}:
            waiting[index] += 1
            readers[producer].append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    done = 0
    while ready:
        done += 1
        for reader in readers[ready.pop()]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if done < len(nodes):
        stuck = next(index for index, count in enumerate(waiting) if count)
        raise ModelError(f"{node_label(nodes[stuck])} of {place} depends on its own result: the graph has a cycle")


def _holds_maps(kind: onnx.TypeProto) -> bool:
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        kind = (kind.sequence_type if kind.HasField("sequence_type") else kind.optional_type).elem_type
    return bool(kind.HasField("map_type"))


def _defined(name: str, scopes: _Visible) -> bool:
    return any(name in scope for scope in scopes)


def _refuse_repeats(names: list[str], kind: str, place: str) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"{place} has two {kind}s called {name!r}")
        seen.add(name)
