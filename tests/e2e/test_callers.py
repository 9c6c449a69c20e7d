"""What a caller hands in stays as it is: models, bytes, modules, files, arrays, options."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import collage
from collage import backend, benchmark, byoc, inspection
from collage.device import (
    AnnotateSEScopes,
    CompilationConfig,
    DevicePlan,
    MergeAndAnnotate,
    PartitionBySEScope,
    PlanDevices,
    on_device,
    read_device_plan,
)
from collage.frontend import describe_inputs, make_inputs, model_digest, place_weights, read_model, skeleton
from collage.graph import DataflowGraph, KernelSpec, SubGraph, extract, kernel_model, kernels_of, partition
from collage.integrations import InferenceSession
from collage.pattern import RewriteRule, is_op, rewrite, wildcard
from collage.target import Target
from collage.testing import FakeToolchain, MockCostEstimator
from collage.toolchains import PatternEntry, registry, support_for
from collage.transform import PassContext, VerifyAfterEach, get_pass, inspect_passes, list_passes, model_text, prepare
from tests.e2e.conftest import LENT, model_of

F = TensorProto.FLOAT
CORES = sorted(os.sched_getaffinity(0))
MENU = ("onnxruntime",)


def _options(**more: Any) -> collage.CompileOptions:
    return collage.CompileOptions(finals=False, db="sqlite:///:memory:", **more)


def weights(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


# Models of unusual shapes. Nodes are called by what they do, so that plans can name them.


def shared_weight() -> onnx.ModelProto:
    """Two operators read one weight, and one bias too."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Add", ["a", "b"], ["c"], name="bias"),
        helper.make_node("MatMul", ["c", "w"], ["d"], name="second"),
        helper.make_node("Add", ["d", "b"], ["y"], name="last"),
    ]
    table = {"w": weights(32, 32), "b": weights(32)}
    return model_of(nodes, {"x": (F, [4, 32])}, {"y": (F, [4, 32])}, table)


def typed_fields() -> onnx.ModelProto:
    """Weights in fields of their types, with documentation, and metadata wherever there may be any."""
    model = shared_weight()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, F, values.shape, values.reshape(-1).tolist()))
        tensor.doc_string = "learned"
        tensor.metadata_props.add(key="from", value="training")
    for node in model.graph.node:
        node.doc_string = "a node"
        node.metadata_props.add(key="layer", value="1")
    model.graph.doc_string, model.doc_string = "a graph", "a model"
    model.graph.input[0].doc_string = "an input"
    model.metadata_props.add(key="names", value="cat")
    model.graph.value_info.append(helper.make_tensor_value_info("a", F, [4, 32], "a value"))
    return model


def weight_as_output() -> onnx.ModelProto:
    """An initializer is also an output, and so is a constant that a node makes."""
    model = shared_weight()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(weights(3))))
    model.graph.output.extend(
        helper.make_tensor_value_info(name, F, shape) for name, shape in (("b", [32]), ("k", [3]))
    )
    return model


def bodies() -> onnx.ModelProto:
    """Bodies capture weights, have weights of their own, and constants of names that occur outside."""
    branches = []
    for number in range(2):
        nodes = [
            helper.make_node("Constant", [], ["c"], name="last", value=numpy_helper.from_array(weights(32), "k")),
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            helper.make_node("Add", ["m", "own"], ["n"], name="own_bias"),
            helper.make_node("Mul", ["n", "c"], ["r"], name="scale"),
        ]
        own = numpy_helper.from_array(weights(32) + number, "own")
        branches.append(helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("r", F, [4, 32])], [own]))
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], name="top", keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["flag"], name="flag"),
        helper.make_node("If", ["flag"], ["s"], name="choice", then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Add", ["s", "k"], ["y"], name="last"),
    ]
    table = {"w": weights(32, 32), "k": weights(32), "zero": np.float32(0)}
    return model_of(nodes, {"x": (F, [4, 32])}, {"y": (F, [4, 32])}, table)


def constants_in_two_scopes() -> onnx.ModelProto:
    """Nodes that plans put apart read one small weight, and one constant that a node makes."""
    model = shared_weight()
    nodes = model.graph.node
    nodes.insert(0, helper.make_node("Constant", [], ["c0"], value=numpy_helper.from_array(weights(32))))
    nodes[1].input[0], nodes[3].input[0] = "x0", "c1"
    nodes.insert(1, helper.make_node("Mul", ["x", "c0"], ["x0"], name="before"))
    nodes.insert(4, helper.make_node("Mul", ["c", "c0"], ["c1"], name="between"))
    return model


def halves() -> onnx.ModelProto:
    """Weights of half precision, in the field that such numbers have."""
    values = weights(32, 32).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], name="narrow", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "w"], ["m"], name="product"),
        helper.make_node("Cast", ["m"], ["y"], name="widen", to=F),
    ]
    model = model_of(nodes, {"x": (F, [4, 32])}, {"y": (F, [4, 32])}, {})
    bits = values.view(np.uint16).reshape(-1).tolist()
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[32, 32], int32_data=bits))
    return model


def names_twice() -> onnx.ModelProto:
    """Nodes without names or of one name, tensors of constants called alike, and symbolic lengths."""
    same = numpy_helper.from_array(weights(32), "same")
    nodes = [
        helper.make_node("Constant", [], ["p"], name="twice", value=same),
        helper.make_node("Constant", [], ["q"], name="twice", value=same),
        helper.make_node("Add", ["x", "p"], ["a"], name="twice"),
        helper.make_node("Mul", ["a", "q"], ["b"]),
        helper.make_node("Identity", ["b"], ["i"]),
        helper.make_node("MatMul", ["i", "w"], ["y"], name="twice"),
    ]
    return model_of(nodes, {"x": (F, ["rows", 32])}, {"y": (F, ["rows", 32])}, {"w": weights(32, 32)})


SHAPES: dict[str, Callable[[], onnx.ModelProto]] = {
    made.__name__: made
    for made in (shared_weight, typed_fields, weight_as_output, bodies, constants_in_two_scopes, halves, names_twice)
}


# What is looked at before and after.


def state(thing: Any) -> Any:
    """All that can be seen of what a caller handed in."""
    if isinstance(thing, onnx.ModelProto):
        return thing.SerializeToString(deterministic=True)
    if isinstance(thing, ir.Model):
        return _model_state(thing)
    if isinstance(thing, torch.nn.Module):
        return [(name, id(part), part.training) for name, part in thing.named_modules()], [
            (name, id(tensor), tensor.requires_grad, tensor._version, tensor.detach().numpy().tobytes())
            for name, tensor in thing.state_dict(keep_vars=True).items()
        ]
    if isinstance(thing, np.ndarray):
        return thing.dtype, thing.shape, thing.strides, thing.flags.writeable, thing.tobytes()
    if isinstance(thing, Path):
        paths = sorted(path for path in thing.rglob("*") if path.is_file()) if thing.is_dir() else [thing]
        return [(str(p), p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths]
    if isinstance(thing, dict):
        return [(key, state(value)) for key, value in thing.items()]
    if isinstance(thing, collage.CompileOptions):
        return [(name, state(getattr(thing, name))) for name in thing.__slots__]
    if isinstance(thing, (list, tuple)):
        return [state(part) for part in thing]
    return bytes(thing) if isinstance(thing, bytearray) else repr(thing)


def _model_state(model: ir.Model) -> Any:
    fields = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
    functions = [(key, _graph_state(function.graph)) for key, function in model.functions.items()]
    facts = [getattr(model, name) for name in fields]
    return facts, dict(model.metadata_props), dict(model.meta), _graph_state(model.graph), functions


def _graph_state(graph: ir.Graph) -> Any:
    values = [list(map(_value_state, part)) for part in (graph.inputs, graph.outputs, graph.initializers.values())]
    facts = (
        graph.name,
        graph.doc_string,
        dict(graph.opset_imports),
        dict(graph.metadata_props),
        list(graph.initializers),
    )
    return id(graph), facts, values, [_node_state(node) for node in graph]


def _node_state(node: ir.Node) -> Any:
    facts = (id(node), node.name, node.op_identifier(), node.version, node.doc_string, dict(node.metadata_props))
    inputs = [None if value is None else (id(value), value.name) for value in node.inputs]
    attributes = [(key, id(value), _attribute_state(value)) for key, value in node.attributes.items()]
    return facts, dict(node.meta), inputs, attributes, list(map(_value_state, node.outputs))


def _attribute_state(attribute: ir.Attr) -> Any:
    facts = (attribute.name, attribute.type, attribute.doc_string, attribute.ref_attr_name)
    if attribute.type == ir.AttributeType.GRAPH:
        return facts, _graph_state(attribute.as_graph())
    if attribute.type == ir.AttributeType.TENSOR:
        return facts, _tensor_state(attribute.as_tensor())
    return facts, repr(attribute.value)


def _value_state(value: ir.Value) -> Any:
    tensor = None if value.const_value is None else _tensor_state(value.const_value)
    uses = [(id(use.node), use.idx) for use in value.uses()]
    facts = (id(value), value.name, repr(value.type), str(value.shape), value.doc_string, dict(value.metadata_props))
    return facts, dict(value.meta), value.is_graph_input(), value.is_graph_output(), uses, tensor


def _tensor_state(tensor: ir.TensorProtocol) -> Any:
    content = tensor.raw.SerializeToString() if isinstance(tensor, ir.serde.TensorProtoTensor) else tensor.tobytes()
    facts = (id(tensor), type(tensor), tensor.name, tensor.dtype, str(tensor.shape), tensor.doc_string)
    return facts, dict(tensor.metadata_props), dict(tensor.meta), content


@dataclass
class Handed:
    """What a test hands in, with what was seen of it before."""

    things: list[Any] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)

    def __call__(self, thing: Any) -> Any:
        self.things.append(thing)
        self.before.append(state(thing))
        return thing

    def check(self) -> None:
        assert self.things
        for thing, before in zip(self.things, self.before, strict=True):
            assert state(thing) == before


@pytest.fixture
def handed() -> Any:
    found = Handed()
    yield found
    found.check()


def in_memory(proto: onnx.ModelProto, form: str) -> ir.Model:
    """A model as a caller may hold it: as read, or with tensors that know another name than the values they belong to."""
    model = ir.from_proto(proto)
    if form == "shared tensors":
        made: dict[bytes, ir.Tensor] = {}
        for value in model.graph.initializers.values():
            array = value.const_value.numpy().copy()
            value.const_value = made.setdefault(array.tobytes(), ir.tensor(array, name="nobody's"))
            if not value.is_graph_output():
                value.type = value.shape = None
        for node in model.graph:
            node.meta["noted"] = 1
    return model


FORMS = ("as read", "shared tensors")


def combined(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrise by names, shapes and forms: the full product, of which all but a covering part is slow.

    By default each name meets the bodies and two other shapes, in both forms. Names differ in which other shapes these are, so
    that every shape is met in every form by some of them.
    """
    known, cases = list(SHAPES), []
    for number, name in enumerate(names):
        others = [shape for shape in known if shape != "bodies"]
        met = ("bodies", others[number % len(others)], others[(number + len(others) // 2) % len(others)])
        turn = number + number // len(others)
        chosen = {(shape, FORMS[(turn + place) % 2]) for place, shape in enumerate(met)}
        for shape, form in itertools.product(known, FORMS):
            marks = () if (shape, form) in chosen else pytest.mark.slow
            cases.append(pytest.param(name, shape, form, marks=marks))
    return pytest.mark.parametrize(("name", "shape", "form"), cases)


@pytest.mark.parametrize("count", [22, 33])
def test_the_default_part_covers_every_shape_in_every_form(count: int) -> None:
    cases = [case.values for case in combined(map(str, range(count))).args[1] if not case.marks]
    assert {case[1:] for case in cases} == set(itertools.product(SHAPES, FORMS))
    for name in map(str, range(count)):
        own = [case[1:] for case in cases if case[0] == name]
        assert len({shape for shape, _ in own}) == 3 and {form for _, form in own} == set(FORMS)


def test_a_change_would_be_seen() -> None:
    """The snapshots see what they are for: a tensor's name, a type, metadata, bytes."""
    changes: list[Callable[[ir.Model], Any]] = [
        lambda m: setattr(m.graph.initializers["w"].const_value, "name", "other"),
        lambda m: setattr(m.graph.initializers["w"], "shape", None),
        lambda m: m.graph[0].metadata_props.update(a="b"),
        lambda m: setattr(m.graph[0].outputs[0], "doc_string", "changed"),
        lambda m: m.graph.meta.update(a=1) or m.graph[0].meta.update(a=1),
    ]
    for change in changes:
        proto = typed_fields()
        model = ir.from_proto(proto)
        before = state(model)
        change(model)
        assert state(model) != before
    proto = shared_weight()
    before, model = state(proto), ir.from_proto(proto)
    model.graph.initializers["w"].name = "renamed"
    assert state(proto) != before


# Compilation.


SOURCES = ("proto", "ir", "bytes", "bytearray", "file", "external")
COMPILED = {
    ("typed_fields", "proto"),
    ("constants_in_two_scopes", "proto"),
    ("names_twice", "proto"),
    ("weight_as_output", "ir"),
    ("bodies", "ir"),
    ("halves", "bytearray"),
    ("shared_weight", "external"),
}
"""Each form of a model, and each shape that needs something of its own; the other combinations are slow."""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("shape", "source"),
    [
        pytest.param(*case, marks=() if case in COMPILED else pytest.mark.slow)
        for case in itertools.product(SHAPES, SOURCES)
    ],
)
def test_compile_reads_and_changes_nothing(shape: str, source: str, handed: Handed, tmp_path: Path) -> None:
    proto = SHAPES[shape]()
    if source == "proto":
        given = handed(proto)
    elif source == "ir":
        given = handed(in_memory(handed(proto), "shared tensors"))
    elif source.startswith("byte"):
        given = handed((bytes if source == "bytes" else bytearray)(proto.SerializeToString()))
    else:
        given = tmp_path / "model.onnx"
        onnx.save(proto, given, save_as_external_data=source == "external", location="w.bin")
        handed(tmp_path)
    x = {"x": handed(weights(4, 32))}
    exe = collage.compile(given, handed(list(MENU)), options=handed(_options(inputs=x)), workers=LENT)
    exe.run(handed(x))


APART = "".join(
    f'[devices.{name}]\ndevice = "cpu:{i}"\ncores = [{core}]\n'
    for i, (name, core) in enumerate(zip(("main", "small"), CORES, strict=False))
)


@pytest.mark.skipif(len(CORES) < 2, reason="two devices take two cores")
@pytest.mark.parametrize(
    ("shape", "source", "fixed"),
    [
        pytest.param("constants_in_two_scopes", "proto", False, marks=pytest.mark.slow),
        pytest.param("constants_in_two_scopes", "proto", True, marks=pytest.mark.slow),
        ("constants_in_two_scopes", "shared tensors", True),
        pytest.param("weight_as_output", "as read", True, marks=pytest.mark.slow),
        ("bodies", "proto", True),
        ("names_twice", "shared tensors", False),
    ],
)
def test_compile_with_devices_changes_nothing(shape: str, source: str, fixed: bool, handed: Handed) -> None:
    """A constant that is read in two scopes gets a twin, whose name is not that of the caller's tensor."""
    proto = handed(SHAPES[shape]())
    given = proto if source == "proto" else handed(in_memory(proto, source))
    named = [node.name for node in proto.graph.node if node.name and node.op_type not in ("Constant", "If")]
    rules = "" if len(set(named)) < 3 else "[nodes]\n" + "".join(f'"{n}" = "small"\n' for n in named[len(named) // 2 :])
    default = 'default = "main"\n' if fixed else ""
    options = _options(devices=handed(read_device_plan((default + APART + rules).encode())))
    if shape == "names_twice":
        options = replace(options, dims=handed({"rows": 4}))
    collage.compile(given, MENU, options=handed(options), workers=LENT)


@pytest.mark.parametrize(
    ("source", "more"),
    [
        pytest.param("proto", {"dims": {"rows": {2: 1, 5: 2}}}, marks=pytest.mark.slow),
        ("proto", {"fixed": {"rows": 4}}),
        ("shared tensors", {"dims": {"rows": {2: 1, 5: 2}}}),
        pytest.param("shared tensors", {"fixed": {"rows": 4}}, marks=pytest.mark.slow),
    ],
)
def test_compile_with_lengths_changes_nothing(source: str, more: dict[str, Any], handed: Handed) -> None:
    proto = handed(names_twice())
    given = proto if source == "proto" else handed(in_memory(proto, source))
    collage.compile(given, MENU, options=handed(_options(**handed(more))), workers=LENT)


def test_compile_of_a_module_changes_nothing(handed: Handed) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5))
    module[1].eval()
    x = torch.ones(2, 8)
    handed(x.numpy())
    collage.compile(handed(module), MENU, example_inputs=(x,), options=_options(), workers=LENT)


@pytest.mark.slow
def test_what_compiled_models_offer_changes_nothing(handed: Handed, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(bodies(), source)
    handed(source)
    x = {"x": handed(weights(4, 32))}
    exe = collage.compile(source, MENU, options=_options(), workers=LENT)
    exe.save(tmp_path / "m.collage")
    artefact = handed(tmp_path / "m.collage")
    collage.load(artefact).run(x)
    benchmark.bench(artefact, MENU, rounds=1, inputs=handed(x))
    inspection.inspect(source, MENU, options=_options())
    of_model = InferenceSession(source, targets=MENU, options=_options(), cache_dir=tmp_path / "cache")
    for session in (of_model, InferenceSession(artefact)):
        session.run(None, handed(x))


def test_the_backend_changes_nothing(handed: Handed) -> None:
    x = [handed(weights(4, 32))]
    proto = handed(typed_fields())
    backend.prepare(proto, "CPU", targets=handed(list(MENU))).run(handed(x))


# Passes.


@combined([*list_passes(), "prepare"])
def test_passes_change_nothing(shape: str, form: str, name: str, handed: Handed, tmp_path: Path) -> None:
    proto = handed(SHAPES[shape]())
    for model in (handed(in_memory(proto, form)), handed(read_model(proto))):
        with PassContext(opt_level=3, required_pass=["InferType"]):
            try:
                made = prepare(model) if name == "prepare" else get_pass(name)(model)
            except collage.CollageError:
                continue  # A pass that refuses a model changes it as little.
            if made is not model:
                ir.save(made, tmp_path / "made.onnx")
                _rename(made)


def _rename(model: ir.Model) -> None:
    """Does to a pass's result what later passes might."""
    for graph in model.graphs():
        for number, value in enumerate(list(graph.initializers.values())):
            value.name = f"renamed_{number}_{value.name}"
            if value.const_value is not None:
                value.const_value.metadata_props["renamed"] = "1"
        for node in graph:
            node.name = f"renamed_{node.name}"
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR:
                    attribute.as_tensor().name = "renamed"


class AddAfterProduct(RewriteRule):
    """Adds and takes away a constant behind each product."""

    def __init__(self) -> None:
        self.pattern = is_op("MatMul")(wildcard("x"), wildcard("w"))

    def callback(self, match: Any, op: Any) -> Any:
        product = op.MatMul(match["x"], match["w"])
        return {self.pattern: op.Sub(op.Add(product, op.constant(np.float32(1))), op.constant(np.float32(1)))}


SCOPES = CompilationConfig.of(["cpu:0", "cpu:1"])


def _marked(model: ir.Model) -> ir.Model:
    """A model whose operators are annotated with two devices in turn."""
    for number, node in enumerate(model.graph):
        if node.op_type not in ("Constant", "If"):
            on_device(node, f"cpu:{number % 2}")
    return model


def _planned(model: ir.Model) -> ir.Model:
    return PlanDevices(SCOPES)(model)


def _fused(model: ir.Model, **options: Any) -> Any:
    target = str(registry().parse_target("onnxruntime"))
    with PassContext(config={"collage.enable_collage": True}):
        return collage.CollageFuseOps([target], MockCostEstimator({target: 1.0}), options=_options(**options))(model)


def _partitioned(model: ir.Model) -> ir.Model:
    graph = DataflowGraph(model)
    made = partition(model, [KernelSpec(SubGraph(graph, [len(graph) - 1]), "k", {"Compiler": "c"})])
    for call in kernels_of(made):
        _rename(kernel_model(made, call.node, "k"))
    return made


def _built(model: ir.Model, folder: Path) -> None:
    for name in ("onnxruntime", "openvino", "tvm"):
        toolchain = registry().get(name)
        if toolchain.availability().available:
            target = registry().parse_target(toolchain.targets[0])
            try:
                toolchain.compile(model, target, folder)
            except collage.CollageError:
                continue


TABLE = [PatternEntry("lib.product", is_op("Add")(is_op("MatMul")(wildcard(), wildcard()), wildcard()))]

CALLS: dict[str, Callable[[ir.Model, Path], Any]] = {
    "AnnotateSEScopes": lambda m, _: AnnotateSEScopes([("cpu:0", lambda node: True)])(m),
    "CollageFuseOps": lambda m, _: _fused(m),
    "DevicePlan": lambda m, _: DevicePlan(m, SCOPES),
    "FuseOps": lambda m, _: byoc.FuseOps()(m),
    "MergeAndAnnotate": lambda m, _: MergeAndAnnotate(TABLE, "cpu:1")(m),
    "MergeComposite": lambda m, _: byoc.MergeComposite(TABLE)(m),
    "PartitionBySEScope": lambda m, _: PartitionBySEScope()(_planned(m)),
    "PlanDevices": lambda m, _: _planned(m),
    "extract": lambda m, _: _rename(extract(DataflowGraph(m), SubGraph(DataflowGraph(m), [0]), "k")),
    "inspect_passes": lambda m, _: inspect_passes(m, ["FoldConstant", "EliminateIdentity"], verify=True),
    "model_digest": lambda m, _: model_digest(m),
    "model_text": lambda m, _: model_text(m),
    "partition": lambda m, _: _partitioned(m),
    "partition_for": lambda m, _: byoc.partition_for(m, "onnxruntime"),
    "place_weights": lambda m, folder: _rename(place_weights(m, folder, 1)),
    "describe": lambda m, _: (describe_inputs(m), make_inputs(m, 0, {"rows": 4} if "rows" in str(m) else {})),
    "rewrite": lambda m, _: rewrite(m, AddAfterProduct(), iterative=False, verify=True),
    "skeleton": lambda m, _: (skeleton(m), skeleton(m, -1)),
    "support_for": lambda m, _: [
        support_for(t, node, registry().parse_target(t.targets[0])) for t in registry() for node in m.graph.all_nodes()
    ],
    "toolchain.compile": lambda m, folder: _built(m, folder),
    "FakeToolchain.compile": lambda m, folder: FakeToolchain().compile(m, Target("llvm", "fake"), folder),
    "verify": lambda m, _: _verified(m),
}


def _verified(model: ir.Model) -> None:
    with PassContext(opt_level=3, instruments=[VerifyAfterEach()]):
        prepare(model)


@pytest.mark.few(10)
@combined(CALLS)
def test_calls_change_nothing(name: str, shape: str, form: str, handed: Handed, tmp_path: Path) -> None:
    proto = handed(SHAPES[shape]())
    # Demands are what a caller writes into a model, and so belong to what must stay.
    marked = _marked(in_memory(proto, form))
    sources = [handed(in_memory(proto, form)), handed(read_model(proto)), handed(marked)]
    for model in sources:
        try:
            made = CALLS[name](model, tmp_path)
        except collage.CollageError:
            continue
        if isinstance(made, ir.Model) and made is not model:
            ir.save(made, tmp_path / "made.onnx")
            _rename(made)
