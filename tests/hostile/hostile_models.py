"""Hostile models, generated: each entry writes one attack into a folder and returns the path of the model."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CORPUS: dict[str, Callable[[Path], Path]] = {}
"""Models that are refused."""

LABORIOUS: dict[str, Callable[[Path], Path]] = {}
"""Models that are valid, but gigabytes of work to whoever takes their lengths for shapes."""


def attack(function: Callable[[Path], Path]) -> Callable[[Path], Path]:
    CORPUS[function.__name__] = function
    return function


def laborious(function: Callable[[Path], Path]) -> Callable[[Path], Path]:
    LABORIOUS[function.__name__] = function
    return function


def model(nodes, *, initializers=(), inputs=None, outputs=None, functions=(), opset=17, name="g") -> onnx.ModelProto:
    inputs = inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    outputs = outputs or [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(list(nodes), name, inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=list(functions))


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def external(location: str, *, elements: int = 4, **entries: str) -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return model([helper.make_node("Add", ["x", "w"], ["y"], name="add")], initializers=[tensor])


def secret(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}-secret.bin"
    path.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    return path


def constant(name: str, values, dtype=np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


@attack
def text_file(folder):
    path = folder / "model.onnx"
    path.write_text("This is not a model, whatever its name says.\n" * 20)
    return path


@attack
def empty_file(folder):
    path = folder / "model.onnx"
    path.write_bytes(b"")
    return path


@attack
def folder_instead_of_file(folder):
    return folder


@attack
def named_pipe(folder):
    path = folder / "model.onnx"
    os.mkfifo(path)
    return path


@attack
def truncated(folder):
    data = model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[constant("w", np.ones(4), np.float32)])
    path = folder / "model.onnx"
    path.write_bytes(data.SerializeToString()[:-9])
    return path


@attack
def parent_path(folder):
    return save(external(f"../{secret(folder).name}"), folder)


@attack
def hidden_parent_path(folder):
    (folder / "a").mkdir()
    return save(external(f"a/../../{secret(folder).name}"), folder)


@attack
def absolute_path(folder):
    return save(external(str(secret(folder))), folder)


@attack
def proc_environment(folder):
    return save(external("/proc/self/environ"), folder)


@attack
def backslash_path(folder):
    return save(external(f"..\\{secret(folder).name}"), folder)


@attack
def empty_location(folder):
    return save(external(""), folder)


@attack
def private_marker(folder):
    return save(external("*/_ORT_MEM_ADDR_/*", offset="140000000000", length="16"), folder)


@attack
def missing_file(folder):
    return save(external("nothing.bin"), folder)


@attack
def linked_file(folder):
    (folder / "w.bin").symlink_to(secret(folder))
    return save(external("w.bin"), folder)


@attack
def linked_file_inside(folder):
    (folder / "real.bin").write_bytes(bytes(16))
    (folder / "w.bin").symlink_to("real.bin")
    return save(external("w.bin"), folder)


@attack
def linked_folder(folder):
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(16))
    (folder / "a").symlink_to(outside)
    return save(external("a/w.bin"), folder)


@attack
def hard_link(folder):
    os.link(secret(folder), folder / "w.bin")
    return save(external("w.bin"), folder)


@attack
def pipe_as_weights(folder):
    os.mkfifo(folder / "w.bin")
    return save(external("w.bin"), folder)


@attack
def folder_as_weights(folder):
    (folder / "w.bin").mkdir()
    return save(external("w.bin"), folder)


def _with_weights(folder: Path, **entries: str) -> Path:
    (folder / "w.bin").write_bytes(bytes(16))
    return save(external("w.bin", **entries), folder)


@attack
def negative_offset(folder):
    return _with_weights(folder, offset="-4", length="16")


@attack
def huge_length(folder):
    return _with_weights(folder, length=str(2**50))


@attack
def wrapping_offset(folder):
    return _with_weights(folder, offset=str(2**63 - 8))


@attack
def past_the_end(folder):
    return _with_weights(folder, offset="8", length="16")


@attack
def unknown_external_key(folder):
    return _with_weights(folder, **{"__class__": "x"})


@attack
def external_in_attribute(folder):
    tensor = external(f"../{secret(folder).name}").graph.initializer[0]
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])]
    return save(model(nodes), folder)


def _bomb(levels: int) -> onnx.ModelProto:
    functions = []
    for level in range(levels):
        inner = f"f{level - 1}" if level else "Relu"
        domain = "local" if level else ""
        nodes = [
            helper.make_node(inner, ["a"], ["b"], domain=domain),
            helper.make_node(inner, ["b"], ["c"], domain=domain),
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["c"], nodes, imports))
    return model([helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="local")], functions=functions)


@attack
def function_bomb(folder):
    return save(_bomb(24), folder)


@attack
def function_bomb_of_a_thousand_levels(folder):
    return save(_bomb(1000), folder)


@attack
def recursive_function(folder):
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    nodes = [helper.make_node("f", ["a"], ["b"], domain="local")]
    function = helper.make_function("local", "f", ["a"], ["b"], nodes, imports)
    return save(model([helper.make_node("f", ["x"], ["y"], domain="local")], functions=[function]), folder)


@attack
def deep_nesting(folder):
    def branch(depth: int) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"o{depth}", TensorProto.FLOAT, None)
        if depth == 0:
            return helper.make_graph([helper.make_node("Relu", ["x"], ["o0"])], "leaf", [], [out])
        body = branch(depth - 1)
        node = helper.make_node("If", ["c"], [f"o{depth}"], then_branch=body, else_branch=body)
        return helper.make_graph([node], f"b{depth}", [], [out])

    outer = branch(1)
    for _ in range(29):
        inner = onnx.GraphProto()
        inner.CopyFrom(outer)
        out = f"{inner.output[0].name}n"
        leaf = helper.make_graph(
            [helper.make_node("Relu", ["x"], [f"{out}e"])],
            "e",
            [],
            [helper.make_tensor_value_info(f"{out}e", TensorProto.FLOAT, None)],
        )
        node = helper.make_node("If", ["c"], [out], then_branch=inner, else_branch=leaf)
        outer = helper.make_graph([node], "n", [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
    nodes = [*outer.node, helper.make_node("Identity", [outer.output[0].name], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    return save(model(nodes, inputs=inputs), folder)


@attack
def too_many_nodes(folder):
    chain = [helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(250_000)]
    return save(model([*chain, helper.make_node("Relu", ["v250000"], ["y"])]), folder)


@attack
def huge_constant_of_shape(folder):
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["z"]), helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0)]
    return save(model(nodes, initializers=[constant("s", [2**40])]), folder)


@attack
def huge_expand(folder):
    nodes = [helper.make_node("Expand", ["x", "s"], ["z"]), helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0)]
    return save(model(nodes, initializers=[constant("s", [2**30, 4])]), folder)


@attack
def huge_initializer(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**31, 2**31, 2**31])
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def wrapping_dimensions(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**62, 4], raw_data=bytes(0))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def negative_dimension(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4, -1], raw_data=bytes(16))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def too_little_data(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(8))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def unknown_element_type(folder):
    tensor = TensorProto(name="w", data_type=99, dims=[4], raw_data=bytes(16))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def many_dimensions(folder):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 100_000, raw_data=bytes(4))
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[tensor]), folder)


@attack
def cycle(folder):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    return save(model([*nodes, helper.make_node("Relu", ["b"], ["y"])]), folder)


@attack
def cycle_through_a_body(folder):
    body = helper.make_graph(
        [helper.make_node("Relu", ["late"], ["t"])],
        "b",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)]
    )
    nodes = [
        helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=other),
        helper.make_node("Relu", ["r"], ["late"]),
        helper.make_node("Relu", ["late"], ["y"]),
    ]
    return save(model(nodes, initializers=[constant("c", True, np.bool_)]), folder)


@attack
def duplicate_output(folder):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    return save(model(nodes), folder)


@attack
def output_named_like_an_input(folder):
    return save(model([helper.make_node("Relu", ["x"], ["x"]), helper.make_node("Relu", ["x"], ["y"])]), folder)


@attack
def duplicate_initializers(folder):
    pair = [constant("w", np.ones(4), np.float32), constant("w", np.zeros(4), np.float32)]
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=pair), folder)


@attack
def duplicate_functions(folder):
    function = _bomb(1).functions[0]
    return save(model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=[function, function]), folder)


@attack
def undefined_input(folder):
    return save(model([helper.make_node("Add", ["x", "ghost"], ["y"])]), folder)


@attack
def undefined_capture(folder):
    body = helper.make_graph(
        [helper.make_node("Relu", ["ghost"], ["t"])],
        "b",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return save(model([node], initializers=[constant("c", True, np.bool_)]), folder)


@attack
def undefined_graph_output(folder):
    return save(model([helper.make_node("Relu", ["x"], ["z"])]), folder)


@attack
def unknown_operator(folder):
    return save(model([helper.make_node("Explode", ["x"], ["y"], name="boom")]), folder)


@attack
def future_opset(folder):
    return save(model([helper.make_node("Relu", ["x"], ["y"])], opset=9000), folder)


@attack
def missing_opset_import(folder):
    return save(model([helper.make_node("Thing", ["x"], ["y"], domain="nowhere")]), folder)


@attack
def wrong_attribute_type(folder):
    return save(model([helper.make_node("Concat", ["x", "x"], ["y"], axis="zero")]), folder)


@attack
def missing_attribute(folder):
    return save(model([helper.make_node("Concat", ["x", "x"], ["y"])]), folder)


@attack
def repeated_attribute(folder):
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    node.attribute.add().CopyFrom(node.attribute[0])
    return save(model([node]), folder)


@attack
def name_that_is_no_text(folder):
    path = save(model([helper.make_node("Relu", ["x"], ["y"])]), folder)
    path.write_bytes(path.read_bytes().replace(b"Relu", b"Re\xff\xfe"))
    return path


@attack
def no_graph(folder):
    return save(onnx.ModelProto(ir_version=8), folder)


@attack
def no_outputs(folder):
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    del proto.graph.output[:]
    return save(proto, folder)


@attack
def long_string(folder):
    node = helper.make_node("Relu", ["x"], ["y"], doc_string="A" * (2**24 + 1))
    return save(model([node]), folder)


@attack
def socket_as_weights(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "w.bin"))
    return save(external("w.bin"), folder)


@attack
def memory_of_the_process(folder):
    return Path("/proc/self/mem")


@attack
def two_gigabytes_of_nothing(folder):
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 - 1)
    return path


@attack
def doubling_constants(folder):
    nodes = [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)]
    nodes += [helper.make_node("ReduceSum", ["c40"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])]
    return save(model(nodes, initializers=[constant("c0", [1.0], np.float32)]), folder)


@attack
def too_many_inputs_of_a_node(folder):
    return save(model([helper.make_node("Sum", ["x"] * 500_000, ["y"])]), folder)


@attack
def too_many_functions(folder):
    opsets = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    functions = [helper.make_function("local", f"f{i}", ["a"], ["b"], body, opsets) for i in range(10_001)]
    return save(model([helper.make_node("Relu", ["x"], ["y"])], functions=functions), folder)


@attack
def too_much_metadata(folder):
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    proto.graph.node[0].metadata_props.extend([onnx.StringStringEntryProto(key="k", value="v")] * 500_000)
    return save(proto, folder)


def _text(text: str, folder: Path) -> Path:
    return save(onnx.parser.parse_model(text), folder)


@laborious
def long_vector_in_a_body(folder):
    """Propagates the contents of what a body says it is given: 2^31 lengths, though the value given has 4."""
    path = _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        carries (float[4] x) => (float[4] y) <int64 three = {3}, bool true = {1}> {
            y = Loop (three, true, x) <
                body = step (int64 i, bool going, float[2147483648] carried) => (bool on, float[4] next) {
                    on = Identity (going)
                    index = Cast <to = 1> (i)
                    next = Add (carried, index)
                }
            >
        }""",
        folder,
    )
    proto = onnx.load(path)
    body = proto.graph.node[0].attribute[0].g
    body.input[0].type.Clear()
    body.input[0].type.sparse_tensor_type.SetInParent()
    return save(proto, folder)


@laborious
def long_vector_that_might_be_a_shape(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (int64[1000000000] s) => (float y) {
            twice = Add (s, s)
            z = ConstantOfShape (twice)
            y = ReduceSum <keepdims = 0> (z)
        }""",
        folder,
    )


@laborious
def long_range_that_might_be_a_shape(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1] x) => (float y) <int64 zero = {0}, int64 many = {1000000000}, int64 one = {1}> {
            r = Range (zero, many, one)
            s = Add (r, r)
            z = Expand (x, s)
            y = ReduceSum <keepdims = 0> (z)
        }""",
        folder,
    )


@laborious
def long_vector_in_a_function_of_an_old_operator_set(folder):
    """Expanded on the way in, by a converter of ONNX's."""
    return _text(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (int64[1000000000] s) => (float y) { y = local.f (s) }
        <domain: "local", opset_import: ["" : 12]>
        f (s) => (y) { t = Add (s, s) z = ConstantOfShape (t) y = ReduceSum <keepdims = 0> (z) }""",
        folder,
    )


@laborious
def doubling_lengths_in_a_body(folder):
    """Every length is told by the one before it, and contents are propagated as they double."""
    lines = "\n".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(29))
    return _text(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (int64[1] c0, bool c) => (float y) {{
            y = If (c) <
                then_branch = big () => (float t) {{
                    {lines}
                    z = ConstantOfShape (c29)
                    t = ReduceSum <keepdims = 0> (z)
                }},
                else_branch = small () => (float e) {{ e = Cast <to = 1> (c0) }}
            >
        }}""",
        folder,
    )


def _field(number: int, payload: bytes) -> bytes:
    """A delimited field of protobuf."""
    length = len(payload)
    digits = []
    while length >= 128:
        digits.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *digits, length]) + payload


@attack
def dimensions_by_the_million(folder):
    """Two bytes each, which become eighty: the parser would take gigabytes before anything is counted."""
    shape = _field(1, b"") * (25 * 2**20)
    tensor_type = _field(1, bytes([8, 1]) + _field(2, shape))
    graph = _field(11, _field(1, b"x") + _field(2, tensor_type))
    path = folder / "model.onnx"
    path.write_bytes(bytes([8, 9]) + _field(7, graph))
    return path


@attack
def values_by_the_million(folder):
    path = folder / "model.onnx"
    path.write_bytes(bytes([8, 9]) + _field(7, _field(13, b"") * (25 * 2**20)))
    return path


@laborious
def many_vectors_that_might_be_shapes(folder):
    """None is too long for a shape, but there are a thousand."""
    nodes = [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(1000)]
    inputs = [helper.make_tensor_value_info("v0", TensorProto.INT64, [2**17])]
    outputs = [helper.make_tensor_value_info("v1000", TensorProto.INT64, None)]
    return save(model(nodes, inputs=inputs, outputs=outputs), folder)


@laborious
def vectors_of_vectors_of_an_old_operator_set(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 10]>
        g (int64[1000000000] s) => (int64[n] z) { t = Add (s, s) z = Add (t, t) }""",
        folder,
    )


@attack
def huge_value_in_a_body(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (bool c) => (float y) {
            y = If (c) <
                then_branch = big () => (float t) {
                    s = Constant <value = int64[1] {1099511627776}> ()
                    z = ConstantOfShape (s)
                    t = ReduceSum <keepdims = 0> (z)
                },
                else_branch = small () => (float e) { e = Constant <value_float = 1.0> () }
            >
        }""",
        folder,
    )
