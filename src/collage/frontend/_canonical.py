"""The canonical form: one spelling where ONNX permits several.

Toolchains differ most in how they treat unusual spellings. One crashes on an explicit empty third input of
LayerNormalization. So models are brought to one spelling first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from collage._errors import ModelError
from collage.frontend._exporter_paths import drop_exporter_paths
from collage.frontend._proto import reattach_weights, skeleton
from collage.frontend._sandbox import convert_functions, infer_shapes
from collage.graph import copy_model

__all__ = ["MAX_IR_VERSION", "MIN_IR_VERSION", "canonicalise", "lift_constants", "name_everything", "remove_unused"]

MIN_IR_VERSION = 10
"""The first version in which functions carry metadata and the types of their values."""

MAX_IR_VERSION = 13
"""The last version that every toolchain of the menu reads."""


def canonicalise(model: ir.Model) -> None:
    """Bring a validated model to canonical form, in place.

    Raises:
        ModelError: Its functions cannot be expanded.
    """
    forget_sharding(model)
    inline_functions(model)
    drop_exporter_paths(model)
    forget_nameless_dims(model)
    common.RemoveInitializersFromInputsPass()(model)
    lift_constants(model)
    list_axes(model)
    write_padding_out(model)
    common.TopologicalSortPass()(model)
    remove_unused(model)
    name_everything(model)
    model.ir_version = min(max(model.ir_version, MIN_IR_VERSION), MAX_IR_VERSION)


_OPSET_OF_IDENTITY = 13
_COPY = ("collage", "device_copy", "")
"""The function by which a model says that a tensor goes to another device: an Identity, its scopes in metadata."""


def inline_functions(model: ir.Model) -> None:
    """Expand every call of a model-local function, and drop the functions.

    A copy between devices becomes an Identity that keeps its metadata.
    """
    _expand_copies(model)
    _separate_outputs(model)
    _share_versions(model)
    versions = model.opset_imports
    differ = any(
        versions.get(domain, version) != version
        for function in model.functions.values()
        for domain, version in function.opset_imports.items()
    )
    try:
        if differ:
            _inline_with_conversion(model)
        _Inliner()(model)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the functions of the model cannot be expanded: {error}") from None
    model.functions.clear()


class _Inliner(common.InlinePass):
    """The inliner of ONNX IR, which at every call tries names from the first on until one is free.

    The search for free names is quadratic in the calls of a function. Here a function takes other names before each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: Counter[ir.OperatorIdentifier] = Counter()
        self._stems: dict[ir.Node | ir.Value, str | None] = {}

    def _instantiate_call(self, node: ir.Node, call_site_id: str) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        function = node.op_identifier()
        self._calls[function] += 1
        if (number := self._calls[function]) > 1:
            for inner in self._functions[function]:
                inner.name = self._renamed(inner, number)
                for value in inner.outputs:
                    value.name = self._renamed(value, number)
        return super()._instantiate_call(node, call_site_id)

    def _renamed(self, item: ir.Node | ir.Value, number: int) -> str:
        stem = self._stems.setdefault(item, item.name)
        return f"{stem or 'value'}_{number}"


def _separate_outputs(model: ir.Model) -> None:
    """Give each output of functions a value of its own, made by a node.

    What a call returns gets the name that it has there. It must not be an input, whose name callers know, or another output.
    """
    for function in model.functions.values():
        returned: set[ir.Value] = set()
        for index, value in enumerate(function.outputs):
            if value in returned or value.is_graph_input():
                node = ir.node("Identity", [value])
                (result,) = node.outputs
                result.type, result.shape = value.type, value.shape
                function.append(node)
                function.outputs[index] = result
                function.opset_imports.setdefault("", model.opset_imports.setdefault("", _OPSET_OF_IDENTITY))
            returned.add(value)


def _expand_copies(model: ir.Model) -> None:
    function = model.functions.get(_COPY)
    if function is None or "" not in model.opset_imports or not _is_identity(function):
        return
    callers = [function.graph for function in model.functions.values() if "" in function.opset_imports]
    for graph in (model.graph, *callers):
        for node in graph.all_nodes():
            if node.op_identifier() == _COPY and len(node.inputs) == len(node.outputs) == 1:
                node.domain, node.op_type = "", "Identity"


def _is_identity(function: ir.Function) -> bool:
    nodes = list(function)
    return (
        len(nodes) == len(function.inputs) == len(function.outputs) == 1
        and nodes[0].op_identifier() == ("", "Identity", "")
        and nodes[0].inputs[0] is function.inputs[0]
        and nodes[0].outputs[0] is function.outputs[0]
    )


def _share_versions(model: ir.Model) -> None:
    """Have functions import the model's version of an operator set where it has their operators unchanged.

    ONNX permits functions of other versions for these alone, and its converter takes no calls in bodies or other functions.
    """
    for function in model.functions.values():
        for domain, version in tuple(function.opset_imports.items()):
            own = model.opset_imports.get(domain, version)
            used = {node.op_type for node in function.graph.all_nodes() if node.domain == domain}
            used -= {name for where, name, _ in model.functions if where == domain}
            if own != version and all(_defined(name, domain, own) == _defined(name, domain, version) for name in used):
                function.opset_imports[domain] = own


def _defined(op_type: str, domain: str, version: int) -> int:
    """Return the version that defined an operator as it is; the version itself if ONNX does not know the operator."""
    try:
        return int(onnx.defs.get_schema(op_type, version, domain).since_version)
    except onnx.defs.SchemaError:
        return version


def _inline_with_conversion(model: ir.Model) -> None:
    """Let ONNX expand functions of another operator set, which it converts on the way."""
    weights = copy_model(model)
    common.RemoveInitializersFromInputsPass()(weights)
    # The converter asks for the types of all values that functions take.
    expanded = ir.from_proto(convert_functions(infer_shapes(skeleton(weights))))
    reattach_weights(expanded, weights)
    model.graph = expanded.graph


def forget_sharding(model: ir.Model) -> None:
    """Drop how an exporter would spread nodes over devices: it computes nothing, and older IR versions lack it."""
    model.device_configurations = ()
    functions = (function.graph for function in model.functions.values())
    for graph in (model.graph, *functions):
        for node in graph.all_nodes():
            node.device_configurations = ()


def forget_nameless_dims(model: ir.Model) -> None:
    """Replace dimensions of -1, and those called "", "?" or similar, by unknown ones, as their exporter meant.

    Two dimensions of one such name need not be of one length.
    """
    for graph in model.graphs():
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None and any(map(_is_nameless, value.shape)):
                value.shape = ir.Shape(None if _is_nameless(dim) else dim for dim in value.shape)


def _is_nameless(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim < 0
    return dim.value is not None and not any(letter.isalnum() for letter in str(dim.value))


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes into initializers, in bodies too.

    One that is a graph output becomes an Identity of an initializer: an output needs a node that makes it.
    """
    names: set[str | None] = set()
    for graph in model.graphs():
        for index, value in enumerate(graph.outputs):
            producer = value.producer()
            constant = producer is not None and producer.op_type == "Constant" and producer.domain == ""
            # An output of the main graph may be one of its inputs: callers know both by the one name.
            passed_on = value.is_graph_input() and graph is not model.graph
            if constant or value.is_initializer() or passed_on:
                names = names or {each.name for part in model.graphs() for each in _values_of(part)}
                graph.outputs[index] = _identity(graph, value, names)
        for node in graph:
            _write_text_as_tensor(node)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _write_text_as_tensor(node: ir.Node) -> None:
    """Give a Constant of text its tensor: the pass of ONNX IR takes ASCII alone, and cuts zero bytes off."""
    name = next((name for name in ("value_string", "value_strings") if name in node.attributes), None)
    if node.op_identifier() != ("", "Constant", "") or name is None or node.attributes[name].is_ref():
        return
    given = node.attributes.pop(name)
    items = [given.as_string()] if name == "value_string" else list(given.as_strings())
    shape = ir.Shape(() if name == "value_string" else (len(items),))
    tensor = ir.StringTensor([item.encode() for item in items], shape=shape)
    node.attributes["value"] = ir.AttrTensor("value", tensor)


def _values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _identity(graph: ir.Graph, value: ir.Value, taken: set[str | None]) -> ir.Value:
    """Append ``Identity(value)``, whose result takes the value's name over. The value gets one that is not taken."""
    name, other = value.name, f"{value.name}_source"
    while other in taken:
        other += "_"
    taken.add(other)
    node = ir.node("Identity", [value])
    graph.append(node)
    (result,) = node.outputs
    result.type, result.shape = value.type, value.shape
    value.name = other
    result.name = name
    return result


def list_axes(model: ir.Model) -> None:
    """Make a list of an axis that is a lone number, where ONNX asks for a list.

    PyTorch writes RMSNorm so before operator set 23. ONNX Runtime and OpenVINO take it, and TVM does not.
    """
    made: dict[ir.Value, ir.Value] = {}
    for graph in model.graphs():
        for node in graph:
            takes_list = node.op_type.startswith("Reduce") or node.op_type in ("Squeeze", "Unsqueeze")
            axes = node.inputs[1] if takes_list and node.domain == "" and len(node.inputs) > 1 else None
            if axes is None or not axes.is_initializer() or axes.const_value is None or axes.const_value.shape.rank():
                continue
            if axes not in made:
                made[axes] = _as_list(axes, axes.const_value)
            node.replace_input_with(1, made[axes])


def _as_list(number: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    """Return a new initializer beside a number: a list of it alone."""
    graph, name = number.graph, f"{number.name}_list"
    assert graph is not None
    while name in graph.initializers:
        name += "_"
    made = ir.tensor(tensor.numpy().reshape(1), name=name)
    value = ir.Value(name=name, type=ir.TensorType(made.dtype), shape=ir.Shape((1,)), const_value=made)
    graph.register_initializer(value)
    return value


def write_padding_out(model: ir.Model) -> None:
    """Give transposed convolutions that keep lengths (``SAME_UPPER``, ``SAME_LOWER``) their padding in numbers.

    It does not depend on the lengths; and where these are symbolic, OpenVINO pads nothing unless told how much.
    """
    for graph in model.graphs():
        for node in graph:
            if node.op_identifier() == ("", "ConvTranspose", "") and (pads := _same_pads(node)):
                del node.attributes["auto_pad"]
                node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _same_pads(node: ir.Node) -> list[int]:
    """Return the padding that ``auto_pad`` stands for: the beginnings of all axes, then the ends. Empty if it does not apply."""
    given, weight = node.attributes, node.inputs[1] if len(node.inputs) > 1 else None
    mode = given.get_string("auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER") or not given.keys().isdisjoint(("pads", "output_shape")):
        return []
    shape = weight.shape if weight is not None else None
    windows = given.get_ints("kernel_shape") or (() if shape is None else shape[2:])
    ones = [1] * len(windows)
    steps, spread = (given.get_ints(name) or ones for name in ("strides", "dilations"))
    extra = given.get_ints("output_padding") or [0] * len(windows)
    sizes = [window for window in windows if isinstance(window, int)]
    if {len(sizes), len(steps), len(spread), len(extra)} != {len(windows)}:
        return []
    axes = zip(sizes, steps, spread, extra, strict=True)
    totals = [gap * (size - 1) + 1 + beyond - step for size, step, gap, beyond in axes]
    if min(totals, default=-1) < 0:
        return []
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*less, *more] if mode == "SAME_UPPER" else [*more, *less]


def remove_unused(model: ir.Model) -> None:
    """Drop unused parts: nodes, initializers, trailing empty inputs and outputs, opset imports."""
    common.RemoveUnusedNodesPass()(model)
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]
    common.RemoveUnusedOpsetsPass()(model)


def name_everything(model: ir.Model) -> None:
    """Give every node and value a name that occurs once in the whole model, bodies included.

    The names of the model's inputs and outputs are its interface and stay; so do all others that are unique already.
    """
    value_names = _Names(value.name for value in (*model.graph.inputs, *model.graph.outputs))
    node_names = _Names(())
    fixed = {*model.graph.inputs, *model.graph.outputs}
    for graph in model.graphs():
        initializers = list(graph.initializers.values())
        for value in dict.fromkeys((*graph.inputs, *initializers)):
            if value not in fixed:
                value_names.assign(value, "value")
        for node in graph:
            node_names.assign(node, node.op_type)
            for value in node.outputs:
                if value not in fixed and (value.name or value.uses()):
                    value_names.assign(value, f"{node.name}_output")


class _Names:
    """A supply of unique names."""

    def __init__(self, taken: Iterator[str | None] | tuple[()]) -> None:
        self._taken = {name for name in taken if name}
        self._next: dict[str, Iterator[int]] = {}

    def assign(self, item: ir.Node | ir.Value, stem: str) -> None:
        """Keep the item's name if nothing has it yet, else number it."""
        stem = item.name or stem
        name = stem
        while name in self._taken:
            name = f"{stem}_{next(self._next.setdefault(stem, itertools.count(1)))}"
        self._taken.add(name)
        if name != item.name:
            item.name = name
