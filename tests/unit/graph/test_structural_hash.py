from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graph import DataflowGraph, SubGraph, extract, structural_hash, weight_class

from .random_graphs import Builder, random_model

SEEDS = st.integers(0, 10_000)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_names_docs_and_node_order_do_not_matter(seed):
    model = random_model(seed, 12)
    before = structural_hash(model)
    rng = random.Random(seed)
    nodes = list(model.graph)
    rng.shuffle(nodes)
    for k, node in enumerate(nodes):
        model.graph.remove(node)
        model.graph.append(node)
        node.name, node.doc_string = f"renamed{k}", "words"
        for output in node.outputs:
            output.name = f"value{k}_{output.index()}"
    for k, value in enumerate((*model.graph.inputs, *list(model.graph.initializers.values()))):
        value.name, value.doc_string = f"outer{k}", "more words"
    model.graph.name = "other"
    assert structural_hash(model) == before
    assert structural_hash(ir.from_proto(ir.to_proto(model))) == before


def base(**change):
    """A small kernel with something of everything, and one thing changed."""
    g = {
        "op": "Relu",
        "domain": "",
        "opset": 21,
        "axis": 1,
        "shape": (2, 4),
        "dtype": ir.DataType.FLOAT,
        "weight_shape": (4, 4),
        "weight_dtype": np.float32,
        "weight": 1.0,
        "scalar": np.float32(2),
        "indices": np.array([3, 0, 1, 2]),
        "swap": False,
        "share": True,
        "dims": None,
        "body": "Tanh",
        "two_outputs": False,
        "composite": "",
    } | change
    b = Builder(g["opset"])
    type_ = ir.TensorType(g["dtype"])
    x = b.input("x", g["dims"] or g["shape"], type_)
    y, c = b.input("y", g["shape"], type_), b.input("c", (), ir.TensorType(ir.DataType.BOOL))
    w = b.constant(np.full(g["weight_shape"], g["weight"], g["weight_dtype"]))
    h = b.op("MatMul", x, w)
    first = b.op(g["op"], h)
    first.producer().domain = g["domain"]
    if g["composite"]:
        first.producer().metadata_props["Composite"] = g["composite"]
    again = first if g["share"] else b.op(g["op"], h)
    left, right = (first, y) if not g["swap"] else (y, first)
    z = b.op("Sub", left, right)
    z = b.op("Mul", b.op("Add", z, again), b.constant(g["scalar"]))
    z = b.op("Gather", z, b.constant(g["indices"]), axis=g["axis"])
    then, other = Builder(), Builder()
    branch = ir.Graph([], [then.op(g["body"], z)], nodes=then.nodes, name="then")
    orelse = ir.Graph([], [other.op("Neg", z)], nodes=other.nodes, name="else")
    result = b.op("If", c, then_branch=branch, else_branch=orelse)
    return b.model([x, y, c], [result, z] if g["two_outputs"] else [result])


def test_equal_kernels_have_equal_hashes():
    assert structural_hash(base()) == structural_hash(base()) and len(structural_hash(base())) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"op": "Abs"},
        {"domain": "acme"},
        {"opset": 20},
        {"axis": 0},
        {"shape": (3, 4)},
        {"dims": ("n", 4)},
        {"dtype": ir.DataType.DOUBLE},
        {"weight_shape": (4, 5)},
        {"weight_dtype": np.float16},
        {"weight": 0.0},
        {"weight": 1e-40},
        {"scalar": np.float32(3)},
        {"scalar": np.array([2], np.float32)},
        {"indices": np.array([3, 0, 2, 1])},
        {"indices": np.array([3, 0, 1, 2], np.int32)},
        {"swap": True},
        {"share": False},
        {"body": "Sin"},
        {"two_outputs": True},
        {"composite": "lib.relu#0"},
    ],
    ids=str,
)
def test_everything_else_matters(change):
    assert structural_hash(base(**change)) != structural_hash(base())


def test_values_of_weights_do_not_matter_but_their_class_does():
    assert structural_hash(base(weight=1.0)) == structural_hash(base(weight=2.0))
    sparse = base(weight=0.0)
    assert structural_hash(sparse) != structural_hash(base())
    assert structural_hash(sparse, classify_weights=False) == structural_hash(base(), classify_weights=False)


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.ones(10, np.float32), "plain"),
        (np.array([0, 0, 1, 1], np.float32), "sparse"),
        (np.array([0, 1, 1, 1], np.float32), "plain"),
        (np.array([1, 1e-40], np.float32), "denormal"),
        (np.array([0, 0, 1e-40], np.float32), "sparse+denormal"),
        (np.array([1e-6, 1], np.float16), "denormal"),
        (np.zeros(10, np.int8), "plain"),
        (np.zeros((0, 3), np.float32), "plain"),
        (np.concatenate([np.zeros(90_000), np.ones(10_000)]).astype(np.float32), "sparse"),
    ],
)
def test_weight_classes(array, name):
    assert weight_class(ir.tensor(array)) == name


def test_which_of_two_equal_nodes_a_node_reads_matters():
    def made(second_reads_first):
        b = Builder()
        x = b.input("x")
        one, two = b.op("Relu", x), b.op("Relu", x)
        left, middle, right = b.op("Neg", one), b.op("Abs", one if second_reads_first else two), b.op("Sin", two)
        return b.model([x], [left, middle, right])

    assert structural_hash(made(True)) != structural_hash(made(False))


def test_order_of_inputs_matters():
    def made(flip):
        b = Builder()
        x, y = b.input("x"), b.input("y")
        return b.model([y, x] if flip else [x, y], [b.op("Sub", x, y)])

    assert structural_hash(made(True)) != structural_hash(made(False))


def test_scales_of_a_resize_are_part_of_the_structure():
    def made(scale):
        b = Builder()
        x = b.input("x", (1, 1, 2, 2))
        y = b.op("Resize", x, None, b.constant(np.array([1, 1, scale, 2], np.float32)), shape=(1, 1, 4, 4))
        return b.model([x], [y])

    assert structural_hash(made(2.0)) != structural_hash(made(2.4))


def test_twelve_equal_layers_have_one_hash():
    b = Builder()
    x = y = b.input("x")
    rng = np.random.default_rng(0)
    for _ in range(12):
        h = b.op("MatMul", y, b.constant(rng.normal(size=(4, 4)).astype(np.float32)))
        h = b.op("Softmax", b.op("Add", h, b.constant(rng.normal(size=4).astype(np.float32))), axis=-1)
        y = b.op("Add", y, h)
    graph = DataflowGraph(b.model([x], [y]))
    assert len(graph) == 48
    kernels = [extract(graph, SubGraph(graph, range(k, k + 4)), f"k{k}") for k in range(0, 48, 4)]
    assert len({structural_hash(kernel) for kernel in kernels}) == 1
