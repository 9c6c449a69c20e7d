"""Whatever a pass does to what it is given, the model that was passed in stays as it was."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser
from onnx_ir.passes import common
from tests.unit.transform.graphs import inside_function, random_model

from collage._errors import PassError
from collage.transform import (
    EliminateIdentity,
    InferType,
    Sequential,
    SimplifyExpr,
    SimplifyInference,
    TopologicalSort,
    create_function_pass,
    create_module_pass,
    function_pass,
)
from collage.transform._draft import _CONTROL_FLOW, Draft

TEXT = """
    <ir_version: 10, opset_import: ["" : 17, "local" : 1], producer_name: "someone">
    main (float[2] x, bool c, seq(float[2]) s) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
        a = LeakyRelu <alpha = 0.5> (x)
        b = local.f (a)
        m = Mul (b, w)
        y = If (c) <
            then_branch = then_body () => (float[2] t) <float[2] v = {3, 4}> { t = Add (b, v) },
            else_branch = else_body () => (float[2] e) { e = Neg (b) }
        >
        z = Add (m, w)
    }
    <domain: "local", opset_import: ["" : 17]>
    f (p) => (q) { q = Relu (p) }
"""


def build() -> ir.Model:
    model = ir.from_proto(parser.parse_model(TEXT))
    model.graph[0].outputs[0].dtype = ir.DataType.FLOAT
    model.graph[0].outputs[0].shape = ir.Shape([2])
    model.meta["noted"] = "model"
    model.graph[0].meta["noted"] = "node"
    return model


def branch(graph: ir.Graph) -> ir.Graph:
    return next(node for node in graph if node.op_type == "If").attributes["then_branch"].as_graph()


def state(model: ir.Model) -> object:
    """All that a model says, also what its file would not."""

    def of_graph(graph: ir.Graph | ir.Function) -> object:
        values = [*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)]
        initializers = graph.initializers.items() if isinstance(graph, ir.Graph) else ()
        return (
            [of_value(value) for value in values],
            [(name, of_value(value)) for name, value in initializers],
            [(repr(node), node.name, dict(node.meta), node.doc_string, dict(node.metadata_props)) for node in graph],
            [[(a.name, a.doc_string, a.type) for a in node.attributes.values()] for node in graph],
            (graph.name, dict(graph.meta), dict(graph.metadata_props), dict(graph.opset_imports), graph.doc_string),
        )

    def of_value(value: ir.Value) -> object:
        uses = [(use.node.name, use.idx) for use in value.uses()]
        denotation = value.type.denotation if value.type is not None else None
        return repr(value), uses, dict(value.metadata_props), dict(value.meta), denotation, value.doc_string

    graphs = [*model.graphs(), *model.functions.values()]
    return ir.to_proto(model), dict(model.meta), [of_graph(graph) for graph in graphs]


MUTATIONS = {
    "model fields": lambda m: (setattr(m, "producer_name", "me"), setattr(m, "ir_version", 8)),
    "model doc string": lambda m: setattr(m, "doc_string", "changed"),
    "model metadata": lambda m: m.metadata_props.update(key="value"),
    "model meta": lambda m: m.meta.clear(),
    "another graph": lambda m: setattr(m, "graph", ir.Graph([], [], nodes=[], name="other")),
    "no functions": lambda m: m.functions.clear(),
    "function name": lambda m: setattr(next(iter(m.functions.values())), "name", "g"),
    "function attribute": lambda m: next(iter(m.functions.values())).attributes.add(ir.AttrInt64("k", 1)),
    "function nodes": lambda m: setattr(next(iter(m.functions.values()))[0], "op_type", "Abs"),
    "graph name": lambda m: setattr(m.graph, "name", "renamed"),
    "graph doc string": lambda m: setattr(m.graph, "doc_string", "changed"),
    "graph metadata": lambda m: m.graph.metadata_props.update(Primitive="1"),
    "graph meta": lambda m: m.graph.meta.update(key="value"),
    "opset imports": lambda m: m.graph.opset_imports.update({"": 21, "new": 1}),
    "no input": lambda m: m.graph.inputs.pop(),
    "new input": lambda m: m.graph.inputs.append(ir.Value(name="new")),
    "no output": lambda m: m.graph.outputs.pop(),
    "other output": lambda m: m.graph.outputs.__setitem__(0, m.graph[0].outputs[0]),
    "no initializer": lambda m: m.graph.initializers.pop("w"),
    "initializer": lambda m: setattr(m.graph.initializers["w"], "const_value", ir.tensor(np.zeros(2, np.float32))),
    "new initializer": lambda m: m.graph.register_initializer(
        ir.Value(name="n", const_value=ir.tensor(np.zeros(2, np.float32)))
    ),
    "initializer name": lambda m: setattr(m.graph.initializers["w"], "name", "renamed"),
    "body initializer": lambda m: branch(m.graph).initializers.clear(),
    "node type": lambda m: setattr(m.graph[0], "op_type", "Relu"),
    "node domain": lambda m: setattr(m.graph[0], "domain", "elsewhere"),
    "node name": lambda m: setattr(m.graph[0], "name", "renamed"),
    "node doc string": lambda m: setattr(m.graph[0], "doc_string", "changed"),
    "node version": lambda m: setattr(m.graph[0], "version", 3),
    "node metadata": lambda m: m.graph[0].metadata_props.update(key="value"),
    "node meta": lambda m: m.graph[0].meta.clear(),
    "node input": lambda m: m.graph[2].replace_input_with(0, m.graph.inputs[0]),
    "node inputs": lambda m: m.graph[2].resize_inputs(5),
    "node outputs": lambda m: m.graph[0].resize_outputs(2),
    "all uses": lambda m: m.graph[0].outputs[0].replace_all_uses_with(m.graph.inputs[0]),
    "node removed": lambda m: m.graph.remove(m.graph[3]),
    "node added": lambda m: m.graph.append(ir.node("Relu", [m.graph.inputs[0]])),
    "node moved": lambda m: m.graph.insert_after(m.graph[3], m.graph[0]),
    "attribute": lambda m: m.graph[0].attributes.update({"alpha": ir.AttrFloat32("alpha", 2.0)}),
    "attribute removed": lambda m: m.graph[0].attributes.clear(),
    "attribute name": lambda m: setattr(m.graph[0].attributes["alpha"], "name", "beta"),
    "attribute doc string": lambda m: setattr(m.graph[0].attributes["alpha"], "doc_string", "changed"),
    "value name": lambda m: setattr(m.graph[0].outputs[0], "name", "renamed"),
    "value type": lambda m: setattr(m.graph[0].outputs[0], "type", None),
    "value dtype": lambda m: setattr(m.graph[0].outputs[0], "dtype", ir.DataType.DOUBLE),
    "input dtype": lambda m: setattr(m.graph.inputs[0], "dtype", ir.DataType.DOUBLE),
    "sequence dtype": lambda m: setattr(m.graph.inputs[2], "dtype", ir.DataType.DOUBLE),
    "denotation": lambda m: setattr(m.graph.inputs[0].type, "denotation", "IMAGE"),
    "shape": lambda m: setattr(m.graph[0].outputs[0], "shape", None),
    "dimension": lambda m: m.graph[0].outputs[0].shape.__setitem__(0, 7),
    "value metadata": lambda m: m.graph.inputs[0].metadata_props.update(key="value"),
    "value meta": lambda m: m.graph.inputs[0].meta.update(key="value"),
    "value doc string": lambda m: setattr(m.graph.inputs[0], "doc_string", "changed"),
    "body nodes": lambda m: setattr(branch(m.graph)[0], "op_type", "Mul"),
    "body name": lambda m: setattr(branch(m.graph), "name", "renamed"),
    "body output": lambda m: branch(m.graph).outputs.pop(),
}


@pytest.mark.parametrize("change", MUTATIONS)
@pytest.mark.parametrize("fails", [True, False])
def test_a_module_pass_changes_a_copy(change, fails):
    model = build()
    before = state(model)

    def mutate(mod, ctx):
        MUTATIONS[change](mod)
        if fails:
            raise RuntimeError("half done")
        return mod

    pass_ = create_module_pass("mutates", 0, mutate)
    if fails:
        with pytest.raises(PassError, match="half done"):
            pass_(model)
    else:
        assert state(pass_(model)) != before
    assert state(model) == before


@pytest.mark.parametrize("change", MUTATIONS)
@pytest.mark.parametrize("visited", ["main", "then_body", "f"])
def test_a_function_pass_changes_a_copy_wherever_it_begins(change, visited):
    """It gets the model too, and may reach for it from any function."""
    model = build()
    before = state(model)

    def mutate(function, mod, ctx):
        if function.name == visited:
            MUTATIONS[change](mod)
            raise RuntimeError("half done")
        return function

    with pytest.raises(PassError, match="half done"):
        create_function_pass("mutates", 0, mutate)(model)
    assert state(model) == before


GRAPH_CHANGES = {
    "name": lambda f: setattr(f, "doc_string", "changed"),
    "metadata": lambda f: f.metadata_props.update(key="value"),
    "opset": lambda f: f.opset_imports.update(new=1),
    "node": lambda f: setattr(f[0], "op_type", "Changed"),
    "append": lambda f: f.append(ir.node("Relu", [f[0].outputs[0]])),
    "output": lambda f: setattr(f.outputs[0], "doc_string", "changed"),
}


@pytest.mark.parametrize("change", GRAPH_CHANGES)
@pytest.mark.parametrize("visited", ["main", "then_body", "else_body", "f"])
def test_what_one_function_has_changed_is_in_the_result(change, visited):
    """The copy is made when the first function is looked into, which may be any; all that was handed out is part of it."""
    model = build()
    before = state(model)
    handed_out = {}

    def mutate(function, mod, ctx):
        name = ["main", "then_body", "else_body", "f"][len(handed_out)]
        handed_out[name] = function
        if name == visited:
            GRAPH_CHANGES[change](function)
        return function

    result = create_function_pass("mutates", 0, mutate)(model)
    assert state(model) == before and state(result) != before
    (if_node,) = (node for node in result.graph if node.op_type == "If")
    actual = {
        "main": result.graph,
        "then_body": if_node.attributes["then_branch"].as_graph(),
        "else_body": if_node.attributes["else_branch"].as_graph(),
        "f": result.functions[("local", "f", "")],
    }
    assert all(handed_out[name] is actual[name] for name in actual)
    changed = state(result)
    GRAPH_CHANGES[change](model.functions[("local", "f", "")] if visited == "f" else model.graph)
    assert state(result) == changed, "the result does not depend on the original any more"


@pytest.mark.parametrize("visited", ["main", "then_body", "else_body", "f"])
def test_a_function_may_be_replaced_unseen(visited):
    made = ir.from_proto(
        parser.parse_model(TEXT.replace("LeakyRelu <alpha = 0.5>", "Sigmoid").replace("Relu (p)", "Abs (p)"))
    )
    others = {"main": made.graph, "f": made.functions[("local", "f", "")]}
    body = ir.Graph([], [ir.Value(name="t")], nodes=[], name="new_body")

    names = []

    def replace(function, mod, ctx):
        names.append(["main", "then_body", "else_body", "f"][len(names)])
        return others.get(visited, body) if names[-1] == visited else function

    result = create_function_pass("replaces", 0, replace)(build())
    (if_node,) = (node for node in result.graph if node.op_type == "If")
    actual = {
        "main": result.graph,
        "then_body": if_node.attributes["then_branch"].as_graph(),
        "else_body": if_node.attributes["else_branch"].as_graph(),
        "f": result.functions[("local", "f", "")],
    }
    assert actual[visited] is others.get(visited, body)


def test_who_looks_at_nothing_gets_the_same_model_back():
    model = build()
    nothing = create_function_pass("nothing", 0, lambda function, mod, ctx: function)
    assert Sequential([nothing, Sequential([nothing]), nothing])(model) is model


@pytest.mark.parametrize("pass_", [EliminateIdentity(), SimplifyExpr(), SimplifyInference()])
def test_passes_copy_no_model_that_has_none_of_their_operators(pass_):
    text = TEXT.replace("Mul (b, w)", "Max (b, w)").replace("Add (", "Min (")
    assert not {"Add", "Mul"} & {node.op_type for node in parser.parse_model(text).graph.node}
    model = ir.from_proto(parser.parse_model(text))
    assert pass_(model) is model


@pytest.mark.parametrize("replaced", ["Min (b, v)", "Neg (b)"])
def test_an_operator_in_a_branch_is_enough_to_be_looked_at(replaced):
    text = TEXT.replace("Add (", "Min (").replace(replaced, "Identity (b)")
    model = ir.from_proto(parser.parse_model(text))
    assert EliminateIdentity()(model) is not model


def test_an_empty_pass_still_sees_every_function_and_skips_the_marked():
    model = build()
    model.functions[("local", "f", "")].metadata_props["Primitive"] = "1"
    branch(model.graph).metadata_props["SkipOptimization"] = "1"
    calls = []
    nothing = create_function_pass("nothing", 0, lambda function, mod, ctx: (calls.append(function), function)[1])
    assert nothing(model) is model
    assert [function.name for function in calls] == ["main", "else_body"]


def test_a_function_that_is_kept_after_the_pass_belongs_to_nobody():
    model, kept = build(), []
    create_function_pass("keeps", 0, lambda function, mod, ctx: (kept.append(function), function)[1])(model)
    kept[0][0].op_type = "Changed"
    assert model.graph[0].op_type == "LeakyRelu"


def test_a_function_pass_that_adds_a_function_first_of_all_is_refused():
    @function_pass(opt_level=0)
    def add(function, mod, ctx):
        mod.functions[("local", "g", "")] = ir.Function(
            "local", "g", graph=ir.Graph([], [], nodes=[], name="g"), attributes=[]
        )
        return function

    model = build()
    before = state(model)
    with pytest.raises(PassError, match="cannot add or delete functions"):
        add(model)
    assert state(model) == before


def test_weights_share_their_bytes_and_nothing_else():
    model = build()
    model.graph.initializers["w"].const_value = ir.tensor(np.ones(2, np.float32), name="w")
    touched = create_module_pass("touches", 0, lambda mod, ctx: (mod.graph, mod)[1])(model)
    assert touched.graph.initializers["w"] is not model.graph.initializers["w"]
    known, made = (each.graph.initializers["w"].const_value for each in (model, touched))
    assert np.shares_memory(known.numpy(), made.numpy())
    touched.graph.initializers["w"].name = made.metadata_props["a"] = "b"
    assert (known.name, known.metadata_props) == ("w", {})


def test_a_model_out_of_order_can_be_sorted():
    model = build()
    nodes = list(model.graph)
    model.graph.remove(nodes)
    model.graph.extend(reversed(nodes))
    assert model.graph[0].op_type == "Add"
    result = TopologicalSort()(model)
    seen = {*result.graph.inputs, *result.graph.initializers.values()}
    for node in result.graph:
        assert seen.issuperset(node.inputs)
        seen.update(node.outputs)
    assert model.graph[0].op_type == "Add"


def test_annotations_of_devices_point_into_the_copy():
    model = build()
    model.add_device_configuration("two", num_devices=2)
    node = model.graph[0]
    spec = ir.ShardingSpec(value=node.outputs[0], device=(0,), sharded_dims=())
    node.device_configurations = (
        ir.NodeDeviceConfiguration(configuration=model.device_configurations[0], sharding_specs=(spec,)),
    )
    touched = create_module_pass("touches", 0, lambda mod, ctx: (mod.graph, mod)[1])(model)
    ((copied,),) = (configuration.sharding_specs for configuration in touched.graph[0].device_configurations)
    assert copied.value is touched.graph[0].outputs[0]


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_copies_of_random_models_are_equal(seed, wrapped):
    proto, _ = random_model(seed)
    model = ir.from_proto(inside_function(proto) if wrapped else proto)
    draft = Draft(Draft(model))
    draft.fill()
    assert ir.to_proto(draft) == ir.to_proto(model)
    assert not {id(v) for n in draft.graph.all_nodes() for v in n.inputs} & {
        id(v) for n in model.graph.all_nodes() for v in n.inputs if v is not None
    }


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("part", [lambda m: m, lambda m: m.graph, lambda m: m.functions[("local", "f", "")]])
def test_drafts_can_be_copied_and_end_as_plain_models(how, part):
    copies, model = [], build()

    def look(function, mod, ctx):
        copies.append(how(part(mod) if function.name == "main" else function))
        return function

    result = create_function_pass("looks", 0, look)(model)
    assert [type(c) for c in copies[1:]] == [ir.Graph, ir.Graph, ir.Function]
    assert type(copies[0]) in (ir.Model, ir.Graph, ir.Function)
    assert (type(result), type(result.graph)) == (ir.Model, ir.Graph)
    assert type(copy.copy(result)) is ir.Model and ir.to_proto(copy.copy(result)) == ir.to_proto(model)


def test_libraries_take_drafts_for_models():
    model = build()
    result = Sequential([common.InlinePass(), InferType(), common.NameFixPass()])(model)
    assert not result.functions and len(model.functions) == 1
    assert isinstance(result, ir.Model) and isinstance(result.graph, ir.Graph)
    ir.to_proto(result.clone())


def test_the_operators_with_bodies_are_those_of_onnx():
    kinds = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
    schemas = (schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == "")
    assert {s.name for s in schemas if any(a.type in kinds for a in s.attributes.values())} == _CONTROL_FLOW


def test_bodies_of_other_domains_are_visited():
    model, seen = build(), []
    branching = next(node for node in model.graph if node.op_type == "If")
    branching.domain, branching.op_type = "elsewhere", "Choose"
    create_function_pass("visits", 0, lambda function, mod, ctx: (seen.append(function), function)[1])(model)
    assert [function.name for function in seen] == ["main", "then_body", "else_body", "f"]
