from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from tests.combinations import first
from tests.unit.transform.graphs import assert_same, random_model, run

from collage.frontend import read_model
from collage.transform import InferType, PassContext, Repeat, default_passes, prepare
from collage.transform._fingerprint import fingerprint


def names(model: ir.Model) -> list[str]:
    return [node.name for graph in model.graphs() for node in graph]


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for graph in model.graphs() for node in graph]


@pytest.mark.parametrize("seed", first(50, range(150)))
def test_outputs_stay_equal_on_random_models(seed):
    proto, inputs = random_model(seed)
    expected = run(proto, inputs)
    model = read_model(proto)
    assert_same(expected, run(model, inputs))
    prepared = prepare(model)
    assert_same(expected, run(prepared, inputs))
    assert [value.name for value in prepared.graph.inputs] == [value.name for value in proto.graph.input]
    assert [value.name for value in prepared.graph.outputs] == [value.name for value in proto.graph.output]
    assert len(set(names(prepared))) == len(names(prepared)) and all(names(prepared))


@pytest.mark.parametrize("seed", first(8, range(20)))
def test_prepare_is_idempotent_and_converges(seed):
    proto, _ = random_model(seed)
    once = prepare(read_model(proto))
    twice = prepare(once)
    assert fingerprint(twice) == fingerprint(once)
    assert names(twice) == names(once)
    passes = default_passes()
    passes(read_model(proto))
    (repeat,) = [member for member in passes.passes if isinstance(member, Repeat)]
    assert repeat.converged and repeat.rounds <= 5


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_keeps_outputs(level):
    for seed in range(100, 106):
        proto, inputs = random_model(seed)
        with PassContext(opt_level=level):
            assert_same(run(proto, inputs), run(prepare(read_model(proto)), inputs))


def test_the_original_is_unchanged_and_weights_are_shared():
    proto, _ = random_model(7)
    model = read_model(proto)
    for value in model.graph.initializers.values():
        value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    before = str(model)
    arrays = [value.const_value.numpy() for value in model.graph.initializers.values()]
    prepared = prepare(model)
    assert str(model) == before
    kept = [value for value in prepared.graph.initializers.values() if value.const_value.nbytes > 400]
    convolutions = [value for value in kept if "folded" not in value.name]
    assert convolutions
    for value in convolutions:
        assert any(np.shares_memory(value.const_value.numpy(), array) for array in arrays)


def test_nothing_grows_by_folding():
    model = read_model(
        parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[1] x) => (float[1000, 1000] y, float[4, n] z)
        <int64[2] big = {1000, 1000}, float[1, 1] one = {2}, int64[2] reps = {4, 1000}> {
            zeros = ConstantOfShape (big)
            wide = Expand (one, big)
            sum = Add (zeros, wide)
            y = Add (sum, x)
            tiled = Tile (one, reps)
            z = Mul (tiled, x)
        }
    """)
    )
    prepared = prepare(model)
    assert sum(value.const_value.nbytes for value in prepared.graph.initializers.values()) < 1000
    assert {"ConstantOfShape", "Expand", "Tile"} <= set(op_types(prepared))


def test_paddings_that_an_exporter_computes_become_constants():
    # As PyTorch's exporter writes them: zeros are appended, and pairs turned round.
    model = read_model(
        parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[1, 2, 3, 3] x) => (float[n, c, h, w] y)
        <int64[4] given = {1, 0, 1, 0}, int64[1] four = {4}, int64[2] pairs = {-1, 2}, int64[1] last = {-1},
         int64[1] beyond = {-9223372036854775807}, int64[1] first = {0}> {
            zeros = ConstantOfShape <value = int64[1] {0}> (four)
            all = Concat <axis = 0> (given, zeros)
            rows = Reshape (all, pairs)
            turned = Slice (rows, last, beyond, first, last)
            columns = Transpose <perm = [1, 0]> (turned)
            pads = Reshape (columns, last)
            y = Pad (x, pads)
        }
    """)
    )
    prepared = prepare(model)
    assert op_types(prepared) == ["Pad"]
    pads = prepared.graph[0].inputs[1].const_value.numpy().tolist()
    assert pads == [0, 0, 1, 1, 0, 0, 0, 0]
    assert list(prepared.graph.outputs[0].shape) == [1, 2, 4, 4]


def test_random_operators_are_neither_folded_nor_merged():
    model = read_model(
        parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[4] x, bool c) => (float[4] y)
        <float[4] half = {0.5, 0.5, 0.5, 0.5}, float ratio = {0.5}, bool yes = {1}> {
            a = Bernoulli (half)
            b = Bernoulli (half)
            d = Dropout (half, ratio, yes)
            e = Dropout (half, ratio, yes)
            r = RandomNormal <shape = [4]> ()
            s = RandomNormal <shape = [4]> ()
            i = If (c) <
                then_branch = t () => (float[4] p) { p0 = Bernoulli (half) p1 = Bernoulli (half) p = Add (p0, p1) },
                else_branch = f () => (float[4] q) { q = Identity (half) }
            >
            y = Sum (a, b, d, e, r, s, i, x)
        }
    """)
    )
    kinds = op_types(prepare(model))
    assert kinds.count("Bernoulli") == 4
    assert kinds.count("Dropout") == 2
    assert kinds.count("RandomNormal") == 2


def test_batch_normalisation_in_training_mode_stays():
    model = read_model(
        parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y, float[1] m, float[1] v)
        <float[1, 1, 1, 1] w = {2}, float[1] s = {3}, float[1] z = {4}> {
            c = Conv (x, w)
            y, m, v = BatchNormalization <training_mode = 1> (c, s, z, z, s)
        }
    """)
    )
    assert "BatchNormalization" in op_types(prepare(model))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "GemmTransB"])
def test_batch_normalisation_folds_into_every_linear_operator(kind, groups):
    random = np.random.default_rng(3)
    if kind.startswith("Gemm"):
        attributes = "alpha = 0.5, beta = 2.0" + (", transB = 1" if kind.endswith("B") else "")
        linear, shape, weight = f"Gemm <{attributes}>", "2, 4", (6, 4) if kind.endswith("B") else (4, 6)
    else:
        linear, shape = f"{kind} <group = {groups}>", "2, 4, 5, 5"
        weight = (6, 4 // groups, 2, 3) if kind == "Conv" else (4, 6 // groups, 2, 3)
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[{shape}] x) => (float y) {{
            c = {linear} (x, w, b)
            y = BatchNormalization <epsilon = 0.01> (c, scale, shift, mean, var)
        }}
    """)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    arrays = {"w": random.standard_normal(weight), "b": random.standard_normal(6), "var": random.uniform(0.5, 2, 6)}
    arrays |= {name: random.standard_normal(6) for name in ("scale", "shift", "mean")}
    from onnx import numpy_helper

    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    inputs = {"x": random.standard_normal([int(dim) for dim in shape.split(",")]).astype(np.float32)}
    prepared = prepare(read_model(model))
    assert op_types(prepared) == [kind.removesuffix("TransB")]
    assert_same(run(model, inputs), run(prepared, inputs), 1e-5)


def test_a_gemm_bias_that_varies_along_the_rows_is_not_folded():
    proto = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[2, 2] x) => (float[2, 2] y)
        <float[2, 2] w = {1, 2, 3, 4}, float[2, 1] b = {5, 6}, float[2] s = {3, 7}, float[2] m = {4, 9}> {
            c = Gemm (x, w, b)
            y = BatchNormalization (c, s, s, m, s)
        }
    """)
    inputs = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    prepared = prepare(read_model(proto))
    assert op_types(prepared) == ["Gemm", "BatchNormalization"]
    assert_same(run(proto, inputs), run(prepared, inputs))


def test_shared_weights_are_not_doubled_by_folding():
    proto = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y, float[1, 1, 2, 2] z)
        <float[1, 1, 1, 1] w = {2}, float[1] s = {3}, float[1] m = {4}> {
            c = Conv (x, w)
            y = BatchNormalization (c, s, s, m, s)
            z = Conv (c, w)
        }
    """)
    prepared = prepare(read_model(proto))
    assert sorted(op_types(prepared)) == ["BatchNormalization", "Conv", "Conv"]


def test_shapes_are_inferred_with_symbols():
    model = read_model(
        parser.parse_model(
            """
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[batch, 3, 8] x) => (y) { s = Relu (x) y = Transpose <perm = [0, 2, 1]> (s) }
    """.replace("=> (y)", "=> (float y)")
        )
    )
    model.graph.outputs[0].shape = None
    inferred = InferType()(model)
    assert [str(dim) for dim in inferred.graph.outputs[0].shape] == ["batch", "8", "3"]
    assert model.graph.outputs[0].shape is None


def test_a_cast_like_another_value_keeps_how_it_rounds():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        f (float[2] x, float8e4m3fn[0] like) => (float8e4m3fn[2] y) {y = CastLike <saturate = 0> (x, like)}"""
    )
    (node,) = prepare(read_model(model)).graph
    assert node.attributes["saturate"].as_int() == 0


@pytest.mark.parametrize("op_type", ["Identity", "Sum", "Mean", "Max", "Min"])
def test_what_hands_its_only_input_on_is_dropped_or_says_so(op_type):
    """Where an output has to be an input it stays, as an Identity."""
    text = f"g (float[2] x) => (float[2] y, float[2] z) {{ a = {op_type} (x) y = Abs (a) z = {op_type} (x) }}"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    prepared = prepare(ir.from_proto(proto))
    assert sorted(node.op_type for node in prepared.graph) == ["Abs", "Identity"]


def test_a_sum_of_two_stays():
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Sum (x, x) }'
    )
    assert [node.op_type for node in prepare(ir.from_proto(proto)).graph] == ["Sum"]
