from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from tests.unit.transform.graphs import assert_same, random_model, run

from collage._errors import ModelError, UsageError
from collage.frontend import (
    Budgets,
    bind_dims,
    default_of,
    describe_inputs,
    fix_lengths,
    make_inputs,
    model_digest,
    read_model,
)
from collage.graph import copy_model


def tiny(body: str = "y = Relu (x)", opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[4] x) => (float[4] y) {{ {body} }}'
    )


def test_every_kind_of_source_gives_the_same_model(tmp_path):
    proto = tiny()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    texts = {
        str(read_model(source).graph)
        for source in (path, str(path), proto.SerializeToString(), proto, ir.from_proto(proto))
    }
    assert len(texts) == 1


def test_sources_are_not_changed():
    proto, _ = random_model(5)
    before = proto.SerializeToString(deterministic=True)
    read_model(proto)
    assert proto.SerializeToString(deterministic=True) == before
    model = ir.from_proto(proto)
    text = str(model)
    read_model(model)
    assert str(model) == text


def test_missing_path_and_wrong_kinds_are_usage_errors(tmp_path):
    for source in (tmp_path / "none.onnx", tmp_path / "none" / "m.onnx", "a\0b", 7, None):
        with pytest.raises(UsageError) as error:
            read_model(source)
        assert error.value.exit_code == 2


def test_module_needs_example_inputs():
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="example_inputs"):
        read_model(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("seed", range(30))
def test_canonical_form(seed):
    proto, inputs = random_model(seed)
    model = read_model(proto)
    assert_same(run(proto, inputs), run(model, inputs), 1e-6)
    graphs = list(model.graphs())
    nodes = [node for graph in graphs for node in graph]
    assert not [node for node in nodes if node.op_type == "Constant"]
    names = [node.name for node in nodes]
    assert all(names) and len(set(names)) == len(names)
    values = [v.name for graph in graphs for v in (*graph.inputs, *graph.initializers.values())]
    values += [v.name for node in nodes for v in node.outputs]
    assert len(set(values)) == len(values)
    assert all(value.uses() for graph in graphs for value in graph.initializers.values())
    assert all(any(v.uses() or v.is_graph_output() for v in node.outputs) for node in nodes)
    assert 10 <= model.ir_version <= 13


def test_functions_are_expanded_with_attributes_and_nesting():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] y) { a = local.outer <slope = 0.5> (x) y = local.inner <alpha = 0.1> (a) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        outer <slope> (p) => (q) { r = local.inner <alpha : float = @slope> (p) q = Neg (r) }
        <domain: "local", opset_import: ["" : 17]>
        inner <alpha> (s) => (t) { t = LeakyRelu <alpha : float = @alpha> (s) }
    """)
    model = read_model(proto)
    assert not model.functions
    assert [node.op_type for node in model.graph] == ["LeakyRelu", "Neg", "LeakyRelu"]
    inputs = {"x": np.array([-1, 2, -3, 4], np.float32)}
    assert_same(run(proto, inputs), run(model, inputs))


@pytest.mark.parametrize("version", [17, 18])
def test_functions_that_return_an_input_or_one_value_twice_leave_names_as_they_are(version):
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[4] x) => (float[4] a, float[4] b, float[4] c) {{ a, b, c = own.F (x) }}
        <domain: "own", opset_import: ["" : {version}]>
        F (x) => (x, y, y) {{ y = Neg (x) }}
    """)
    model = read_model(proto)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in model.graph.outputs] == ["a", "b", "c"]
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(model, {"x": x}), [x, -x, -x])


def test_functions_of_another_operator_set_are_converted():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "local" : 1]>
        g (float[2, 300] x) => (float[2] y) { a = Add (x, w) y = local.f (a) }
        <domain: "local", opset_import: ["" : 17]>
        f (s) => (t) { t = ReduceMax <axes = [1], keepdims = 0> (s) }
    """)
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(300, dtype=np.float32), "w"))
    model = read_model(proto)
    assert [node.op_type for node in model.graph] == ["Add", "ReduceMax"] and model.opset_imports[""] == 18
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)}
    assert_same([(inputs["x"] + np.arange(300, dtype=np.float32)).max(1)], run(model, inputs))


@pytest.mark.parametrize(
    "call",
    [
        "y = own.Outer (x)",
        "y = If (c) <then_branch = t () => (float[2,3] a) {a = own.Inner (x)}, else_branch = e () => (float b) {b = Abs (x)}>",
        "y = own.Learned (x)",
    ],
)
def test_functions_of_another_version_with_the_same_operators_are_expanded_anywhere(call):
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18, "own" : 1, "ai.onnx.ml" : 3]>
        g (float[2,3] x, bool c) => (float[2,3] y) {{ {call} }}
        <domain: "own", opset_import: ["" : 18, "own" : 2]> Outer (p) => (q) {{ r = own.Inner (p) q = Neg (r) }}
        <domain: "own", opset_import: ["" : 17]> Inner (s) => (t) {{ t = LeakyRelu <alpha = 0.5> (s) }}
        <domain: "own", opset_import: ["ai.onnx.ml" : 1]> Learned (s) => (t) {{ t = ai.onnx.ml.Normalizer <norm = "MAX"> (s) }}
    """)
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32), "c": np.array(True)}
    assert_same(run(proto, inputs), run(read_model(proto), inputs))


def test_trailing_empty_inputs_and_unused_parts_are_dropped():
    proto = tiny("dead = Neg (x) y = LayerNormalization (x, one, )")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "one"))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "unused"))
    proto.graph.node[1].input.append("")
    model = read_model(proto)
    (node,) = model.graph
    assert len(node.inputs) == 2
    assert list(model.graph.initializers) == ["one"]


def test_trailing_empty_inputs_are_dropped_in_bodies():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, bool c) => (float[4] y) <float[4] one = {1, 1, 1, 1}> {
            y = If (c) <
                then_branch = a () => (float[4] t) { t = LayerNormalization (x, one) },
                else_branch = b () => (float[4] e) { e = Relu (x) }
            >
        }
    """)
    proto.graph.node[0].attribute[0].g.node[0].input.append("")
    model = read_model(proto)
    inner = next(node for graph in model.graphs() for node in graph if node.op_type == "LayerNormalization")
    assert len(inner.inputs) == 2


def with_default(elements: int = 4, ir_version: int = 9) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("w", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.full(elements, 2, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def test_initializers_that_are_inputs_are_defaults():
    proto = with_default()
    model = read_model(proto)
    for found in (model, copy_model(model), read_model(model), read_model(ir.to_proto(model).SerializeToString())):
        (value,) = found.graph.inputs
        assert not found.graph.initializers
        np.testing.assert_array_equal(default_of(value), np.full(4, 2, np.float32))
        assert [str(spec) for spec in describe_inputs(found)] == ["w: float[n] (optional)"]
        assert bind_dims(found) == {"w": (4,)}
        np.testing.assert_array_equal(make_inputs(found, 3)["w"], np.full(4, 2, np.float32))
        assert make_inputs(found, 3, {"n": 7})["w"].shape == (7,)
    assert proto == with_default()


def test_models_with_other_defaults_have_other_digests():
    other = with_default()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full(4, 3, np.float32), "w"))
    assert model_digest(read_model(with_default())) != model_digest(read_model(other))


def test_a_length_that_contradicts_a_default_is_refused():
    fix_lengths(read_model(with_default()), {"n": 4})
    with pytest.raises(UsageError, match="'n' cannot be 5: it is 4 in the default of input 'w'"):
        fix_lengths(read_model(with_default()), {"n": 5})


@pytest.mark.parametrize("proto", [with_default(ir_version=3), with_default(elements=1 << 15)])
def test_initializers_of_old_or_large_inputs_are_constants(proto):
    model = read_model(proto)
    assert not model.graph.inputs
    assert not model.graph.initializers["w"].is_graph_input()


@pytest.mark.parametrize("text", ["", "?", "AAAA", "CAEQAUoEAAAAQA==x", "CAEQC0oIAAAAAAAAAAA=", "CIAEEAE="])
def test_damaged_defaults_are_refused(text):
    model = read_model(with_default())
    model.graph.inputs[0].metadata_props["collage.default"] = text
    with pytest.raises(ModelError, match="default of"):
        read_model(ir.to_proto(model).SerializeToString())


def test_text_constants_keep_every_character():
    nodes = [
        helper.make_node("Constant", [], ["a"], value_string="é\0"),
        helper.make_node("Constant", [], ["b"], value_strings=["日本", "", "x\0"]),
    ]
    outputs = [
        helper.make_tensor_value_info("a", TensorProto.STRING, []),
        helper.make_tensor_value_info("b", TensorProto.STRING, [3]),
    ]
    graph = helper.make_graph(nodes, "g", [], outputs)
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    tensors = [value.const_value for value in model.graph.initializers.values()]
    found = sorted((tuple(tensor.shape.numpy()), list(tensor.string_data())) for tensor in tensors)
    assert found == [((), ["é\0".encode()]), ((3,), ["日本".encode(), b"", b"x\0"])]


def test_unsorted_nodes_are_sorted():
    proto = tiny("a = Relu (x) y = Neg (a)")
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    assert [node.op_type for node in read_model(proto).graph] == ["Relu", "Neg"]


def test_constant_and_input_outputs_get_a_node():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[1] k, float[4] x2) { k = Constant <value = float[1] {3}> () x2 = Identity (x) }
    """)
    model = read_model(proto)
    assert [value.name for value in model.graph.outputs] == ["k", "x2"]
    assert all(value.producer() is not None for value in model.graph.outputs)
    assert run(model, {"x": np.zeros(4, np.float32)})[0] == [3]


def test_outputs_that_are_constants_take_no_name_that_is_in_use():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1] x) => (float[1] k, float[1] z) <float[1] k = {3}, float[1] k_source = {4}> { z = Add (x, k_source) }
    """)
    assert run(read_model(proto), {"x": np.ones(1, np.float32)}) == [[3], [5]]


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_old_operator_sets_are_raised(opset):
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["u"], axes=[0]),
        helper.make_node("Softmax", ["u"], ["s"], axis=1),
        helper.make_node("MatMul", ["s", "w"], ["m"]),
        helper.make_node("Squeeze", ["m"], ["y"], axes=[0]),
    ]
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((3, 300)).astype(np.float32), "w")
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 300])],
        [weight],
    )
    proto = helper.make_model(graph, ir_version=4, opset_imports=[helper.make_opsetid("", opset)])
    model = read_model(proto)
    assert model.opset_imports[""] == 13
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)}
    assert_same(run(proto, inputs), run(model, inputs), 1e-5)


def test_new_operator_sets_and_foreign_domains_are_kept():
    proto = tiny("y = Relu (x)", opset=21)
    assert read_model(proto).opset_imports[""] == 21
    node = proto.graph.node[0]
    node.op_type, node.domain = "QuickGelu", "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert [n.domain for n in read_model(proto).graph] == ["com.microsoft"]


def test_training_information_is_ignored():
    proto = tiny()
    proto.training_info.add()
    assert len(read_model(proto).graph) == 1


def test_dimension_of_minus_one_is_unknown():
    proto = tiny()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    (dim,) = read_model(proto).graph.inputs[0].shape
    assert isinstance(dim, ir.SymbolicDim) and dim.value is None


@pytest.mark.parametrize("name", ["", "?", "*", "??"])
def test_dimensions_without_a_name_are_unknown_each_for_itself(name):
    proto = tiny()
    shape = [name, name, "batch", "?x"]
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, shape))
    for value in (*(model := read_model(proto)).graph.inputs, *model.graph.outputs):
        assert [dim.value for dim in value.shape] == [None, None, "batch", "?x"]


@pytest.mark.parametrize("wrap", [lambda kind: kind, helper.make_sequence_type_proto, helper.make_optional_type_proto])
def test_other_outputs_made_of_maps_are_refused_with_the_remedy(wrap):
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    maps = wrap(helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_value_info("y", maps)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    with pytest.raises(ModelError, match=r"'y' .* maps.*zipmap=False"):
        read_model(helper.make_model(graph, ir_version=8, opset_imports=opsets))


def test_strings_are_read():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g () => (string[2] y) <string[2] w = {"a", "b"}> { y = Identity (w) }
    """)
    assert read_model(proto).graph.initializers["w"].const_value.numpy().tolist() == [b"a", b"b"]


def test_operators_that_the_converter_gets_wrong_stay_in_their_set():
    proto = parser.parse_model("""
        <ir_version: 4, opset_import: ["" : 8]>
        g (float[1, 2] init, float[1, 3, 2] x) => (float[1, 2] y, float[1, 3, 2] z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] t, float[2] u) {
                t = Add (s, e) u = Identity (t) }> ( , init, x)
        }
    """)
    model = read_model(proto)
    assert model.opset_imports[""] == 8
    inputs = {"init": np.zeros((1, 2), np.float32), "x": np.ones((1, 3, 2), np.float32)}
    assert_same(run(proto, inputs), run(model, inputs))


@pytest.mark.parametrize(("version", "last"), [(6, 3), (6, 5), (7, 3)])
def test_slopes_lie_where_their_operator_set_says(version, last):
    """Before set 7 along the channels, since then they are broadcast: along the last axis."""
    proto = parser.parse_model(f"""
        <ir_version: 4, opset_import: ["" : {version}]>
        g (float[2, 3, 4, {last}] x, float[3] s) => (float[2, 3, 4, {last}] y) {{ a = Neg (x) y = PRelu (a, s) }}
    """)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, last), np.float32)
    s = np.float32([2, 3, 4])
    slopes = s.reshape(3, 1, 1) if version < 7 else s
    (y,) = run(read_model(proto), {"x": x, "s": s})
    np.testing.assert_array_equal(y, np.where(x > 0, -x * slopes, -x))


def test_external_weights_are_mapped_not_loaded(tmp_path):
    folder = tmp_path / "sub"
    (folder / "data").mkdir(parents=True)
    array = np.arange(4096, dtype=np.float32)
    (folder / "data" / "w.bin").write_bytes(bytes(64) + array.tobytes())
    proto = tiny("z = ReduceSum (w) y = Add (x, z)")
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[4096], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="data/w.bin")
    tensor.external_data.add(key="offset", value="64")
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    weight = read_model(folder / "m.onnx").graph.initializers["w"].const_value
    assert isinstance(weight, ir.ExternalTensor)
    np.testing.assert_array_equal(weight.numpy(), array)
    with pytest.raises(ModelError, match="has no folder"):
        read_model(proto)


def test_external_tensors_of_models_in_memory_are_checked_too(tmp_path):
    model = ir.from_proto(tiny("y = Add (x, w)".replace("w", "x")))
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(16))
    folder = tmp_path / "folder"
    folder.mkdir()
    tensor = ir.ExternalTensor(
        "../secret.bin", 0, 16, ir.DataType.FLOAT, shape=ir.Shape([4]), name="w", base_dir=str(folder)
    )
    value = ir.Value(name="w", const_value=tensor)
    model.graph.register_initializer(value)
    model.graph[0].replace_input_with(1, value)
    with pytest.raises(ModelError, match="not a plain relative path"):
        read_model(model)


def test_budgets_can_be_set():
    proto = tiny("a = Relu (x) b = Relu (a) y = Relu (b)")
    read_model(proto, budgets=Budgets(nodes=3))
    with pytest.raises(ModelError, match="more than 2 nodes"):
        read_model(proto, budgets=Budgets(nodes=2))
    with pytest.raises(ModelError, match="bytes"):
        read_model(proto, budgets=Budgets(value_bytes=8))


def test_messages_name_the_node():
    with pytest.raises(ModelError, match=r"'culprit' \(Add\).*'ghost'"):
        proto = tiny("y = Add (x, ghost)")
        proto.graph.node[0].name = "culprit"
        read_model(proto)


def test_plans_of_other_devices_are_dropped():
    proto = parser.parse_model(
        """<ir_version: 11, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] y) { z = Relu (x) y = local.f (z) }
        <domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Neg (a) }"""
    )
    proto.configuration.add(name="two", num_devices=2)
    for node in (proto.graph.node[0], proto.functions[0].node[0]):
        node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    model = read_model(proto)
    assert not model.device_configurations
    assert all(not node.device_configurations for node in model.graph)


def test_a_loop_that_lacks_a_result_of_its_body_is_refused():
    body = "b (int64 i, bool c0, float[4] s) => (bool c1, float[4] t) { c1 = Identity (c0) t = Neg (s) }"
    given = "n = Constant <value_int: int = 3> () c = Constant <value: tensor = bool {1}> ()"
    read_model(tiny(f"{given} y = Loop <body = {body}> (n, c, x)"))
    with pytest.raises(ModelError, match=r"is not a valid model.*Loop"):
        read_model(tiny(f"{given} y = Loop <body = {body}> (n, c, x, x)"))


def test_digests_tell_classes_and_outputs_that_are_listed_twice_apart():
    def of_classes(*labels: str) -> onnx.ModelProto:
        node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=labels)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
        maps = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        y = helper.make_value_info("y", helper.make_sequence_type_proto(maps))
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
        return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=8)

    twice = tiny()
    twice.graph.output.add().CopyFrom(twice.graph.output[0])
    protos = (tiny(), twice, of_classes("cat", "dog"), of_classes("hot", "cold"))
    assert len({model_digest(read_model(proto)) for proto in protos}) == len(protos)
