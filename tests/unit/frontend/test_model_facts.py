"""Digest, weights, interface, inputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from tests.unit.transform.graphs import assert_same, run

from collage._errors import UsageError
from collage.frontend import (
    WEIGHTS_FILE,
    bind_dims,
    describe_inputs,
    describe_outputs,
    make_inputs,
    model_digest,
    place_weights,
    read_model,
)


def weighted(change: float = 0.0) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[batch, seq] tokens, float[batch, seq, 1] mask) => (float[batch, seq, 8] y) {
            e = Gather (table, tokens)
            h = MatMul (e, w)
            s = Add (h, b)
            y = Mul (s, mask)
        }
    """)
    arrays = {"table": random.standard_normal((50, 64)), "w": random.standard_normal((64, 8)), "b": np.zeros(8)}
    arrays["w"][3, 4] += change
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    return proto


def test_digest_is_the_same_wherever_weights_are(tmp_path):
    model = read_model(weighted())
    placed = place_weights(model, tmp_path)
    assert model_digest(placed) == model_digest(model)
    ir.save(placed, tmp_path / "m.onnx")
    assert model_digest(read_model(tmp_path / "m.onnx")) == model_digest(model)


def test_digest_ignores_documentation_and_notices_everything_else():
    digest = model_digest(read_model(weighted()))
    documented = weighted()
    documented.doc_string = documented.graph.doc_string = documented.graph.node[0].doc_string = "text"
    documented.producer_name = "somebody"
    assert model_digest(read_model(documented)) == digest
    others = [weighted(change=1e-3)]
    for edit in range(3):
        other = weighted()
        if edit == 0:
            other.graph.node[2].op_type = "Sub"
        elif edit == 1:
            other.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
        else:
            other.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        others.append(other)
    assert len({digest, *(model_digest(read_model(other)) for other in others)}) == 5


def test_placed_weights_are_identical_aligned_and_shared(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        "large": random.standard_normal(40_000).astype(np.float32),
        "medium": random.standard_normal(300).astype(np.float64),
        "half": random.standard_normal(2_000).astype(ml_dtypes.bfloat16),
        "nibbles": random.integers(-8, 8, 3_001).astype(ml_dtypes.int4),
        "small": np.ones(4, np.float32),
    }
    tensors = {name: ir.tensor(array, name=name) for name, array in arrays.items()}
    tensors["tied"] = tensors["large"]
    values = [ir.Value(name=name, const_value=tensor) for name, tensor in tensors.items()]
    graph = ir.Graph([], [], nodes=[], initializers=values, name="g", opset_imports={"": 21})
    model = ir.Model(graph, ir_version=10)
    placed = place_weights(model, tmp_path)
    for name, array in arrays.items():
        tensor = placed.graph.initializers[name].const_value
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.tobytes() == tensors[name].tobytes()
        assert isinstance(tensor, ir.ExternalTensor) == (name != "small")
    external = {name: value.const_value for name, value in placed.graph.initializers.items() if name != "small"}
    assert all(tensor.offset % (4096 if tensor.nbytes > 65536 else 64) == 0 for tensor in external.values())
    assert external["tied"].offset == external["large"].offset
    assert (tmp_path / WEIGHTS_FILE).stat().st_size < 40_000 * 4 + 2_000 * 4 + 300 * 8 + 8192
    assert model.graph.initializers["large"].const_value is tensors["large"]
    again = place_weights(placed, tmp_path)
    np.testing.assert_array_equal(again.graph.initializers["large"].const_value.numpy(), arrays["large"])
    np.testing.assert_array_equal(external["large"].numpy(), arrays["large"])
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS_FILE]


def test_placed_model_runs(tmp_path):
    proto = weighted()
    placed = place_weights(read_model(proto), tmp_path)
    inputs = make_inputs(placed, dims={"batch": 2, "seq": 5})
    loaded = ir.external_data.load_to_model(placed)
    assert_same(run(proto, inputs), run(loaded, inputs), 1e-6)


def test_interface():
    model = read_model(weighted())
    assert [str(spec) for spec in describe_inputs(model)] == ["tokens: int64[batch, seq]", "mask: float[batch, seq, 1]"]
    assert [spec.shape for spec in describe_outputs(model)] == [("batch", "seq", 8)]


def test_dimensions_are_bound_by_value_name_and_rank():
    model = read_model(weighted())
    assert bind_dims(model) == {"tokens": (1, 128), "mask": (1, 128, 1)}
    assert bind_dims(model, {"seq": 7, "batch": 2}) == {"tokens": (2, 7), "mask": (2, 7, 1)}
    with pytest.raises(UsageError, match="did you mean 'seq'"):
        bind_dims(model, {"seqq": 7})
    with pytest.raises(UsageError, match="cannot be -1"):
        bind_dims(model, {"seq": -1})
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3, None, None])
    p = helper.make_tensor_value_info("p", TensorProto.FLOAT, ["past + seq", "2*seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("ReduceSum", ["x"], ["a"]), helper.make_node("Add", ["a", "p"], ["y"])]
    image = read_model(helper.make_model(helper.make_graph(nodes, "g", [x, p], [y])))
    assert bind_dims(image) == {"x": (1, 3, 224, 224), "p": (129, 2)}
    assert bind_dims(image, {"x[0]": 4, "x[2]": 32, "x[3]": 32, "seq": 3, "past": 5}) == {
        "x": (4, 3, 32, 32),
        "p": (8, 6),
    }


@pytest.mark.parametrize("total", ["total_sequence_length", "past_sequence_length + sequence_length"])
def test_a_decoder_takes_one_token_after_a_past(total):
    shapes = {
        "input_ids": ["batch", "sequence_length"],
        "attention_mask": ["batch", total],
        "past_key_values.0.key": ["batch", 2, "past_sequence_length", 8],
        "encoder_hidden_states": ["batch", "encoder_sequence_length", 8],
    }
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [helper.make_node("ReduceSum", ["input_ids"], ["y"])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    decoder = read_model(helper.make_model(helper.make_graph(nodes, "g", inputs, [y])))
    assert list(bind_dims(decoder).values()) == [(1, 1), (1, 129), (1, 2, 128, 8), (1, 128, 8)]
    given = {"sequence_length": 4, "past_sequence_length": 0}
    assert list(bind_dims(decoder, given).values()) == [(1, 4), (1, 4), (1, 2, 0, 8), (1, 128, 8)]


def test_a_decoder_is_known_by_what_it_returns_longer():
    """``torch.export`` names no lengths, but says that a cache is returned with the new tokens."""
    shapes = {"ids": ["s26", "s70"], "attention_mask": ["s43", "s53"], "cache": ["s26", 2, "s62", 8]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [helper.make_node("ReduceSum", ["ids"], ["y"])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["s26", 2, "s62 + s70", 8])
    decoder = read_model(helper.make_model(helper.make_graph(nodes, "g", inputs, [y])))
    assert list(bind_dims(decoder).values()) == [(1, 1), (1, 129), (1, 2, 128, 8)]
    assert list(bind_dims(decoder, {"s70": 4, "s62": 3}).values()) == [(1, 4), (1, 7), (1, 2, 3, 8)]


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        (["s0", 3, "s1", "s2"], (1, 3, 224, 224)),
        (["unk__1", "unk__2", "unk__3", 3], (1, 224, 224, 3)),
        (["p2o.DynamicDimension.0", 3, 48, "p2o.DynamicDimension.1"], (1, 3, 48, 224)),
        (["N", "C", "H", "W"], (1, 1, 224, 224)),
        (["s0", 8, "s1", 64], (1, 8, 128, 64)),
        (["s0", 3, "s1", "s2", "s3"], (1, 3, 32, 32, 32)),
        (["s0", "s1"], (1, 128)),
        ([None, None, 80], (1, 128, 80)),
        ([1, None], (1, 128)),
        ([2, None, 128], (2, 1, 128)),
        (["s0"], (1,)),
        ([2, "s0", "batch"], (2, 1, 1)),
    ],
)
def test_the_place_of_a_dimension_decides_if_its_name_tells_nothing(shape, lengths):
    model = ir.from_onnx_text('<ir_version: 9, opset_import: ["": 17]> g (float[1] x) => (float[m] z) { z = Relu (x) }')
    model.graph.inputs[0].shape = ir.Shape(shape)
    assert bind_dims(model) == {"x": lengths}


def test_the_first_place_of_a_symbol_decides():
    text = "(int64[s0, s1] ids, float[s0, 1, s1, s1] mask) => (float[m] z) { z = Relu (mask) }"
    model = ir.from_onnx_text(f'<ir_version: 9, opset_import: ["": 17]> g {text}')
    assert bind_dims(model) == {"ids": (1, 128), "mask": (1, 1, 128, 128)}


def test_inputs_are_plausible_and_repeatable():
    model = read_model(weighted())
    inputs = make_inputs(model, seed=3, dims={"batch": 4, "seq": 100})
    assert inputs["tokens"].shape == (4, 100)
    assert inputs["tokens"].min() >= 0 and 40 < inputs["tokens"].max() < 50
    assert (inputs["mask"] == 1).all()
    again, other = make_inputs(model, seed=3), make_inputs(model, seed=4)
    assert (make_inputs(model, seed=3)["tokens"] == again["tokens"]).all()
    assert (again["tokens"] != other["tokens"]).any()


def test_integers_behind_casts_and_in_loops_are_in_range():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int32[6] ids, int64 trips, bool c, uint8[2, 3] image, int64[1] size) => (float[6, 4] y, float z, float[n] v)
        <float[3, 4] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}> {
            wide = Cast <to = 7> (ids)
            y = Gather (table, wide)
            f = Cast <to = 1> (image)
            z0 = ReduceSum <keepdims = 0> (f)
            z = Loop (trips, c, z0) <body = b (int64 i, bool g0, float s) => (bool g1, float t) {
                g1 = Identity (g0) t = Add (s, s) }>
            v = ConstantOfShape (size)
        }
    """)
    inputs = make_inputs(read_model(proto))
    assert inputs["ids"].dtype == np.int32 and inputs["ids"].max() <= 2
    assert inputs["trips"].shape == () and 1 <= inputs["trips"] < 10 and inputs["c"]
    assert inputs["image"].max() > 8 and inputs["size"] == [1]
    run(proto, inputs)


def test_every_element_type_can_be_made():
    for dtype in (
        TensorProto.BFLOAT16,
        TensorProto.FLOAT16,
        TensorProto.INT8,
        TensorProto.STRING,
        TensorProto.COMPLEX64,
    ):
        x = helper.make_tensor_value_info("x", dtype, [2, 2])
        y = helper.make_tensor_value_info("y", dtype, [2, 2])
        model = read_model(
            helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y]))
        )
        array = make_inputs(model)["x"]
        assert array.shape == (2, 2)
        assert array.dtype == (
            np.dtype(object) if dtype == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(dtype)
        )
