"""Every shipped pass, and random sequences of them, keep what models compute."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnx_ir as ir
import pytest
from examples.models import initial_mnist, mnist_to_onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from onnx.backend.test.case.node import collect_testcases
from tests.unit.transform.graphs import assert_same, generic_passes, inside_function, random_model, run
from tests.unit.transform.test_prepare_onnx_cases import _differs, _feeds, _reference

from collage._errors import ModelError
from collage.frontend import make_inputs, read_model
from collage.transform import (
    FoldConstant,
    InferType,
    PassContext,
    Repeat,
    Sequential,
    default_passes,
    get_pass,
    is_random,
    prepare,
)
from collage.transform._validity import check_valid

SHIPPED = generic_passes()
DATA = Path(onnx.backend.test.__file__).parent / "data"


def apply(names: list[str], model: ir.Model, level: int = 3) -> ir.Model:
    with PassContext(opt_level=level):
        return Sequential([get_pass(name) for name in names])(model)


def names_of(values) -> list[str]:
    return [value.name for value in values]


@pytest.mark.few(12)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_pass_alone_on_random_models(name):
    for seed in range(200, 208):
        proto, inputs = random_model(seed, nodes=30)
        model = read_model(proto)
        before = str(model)
        result = apply([name], model)
        assert_same(run(proto, inputs), run(result, inputs))
        assert names_of(result.graph.outputs) == names_of(model.graph.outputs)
        check_valid(result)
        assert str(model) == before


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pass_alone_on_a_raw_model(name):
    """Not from the front door: Constant nodes, no names, no types inside, dead nodes."""
    for seed in range(300, 302):
        proto, inputs = random_model(seed, nodes=30)
        assert_same(run(proto, inputs), run(apply([name], ir.from_proto(proto)), inputs))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pass_alone_on_a_function(name):
    for seed in range(400, 404):
        proto, inputs = random_model(seed, nodes=30)
        model = ir.from_proto(inside_function(proto))
        assert_same(run(proto, inputs), run(apply([name], model), inputs))


@pytest.mark.parametrize("mark", ["Primitive", "SkipOptimization"])
def test_marked_functions_are_left_as_they_are(mark):
    for seed in range(410, 414):
        model = ir.from_proto(inside_function(random_model(seed, nodes=30)[0]))
        (function,) = model.functions.values()
        function.metadata_props[mark] = "1"
        before = str(function)
        for result in [*(apply([name], model) for name in SHIPPED), apply(SHIPPED, model), prepare(model)]:
            (kept,) = result.functions.values()
            assert [node.op_type for node in kept] == [node.op_type for node in function]
        assert str(function) == before


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(SHIPPED), min_size=2, max_size=10), st.integers(0, 3))
def test_random_sequences_on_random_models(seed, names, level):
    proto, inputs = random_model(seed, nodes=25)
    model = read_model(proto)
    result = apply(names, model, level)
    assert_same(run(proto, inputs), run(result, inputs))
    assert names_of(result.graph.outputs) == names_of(model.graph.outputs)
    check_valid(result)


def test_random_sequences_on_the_example_model():
    model = read_model(mnist_to_onnx(initial_mnist(np.random.default_rng(0))))
    inputs = make_inputs(InferType()(model))
    expected = run(model, inputs)
    chosen = random.Random(0)
    for _ in range(12):
        assert_same(expected, run(apply([chosen.choice(SHIPPED) for _ in range(6)], model), inputs))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DATA / "light").glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models_of_the_onnx_package(path):
    proto = onnx.load(path)
    model = read_model(path)
    inputs = make_inputs(InferType()(model))
    expected = run(proto, inputs)
    passes = default_passes()
    chosen = random.Random(path.stem)
    with PassContext(opt_level=3):
        assert_same(expected, run(passes(model), inputs))
    (repeat,) = [member for member in passes.passes if isinstance(member, Repeat)]
    assert repeat.converged and repeat.rounds <= 5
    for _ in range(3):
        assert_same(expected, run(apply([chosen.choice(SHIPPED) for _ in range(8)], model), inputs))


def _data_cases() -> list[Path]:
    return sorted(path for kind in ("simple", "pytorch-*") for path in DATA.glob(f"{kind}/*/model.onnx"))


def test_data_models_of_the_onnx_package():
    """Its small whole models: exported layers, sequences, strings; each under a sequence of its own."""
    compared = 0
    for path in _data_cases():
        try:
            model = read_model(path)
        except ModelError:
            continue  # the front door refuses it
        graph = onnx.load(path).graph
        tensors = [onnx.load_tensor(file) for file in sorted(path.parent.glob("test_data_set_0/input_*.pb"))]
        if not all(value.type.HasField("tensor_type") for value in graph.input):
            continue
        initialized = {tensor.name for tensor in graph.initializer}
        fed = [value.name for value in graph.input if value.name not in initialized]
        inputs = dict(zip(fed, map(numpy_helper.to_array, tensors), strict=False))
        try:
            expected = run(model, inputs)
        except Exception:
            continue  # an operator that the reference does not have
        chosen = random.Random(str(path.parent.name))
        names = [chosen.choice(SHIPPED) for _ in range(6)]
        actual = run(apply(names, model), inputs)
        assert not any(map(_differs, expected, actual)), (path.parent.name, names)
        compared += 1
    assert compared > 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_node_cases_of_the_onnx_package():
    compared, changed = 0, []
    for case in collect_testcases(None):
        model = read_model(case.model)
        feeds = _feeds(case)
        expected = _reference(case, feeds) if feeds is not None else None
        if expected is None or any(is_random(node) for node in model.graph):
            continue
        chosen = random.Random(case.name)
        names = [chosen.choice(SHIPPED) for _ in range(8)]
        actual = run(apply(names, model), feeds)
        compared += 1
        if any(map(_differs, expected, actual)):
            changed.append((case.name, names))
    assert changed == []
    assert compared > 1300


def test_a_node_that_the_library_cannot_fold_is_kept_and_the_rest_is_folded():
    model = ir.from_proto(
        parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[4, 6] x, int64 size) => (seq(float[?, ?]) parts, float[4, 6] y) <float two = {2}, float three = {3}> {
            parts = SplitToSequence <axis = 0> (x, size)
            six = Mul (two, three)
            y = Mul (x, six)
        }""")
    )
    assert [node.op_type for node in FoldConstant()(model).graph] == ["SplitToSequence", "Mul"]
