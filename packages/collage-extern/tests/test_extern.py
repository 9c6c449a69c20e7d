"""Native kernels that call libraries keep the contract; what is labelled is called, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from collage.fusion import collect_candidates, gather_fusion_specs, max_coalesce
from collage.graph import (
    COMPOSITE,
    DataflowGraph,
    IndexSet,
    KernelSpec,
    NestedSubGraph,
    SubGraph,
    extract,
    kernel_model,
    kernels_of,
    partition,
    structural_hash,
)
from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, Support, Unsupported, UsageError, registry
from collage.workers.worker import Worker
from collage_extern.functions import ExternFunction, ExternLibraries, ExternLibrary, extern_libraries
from collage_extern.toolchain import ExternToolchain

pytest.importorskip("tvm")
pytest.importorskip("torch")

TARGET = Target.parse("llvm -libs=extern")
PAD = "pads = [1,1,1,1]"


@pytest.mark.slow  # TVM's own contract, which is not, runs the same code but for the calls.
class TestExtern(ToolchainTestCase):
    toolchain = ExternToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max"})  # native code drops NaN here
    refuses = frozenset({"dynamic_expand"})


@pytest.mark.slow
class TestExternInOneThread(ToolchainTestCase):
    toolchain = ExternToolchain()
    target = "llvm -libs=extern -threads=1"
    differs = frozenset({"not_finite_relu", "not_finite_max"})
    refuses = frozenset({"dynamic_expand"})


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(text: str, marks: Sequence[str] = (), **weights: np.ndarray) -> ir.Model:
    """A kernel with shapes throughout, as prepared models have them; its nodes labelled, in order, where marks are given."""
    from onnx_ir.passes.common import ShapeInferencePass

    model = kernel("k", text, {name: value for name, value in weights.items() if re.search(rf"\b{name}\b", text)})
    ShapeInferencePass()(model)
    for node, mark in zip(model.graph, marks, strict=False):
        if mark:
            node.metadata_props[COMPOSITE] = mark
    return model


def labels_of(compiled: Any) -> list[str]:
    return [label for label, _ in compiled.metadata["calls"]]


def run(model: ir.Model, workspace: Path, toolchain: ExternToolchain | None = None) -> list[str]:
    """Compiles a kernel, compares what it computes with ONNX Runtime, several times over, and returns what it calls."""
    import onnxruntime

    toolchain = toolchain or ExternToolchain()
    compiled = toolchain.compile(model, TARGET, workspace)
    loaded = toolchain.load(compiled, TARGET, workspace, LoadOptions(threads=2))
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(3):
        inputs = [numbers(*value.shape.numpy(), seed=seed) for value in model.graph.inputs]
        wanted = session.run(None, {value.name: x for value, x in zip(model.graph.inputs, inputs, strict=True)})
        for y, expected in zip(loaded(inputs), wanted, strict=True):
            assert y.shape == expected.shape and y.dtype == expected.dtype
            np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    return labels_of(compiled)


ACTIVATIONS = (
    "y = Relu (c)",
    "y = Sigmoid (c)",
    "y = Tanh (c)",
    "y = HardSwish (c)",
    "y = LeakyRelu <alpha = 0.2> (c)",
    "y = Gelu (c)",
    "y = Clip (c, low, high)",
    "s = Sigmoid (c) y = Mul (c, s)",
)
BOUNDS = {"low": np.float32(-0.5), "high": np.float32(0.7)}

WINDOWS = {
    "conv1d": ((2, 3, 20), "Conv <pads = [2,1], strides = [2]> (x, w, b)", (8, 3, 3)),
    "conv2d": ((2, 4, 9, 10), "Conv <pads = [2,1,2,1], dilations = [2,1]> (x, w, b)", (8, 4, 3, 3)),
    "uneven": ((1, 4, 9, 10), "Conv <pads = [0,1,2,1]> (x, w)", (8, 4, 3, 3)),
    "same": ((1, 4, 9, 10), 'Conv <auto_pad = "SAME_UPPER", strides = [2,2]> (x, w, b)', (8, 4, 3, 3)),
    "grouped": ((1, 4, 9, 9), "Conv <group = 2> (x, w, b)", (8, 2, 3, 3)),
    "depthwise": ((1, 6, 9, 9), f"Conv <group = 6, {PAD}> (x, w)", (6, 1, 3, 3)),
    "one_channel": ((1, 1, 9, 9), "Conv (x, w)", (8, 1, 3, 3)),
    "conv3d": ((1, 3, 5, 6, 7), "Conv <pads = [1,1,1,1,1,1]> (x, w)", (4, 3, 3, 3, 3)),
    "transposed1d": ((1, 3, 9), "ConvTranspose <strides = [2], pads = [1,1]> (x, w)", (3, 4, 4)),
    "transposed2d": (
        (1, 4, 6, 5),
        "ConvTranspose <strides = [2,3], pads = [1,0,1,0], output_padding = [1,2]> (x, w)",
        (4, 5, 3, 3),
    ),
    "transposed3d": ((1, 3, 4, 4, 4), "ConvTranspose <strides = [2,2,2]> (x, w)", (3, 5, 2, 2, 2)),
}


def text_of(shape: tuple[int, ...], body: str, rank: int) -> str:
    return f"(float[{','.join(map(str, shape))}] x) => (float[{','.join('ABCDE'[:rank])}] y) {{{body}}}"


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_of_every_kind_with_native_code_around_them(name: str, tmp_path: Path) -> None:
    shape, call, weights = WINDOWS[name]
    text = text_of(shape, f"a = Abs (x) c = {call.replace('(x', '(a')} e = Exp (c) y = Sub (e, c)", len(shape))
    kind = "conv_transpose" if "Transpose" in call else "conv"
    assert run(model_of(text, w=numbers(*weights) / 9, b=numbers(8)), tmp_path) == [f"onednn.{kind}"]


def test_a_filter_of_one_channel_stays_native(tmp_path: Path) -> None:
    body = "c = Conv <pads = [1,1,1,1]> (x, w) r = Relu (c) y = MatMul (r, m)"
    model = model_of(text_of((1, 1, 9, 9), body, 4), w=numbers(1, 1, 3, 3), m=numbers(9, 9))
    assert run(model, tmp_path) == ["onednn.linear"]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda text: "_".join(re.findall(r"= (\w+)", text)))
def test_activations_are_part_of_the_call(activation: str, tmp_path: Path) -> None:
    conv = text_of((1, 4, 9, 9), f"c = Conv (x, w, b) {activation}", 4)
    assert run(model_of(conv, w=numbers(8, 4, 3, 3), b=numbers(8), **BOUNDS), tmp_path) == ["onednn.conv_activation"]


OTHERS = {
    "conv_add_relu": f"a = Conv <{PAD}> (x, w) s = Add (a, x) y = Relu (s)",
    "conv_add": f"a = Conv <{PAD}> (x, w) n = Neg (x) y = Add (n, a)",
    "conv_transpose_activation": f"a = ConvTranspose <{PAD}> (x, w) y = Relu (a)",
    "linear": "a = MatMul (x, m) y = Add (a, bias)",
    "linear_activation": "a = MatMul (x, m) s = Add (a, bias) y = Gelu (s)",
    "linear_add": "n = Neg (x) a = MatMul (x, m) y = Add (a, n)",
    "matmul": "n = Neg (x) y = MatMul (x, n)",
    "attention": "q = MatMul (x, x) s = Softmax <axis = -1> (q) y = MatMul (s, x)",
}


@pytest.mark.parametrize("label", OTHERS)
def test_every_other_label_against_onnxruntime(label: str, tmp_path: Path) -> None:
    weights = {"w": numbers(4, 4, 3, 3), "m": numbers(8, 8), "bias": numbers(8)}
    assert f"onednn.{label}" in run(model_of(text_of((2, 4, 8, 8), OTHERS[label], 4), **weights), tmp_path)


def test_a_gemm_and_a_recurrent_layer_which_native_code_lacks(tmp_path: Path) -> None:
    body = """h = LSTM <hidden_size = 16, direction = "bidirectional"> (x, wi, wr, b)
              t = Transpose <perm = [0,2,1,3]> (h) f = Reshape (t, shape) e = Gemm <transB = 1> (f, m, bias) y = Exp (e)"""
    weights = {"wi": numbers(2, 64, 5), "wr": numbers(2, 64, 16) / 4, "b": numbers(2, 128), "m": numbers(7, 32) / 5}
    model = model_of(text_of((9, 3, 5), body, 2), **weights, bias=numbers(7), shape=np.array([27, 32], np.int64))
    assert run(model, tmp_path) == ["onednn.recurrent", "onednn.linear"]


def test_every_label_is_tried() -> None:
    tried = {*OTHERS, "conv", "conv_transpose", "conv_activation", "recurrent"}
    assert {f.label for f in extern_libraries().functions()} == {f"onednn.{name}" for name in tried}


TWO = f"a = Conv <{PAD}> (x, w) r = Relu (a) e = Exp (r) c = Conv <{PAD}> (e, w) y = Tanh (c)"


@pytest.mark.parametrize(
    ("marks", "calls"),
    [
        ((), ["onednn.conv_activation"] * 2),
        (("onednn.conv#0", "", "", "native#0"), ["onednn.conv"]),
        (("native#0", "", "", "onednn.conv_activation#0", "onednn.conv_activation#0"), ["onednn.conv_activation"]),
        (("native#0", "", "", "native#1"), []),
    ],
    ids=["unlabelled", "first", "second", "native"],
)
def test_labels_choose_between_native_and_library_within_one_kernel(
    marks: Sequence[str], calls: list[str], tmp_path: Path
) -> None:
    model = model_of(text_of((1, 4, 9, 9), TWO, 4), marks, w=numbers(4, 4, 3, 3) / 9)
    assert run(model, tmp_path) == calls


@pytest.mark.parametrize(
    ("shape", "marks", "reason"),
    [
        ("float[1,4,9,9]", ("mine.conv#0",), "no function is called 'mine.conv'"),
        ("float[1,4,9,9]", ("onednn.matmul#0",), "cannot replace Conv"),
        ("float[1,4,9,9]", ("onednn.conv#0", "onednn.conv#0"), "cannot replace Conv.Relu"),
        ("float[N,4,9,9]", ("onednn.conv#0",), "static shapes; 'x' is"),
        ("float[0,4,9,9]", ("onednn.conv#0",), "for nothing"),
        ("double[1,4,9,9]", ("onednn.conv#0",), "'x' is double"),
    ],
)
def test_labels_that_cannot_be_are_refused_with_a_reason(
    shape: str, marks: Sequence[str], reason: str, tmp_path: Path
) -> None:
    text, kind = text_of((1, 4, 9, 9), TWO, 4).replace("float[1,4,9,9]", shape), np.float32
    if "double" in shape:
        text, kind = text.replace("float[", "double["), np.float64
    model = model_of(text, marks, w=numbers(4, 4, 3, 3).astype(kind))
    with pytest.raises(Unsupported, match=reason):
        ExternToolchain().compile(model, TARGET, tmp_path)


def test_other_shapes_than_the_kernels_are_an_error_and_no_crash(tmp_path: Path) -> None:
    model = model_of(text_of((1, 4, 9, 9), TWO, 4), w=numbers(4, 4, 3, 3))
    toolchain = ExternToolchain()
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    with pytest.raises(Exception, match="9"):
        loaded([numbers(1, 4, 10, 9)])
    assert loaded([numbers(1, 4, 9, 9)])[0].shape == (1, 4, 9, 9)


def test_nothing_is_transposed_between_two_functions_that_want_channels_last(tmp_path: Path) -> None:
    from collage.toolchains.tvm.kernels import import_kernel, tvm_target
    from collage_extern.lowering import outlined, reader

    body = f"a = Conv <{PAD}> (x, w) c = Conv <{PAD}> (a, w) d = Conv <{PAD}> (c, w) s = Add (d, a) y = Relu (s)"
    rest, calls = outlined(model_of(text_of((1, 4, 9, 9), body, 4), w=numbers(4, 4, 3, 3)), extern_libraries())
    module = import_kernel(rest, tmp_path, tvm_target(Target.parse("llvm")), reader(calls))
    assert len(calls) == 3 and not rest.graph.initializers
    used = [line for line in module["main"].script().splitlines() if "permute_dims" in line]
    assert len(used) == 2  # of the input, and of the last result


def test_the_search_is_offered_library_and_native_for_each_operator_and_both_in_one_kernel() -> None:
    graph = DataflowGraph(model_of(text_of((1, 4, 9, 9), TWO, 4), w=numbers(4, 4, 3, 3)))
    specs = gather_fusion_specs([TARGET], lambda _: ExternToolchain(), lambda _: lambda node: Support(True))
    labels = {candidate.sub_graph.label for candidate in collect_candidates(graph, specs)}
    assert {"onednn.conv", "native", "onednn.conv_activation", "native+Relu", "onednn.conv_activation+Exp"} <= labels
    assert "Conv" not in labels and "Conv+Relu" not in labels
    assert "Conv+Relu+Exp+Conv+Tanh" in labels  # the whole, where the toolchain chooses


def test_kernels_joined_after_the_search_keep_what_was_chosen_for_each_part(tmp_path: Path) -> None:
    graph = DataflowGraph(model_of(text_of((1, 4, 9, 9), TWO, 4), w=numbers(4, 4, 3, 3) / 9))
    specs = gather_fusion_specs([TARGET], lambda _: ExternToolchain(), lambda _: lambda node: Support(True))
    by_label = {(c.sub_graph.label, c.first): c for c in collect_candidates(graph, specs)}
    cover = [by_label["native+Relu", 0], by_label["Exp", 2], by_label["onednn.conv_activation", 3]]
    (joined,) = max_coalesce(graph, cover)
    assert joined.sub_graph.label == "native+Relu+Exp+onednn.conv_activation"
    assert run(extract(graph, joined.sub_graph, "joined"), tmp_path) == ["onednn.conv_activation"]


def test_labels_survive_partitioning_as_functions_inside_the_kernel(tmp_path: Path) -> None:
    model = model_of(text_of((1, 4, 9, 9), TWO, 4), w=numbers(4, 4, 3, 3) / 9)
    graph = DataflowGraph(model)
    parts = (NestedSubGraph(IndexSet(0b11), "onednn.conv_activation"), NestedSubGraph(IndexSet(0b1000), "native"))
    whole = SubGraph(graph, IndexSet(0b11111), parts)
    partitioned = partition(model, [KernelSpec(whole, "mixed", {"target": str(TARGET)})])
    (call,) = kernels_of(partitioned)
    again = kernel_model(partitioned, call.node, "again")
    assert structural_hash(again) == structural_hash(extract(graph, whole, "first"))
    assert run(again, tmp_path) == ["onednn.conv_activation"]


def test_calls_and_names_stay_apart_where_several_kernels_are_loaded(tmp_path: Path) -> None:
    toolchain, loaded, inputs = ExternToolchain(), [], [numbers(3, 8)]
    import tvm_ffi

    for i in range(3):
        model = model_of("(float[3,8] x) => (float[3,8] y) {a = MatMul (x, m) y = Abs (a)}", m=numbers(8, 8, seed=i))
        model.graph.name = f"k{i}"
        loaded.append(toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions()))
    assert not [name for name in tvm_ffi.registry.list_global_func_names() if name.startswith("collage.extern")]
    for i, function in enumerate(loaded):
        np.testing.assert_allclose(function(inputs)[0], np.abs(inputs[0] @ numbers(8, 8, seed=i)), atol=1e-5)


def documented_example() -> str:
    page = (Path(__file__).parents[1] / "README.md").read_text()
    (found,) = re.findall(r"```python\n(# collage_blas\.py\n.*?)```", page, re.DOTALL)
    return str(found)


CHILD = """
import sys
from pathlib import Path
import numpy as np
from collage.target import Target
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, registry
from collage_extern.functions import extern_libraries

target, workspace = Target.parse("llvm -libs=extern"), Path(sys.argv[1])
toolchain = registry().get("extern")
assert "blas of numpy" in toolchain.availability().build, extern_libraries().broken
x, m = (np.random.default_rng(i).standard_normal((8, 8)).astype(np.float32) for i in range(2))
model = kernel("k", "(float[8,8] x) => (float[8,8] y) {a = MatMul (x, m) y = Neg (a)}", {"m": m})
next(iter(model.graph)).metadata_props["Composite"] = "blas.matmul#0"
model.graph[0].outputs[0].type, model.graph[0].outputs[0].shape = model.graph.inputs[0].type, model.graph.inputs[0].shape
compiled = toolchain.compile(model, target, workspace)
loaded = toolchain.load(compiled, target, workspace, LoadOptions())
np.testing.assert_allclose(loaded([x])[0], -(x @ m), atol=1e-5)
print(compiled.metadata["calls"], extern_libraries().broken)
"""


def test_the_documented_library_of_a_third_party_is_found_by_its_entry_point(tmp_path: Path) -> None:
    site = tmp_path / "site"
    facts = site / "collage_blas-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / "collage_blas.py").write_text(documented_example())
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: collage-blas\nVersion: 1.0\n")
    points = "[collage.extern_functions]\nblas = collage_blas:library\nbroken = collage_blas:no_such_function\n"
    (facts / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(site), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "[['blas.matmul', 2]]" in done.stdout and "'broken': \"AttributeError" in done.stdout


def test_a_layer_that_no_function_computes_is_refused_before_it_runs(tmp_path: Path) -> None:
    text = "(float[3,1,2] x) => (float[3,1,1,2] y) {y = LSTM <hidden_size = 2> (x, w, r, b, , h, c, p)}"
    weights = {"w": numbers(1, 8, 2), "r": numbers(1, 8, 2), "b": numbers(1, 16), "p": numbers(1, 6)}
    states = {name: numbers(1, 1, 2) for name in "hc"}
    assert run(model_of(text.replace("b, , h, c, p", "b"), **weights), tmp_path) == ["onednn.recurrent"]
    with pytest.raises(Unsupported, match="peepholes"):
        ExternToolchain().compile(model_of(text, **weights, **states), TARGET, tmp_path)


def test_libraries_name_their_own_functions_and_fail_alone(tmp_path: Path) -> None:
    from collage.pattern import is_op, wildcard

    def fails(model: ir.Model, threads: int) -> Any:
        raise RuntimeError("no licence")

    relu = is_op("Relu")(wildcard())
    with pytest.raises(UsageError, match=r"yours\.relu"):
        ExternLibrary("mine", "1", (ExternFunction("yours.relu", relu, fails),))
    libraries = ExternLibraries([])
    assert not ExternToolchain(libraries).availability().available
    libraries.add(ExternLibrary("mine", "1", (ExternFunction("mine.relu", relu, fails),)))
    toolchain = ExternToolchain(libraries)
    assert toolchain.availability().build.endswith("mine of 1")
    text = "(float[2,3] x) => (float[2,3] y) {y = Relu (x)}"
    with pytest.raises(Exception, match=r"mine\.relu cannot be bound: no licence"):
        toolchain.compile(model_of(text), TARGET, tmp_path)
    assert run(model_of(text, ("native#0",)), tmp_path, toolchain) == []


def test_a_worker_imports_torch_with_tvm() -> None:
    """Loading TVM hides torch from it in other workers; here libraries compute with torch."""
    factory, arguments = registry().factory("extern")
    made_by = {"factory": factory, "arguments": arguments}
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with Worker("tests.toolchain._witness:Witness", made_by, environment=environment) as worker:
        assert worker.call("availability", 60.0, target="llvm -libs=extern")["available"]
        assert worker.call("imported", 60.0, name="torch")
