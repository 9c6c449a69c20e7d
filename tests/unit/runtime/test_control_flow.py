"""If, Loop and Scan whose bodies are kernels of their own compute what ONNX says, and come back from artefacts."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import collage
from collage._errors import ArtefactError
from collage.graph import kernels_of
from collage.runtime import Executable
from collage.testing._bodies import build_with_bodies
from collage.testing.onnx_suite import Case, cases, failure, with_onnxruntime

SHAPE = [2, 3]
UNARY = ("Tanh", "Neg", "Relu", "Sigmoid")
BINARY = ("Add", "Sub", "Mul", "Max")

_NOT_RUN_HERE = ("test_scan_sum", "test_sequence_map")
"""A Scan of operator set 8, which has a batch, and SequenceMap, which the host runs."""


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Sequence[int] | None = SHAPE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    **constants: Any,
) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def counting_loop(trips: Any = 5, limit: float = 1e9, shape: Sequence[int | str] = SHAPE) -> onnx.ModelProto:
    """A Loop that adds a captured tensor, stacks what it sees, and ends early where a sum passes a limit."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "step"], ["next"], name="grow"),
            helper.make_node("Tanh", ["next"], ["seen"], name="squash"),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0, name="sum"),
            helper.make_node("Less", ["total", "limit"], ["goes_on"], name="test"),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state", shape=shape)],
        [value("goes_on", TensorProto.BOOL, []), value("next", shape=shape), value("seen", shape=shape)],
    )
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["step"], name="scale"),
        helper.make_node("Loop", ["trips", "begins", "x"], ["last", "all"], body=body, name="loop"),
    ]
    outputs = [value("last", shape=shape), value("all", shape=["n", *shape])]
    constants = {"half": np.float32(0.5), "limit": np.float32(limit), "begins": np.True_, "trips": np.int64(trips)}
    return model_of(nodes, [value("x", shape=shape)], outputs, **constants)


def outputs_of(executable: Executable, feeds: dict[str, Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Where the host stands in, nothing is shown.
        return list(executable.run(feeds).values())


def assert_right(model: onnx.ModelProto, executable: Executable, feeds: dict[str, Any]) -> None:
    # ONNX's own evaluator joins what a Loop stacks along an axis that is there already, where there are two or more.
    expected = with_onnxruntime(model)([feeds[port.name] for port in model.graph.input])
    for made, right in zip(outputs_of(executable, feeds), expected, strict=True):
        assert np.shape(made) == np.shape(right)
        np.testing.assert_allclose(made, right, rtol=1e-5, atol=1e-6)


SUITE = ("test_if", "test_loop", "test_scan", "test_sequence_map", "test_range", "test_linear_attention")


@pytest.mark.slow
def test_cases_of_onnx_s_own_suite() -> None:
    failures = {}

    def build(model: onnx.ModelProto) -> Any:
        executable = build_with_bodies(model)
        names = [port.name for port in executable.inputs]
        return lambda inputs: outputs_of(executable, dict(zip(names, inputs, strict=True)))

    def is_tried(case: Case) -> bool:
        bodies = any(attribute.HasField("g") for node in case.model.graph.node for attribute in node.attribute)
        return bodies and case.name.startswith(SUITE) and not case.name.startswith(_NOT_RUN_HERE)

    tried = [case for case in cases(["node"]) if is_tried(case)]
    assert {node.op_type for case in tried for node in case.model.graph.node} >= {"If", "Loop", "Scan"}
    assert len(tried) >= 20
    for case in tried:
        if (reason := failure(case, build)) is not None:
            failures[case.name] = reason
    assert not failures


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_a_loop_runs_as_often_as_it_says(trips: int) -> None:
    model = counting_loop(trips)
    assert_right(model, build_with_bodies(model, ("host", "onnxruntime")), {"x": np.float32([[1, 2, 3], [4, 5, -6]])})


def test_an_empty_stack_of_what_an_inner_loop_makes_has_the_shape_that_the_model_states() -> None:
    inner = helper.make_graph(
        [helper.make_node("Tanh", ["t"], ["u"]), helper.make_node("Identity", ["go"], ["goes"])],
        "inner",
        [value("j", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("t")],
        [value("goes", TensorProto.BOOL, []), value("u")],
    )
    body = helper.make_graph(
        [
            helper.make_node("Loop", ["two", "", "state"], ["next"], body=inner),
            helper.make_node("Identity", ["next"], ["seen"]),
            helper.make_node("Identity", ["on"], ["still"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state")],
        [value("still", TensorProto.BOOL, []), value("next"), value("seen")],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)]
    outputs = [value("last"), value("all", shape=["n", *SHAPE])]
    model = model_of(nodes, [value("x")], outputs, trips=np.int64(0), two=np.int64(2))
    assert_right(model, build_with_bodies(model), {"x": np.ones(SHAPE, np.float32)})


def test_a_condition_ends_a_loop() -> None:
    model = counting_loop(100, limit=40.0)
    executable = build_with_bodies(model, largest=2)
    x = np.ones(SHAPE, np.float32)
    assert_right(model, executable, {"x": x})
    assert len(outputs_of(executable, {"x": x})[1]) == 12


def test_one_executable_serves_again_and_again_and_its_outputs_are_the_caller_s() -> None:
    model = counting_loop(3)
    executable = build_with_bodies(model)
    x, y = np.ones(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    first = [np.array(each) for each in outputs_of(executable, {"x": x})]
    kept = outputs_of(executable, {"x": x})
    outputs_of(executable, {"x": y})
    for before, after in zip(first, kept, strict=True):
        np.testing.assert_array_equal(before, after)
    kept[0][:] = 5
    np.testing.assert_array_equal(x, 1)


def test_states_may_change_their_shapes_from_iteration_to_iteration() -> None:
    body = helper.make_graph(
        [helper.make_node("Concat", ["state", "x"], ["next"], axis=0), helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state", shape=None)],
        [value("still", TensorProto.BOOL, []), value("next", shape=None)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    model = model_of(nodes, [value("x")], [value("y", shape=["n", 3])], trips=np.int64(4))
    assert_right(model, build_with_bodies(model), {"x": np.float32([[1, 2, 3], [4, 5, 6]])})


def test_a_body_hands_on_its_inputs_and_constants() -> None:
    body = helper.make_graph(
        [helper.make_node("Constant", [], ["fixed"], value=numpy_helper.from_array(np.float32([7, 8]), "fixed"))],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), *(value(name) for name in "ab")],
        [value("on", TensorProto.BOOL, []), value("b"), value("a"), value("fixed", shape=[2])],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x", "y"], ["p", "q", "r"], body=body)]
    outputs = [value("p"), value("q"), value("r", shape=[3, 2])]
    model = model_of(nodes, [value("x"), value("y")], outputs, trips=np.int64(3))
    executable = build_with_bodies(model)
    x, y = np.zeros(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    assert_right(model, executable, {"x": x, "y": y})
    for made in outputs_of(executable, {"x": x, "y": y}):
        assert not np.may_share_memory(made, x)
        assert not np.may_share_memory(made, y)


@pytest.mark.parametrize("ways", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (-1, 1)])
def test_a_scan_goes_along_any_axis_in_both_directions(ways: tuple[int, int], axes: tuple[int, int]) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "x"], ["next"]), helper.make_node("Mul", ["next", "x"], ["y"])],
        "body",
        [value("state", shape=[4]), value("x", shape=[4])],
        [value("next", shape=[4]), value("y", shape=[4])],
    )
    options = {
        "scan_input_axes": axes[:1],
        "scan_output_axes": axes[1:],
        "scan_input_directions": ways[:1],
        "scan_output_directions": ways[1:],
    }
    nodes = [helper.make_node("Scan", ["s", "xs"], ["last", "ys"], body=body, num_scan_inputs=1, **options)]
    shape = [5, 4] if axes[0] == 0 else [4, 5]
    inputs = [value("s", shape=[4]), value("xs", shape=shape)]
    model = model_of(nodes, inputs, [value("last", shape=[4]), value("ys", shape=None)])
    executable = build_with_bodies(model)
    s, xs = np.float32([1, 2, 3, 4]), np.arange(20, dtype=np.float32).reshape(shape)
    rows = np.moveaxis(xs, axes[0], 0)[:: -1 if ways[0] else 1]
    sums = s + np.cumsum(rows, axis=0)
    ys = np.moveaxis((sums * rows)[:: -1 if ways[1] else 1], 0, axes[1])
    last, made = outputs_of(executable, {"s": s, "xs": xs})
    np.testing.assert_allclose(last, sums[-1])
    np.testing.assert_allclose(made, ys)


@st.composite
def bodies(draw: st.DrawFn, states: int, outside: Sequence[str], prefix: str, depth: int) -> onnx.GraphProto:
    """A body of a Loop over some states that reads values from outside, with inner control flow if it is deep enough."""
    names = [f"{prefix}s{i}" for i in range(states)]
    known, nodes = [*names, *outside], []
    for number in range(draw(st.integers(1, 5))):
        made = f"{prefix}v{number}"
        kind = draw(st.sampled_from(["unary", "binary", *(["if", "loop"] if depth else [])]))
        a, b = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if kind == "unary":
            nodes.append(helper.make_node(draw(st.sampled_from(UNARY)), [a], [made], name=made))
        elif kind == "binary":
            nodes.append(helper.make_node(draw(st.sampled_from(BINARY)), [a, b], [made], name=made))
        elif kind == "if":
            branches = {}
            for branch in ("then", "else"):
                inner = helper.make_node(
                    draw(st.sampled_from(BINARY)), [a, b], [f"{made}_{branch}"], name=f"{made}_{branch}"
                )
                branches[f"{branch}_branch"] = helper.make_graph([inner], branch, [], [value(f"{made}_{branch}")])
            nodes.append(helper.make_node("ReduceSum", [a], [f"{made}_sum"], keepdims=0, name=f"{made}_sum"))
            nodes.append(helper.make_node("Less", [f"{made}_sum", "least"], [f"{made}_on"], name=f"{made}_less"))
            nodes.append(helper.make_node("If", [f"{made}_on"], [made], name=made, **branches))
        else:
            inner_body = draw(bodies(1, [a, b], f"{made}_", depth - 1))
            outputs = [made, *(f"{made}_stacked" for _ in range(len(inner_body.output) - 2))]
            nodes.append(helper.make_node("Loop", ["two", "", a], outputs, body=inner_body, name=made))
        known.append(made)
    limit = f"{prefix}limit"
    nodes.append(helper.make_node("Constant", [], [limit], value_int=draw(st.integers(0, 4)), name=limit))
    nodes.append(helper.make_node("Less", [f"{prefix}i", limit], [f"{prefix}goes"], name=f"{prefix}goes"))
    handed = [draw(st.sampled_from(known)) for _ in range(states)]
    outputs = []
    for number, name in enumerate([*handed, draw(st.sampled_from(known))]):
        nodes.append(helper.make_node("Identity", [name], [f"{prefix}o{number}"], name=f"{prefix}o{number}"))
        outputs.append(value(f"{prefix}o{number}"))
    inputs = [
        value(f"{prefix}i", TensorProto.INT64, []),
        value(f"{prefix}on", TensorProto.BOOL, []),
        *map(value, names),
    ]
    return helper.make_graph(nodes, f"{prefix}body", inputs, [value(f"{prefix}goes", TensorProto.BOOL, []), *outputs])


@st.composite
def loops(draw: st.DrawFn) -> onnx.ModelProto:
    """A Loop of some states, with values from outside, one that is stacked, and control flow inside."""
    states = draw(st.integers(1, 3))
    body = draw(bodies(states, ["x", "w"], "b_", 1))
    begins = [draw(st.sampled_from(["x", "y", "w"])) for _ in range(states)]
    trips = draw(st.sampled_from(["trips", ""]))
    node = helper.make_node(
        "Loop", [trips, "begin", *begins], [*(f"r{i}" for i in range(states)), "all"], body=body, name="top"
    )
    outputs = [*(value(f"r{i}") for i in range(states)), value("all", shape=["n", *SHAPE])]
    constants = {
        "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(SHAPE),
        "least": np.float32(0.1234),  # No sum comes so close to it that rounding errors choose the branch.
        "two": np.int64(2),
        "trips": np.int64(draw(st.integers(0, 4))),
        "begin": np.bool_(draw(st.sampled_from([True, True, True, False]))),
    }
    return model_of([node], [value("x"), value("y")], outputs, **constants)


def check_random_loop(model: onnx.ModelProto, largest: int) -> None:
    feeds = {"x": np.float32([[1, -2, 3], [0.5, 0, -1]]), "y": np.float32([[0, 1, 0], [-1, 2, 0.25]])}
    assert_right(model, build_with_bodies(model, largest=largest), feeds)


@settings(max_examples=3, phases=(Phase.generate,))
@given(loops(), st.integers(1, 3))
def test_random_loops_compute_what_onnx_runtime_does(model: onnx.ModelProto, largest: int) -> None:
    check_random_loop(model, largest)


@pytest.mark.slow
@settings(max_examples=300, phases=(Phase.generate,))
@given(loops(), st.integers(1, 3))
def test_many_random_loops_compute_what_onnx_runtime_does(model: onnx.ModelProto, largest: int) -> None:
    check_random_loop(model, largest)


def test_an_artefact_comes_back_and_its_kernels_can_be_built_again(tmp_path: Path) -> None:
    model, x = counting_loop(4), np.float32([[1, 2, 3], [-4, 5, 6]])
    executable = build_with_bodies(model, ("onnxruntime", "host"))
    expected = outputs_of(executable, {"x": x})
    executable.save(tmp_path / "whole")
    executable.save(tmp_path / "recipe", recipe_only=True)
    executable.save(tmp_path / "zipped.zip")
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert manifest["schema"] == 1
    inside = [part["target"] for kernel in manifest["kernels"] for part in kernel["compiled"].get("parts", ())]
    assert {"llvm -compiler=onnxruntime", "llvm -compiler=host"} == set(inside)
    for name, rebuild in (("whole", False), ("whole", True), ("recipe", False), ("zipped.zip", False)):
        loaded = collage.load(tmp_path / name, rebuild=rebuild)
        for made, right in zip(outputs_of(loaded, {"x": x}), expected, strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-6)


def test_the_partitioned_model_holds_the_kernels_of_bodies_and_runs_on_onnx_runtime(tmp_path: Path) -> None:
    model, x = counting_loop(4), np.float32([[1, 2, 3], [-4, 5, 6]])
    executable = build_with_bodies(model)
    executable.save(tmp_path / "a")
    whole = ir.load(tmp_path / "a" / "model.onnx")
    holders = [f for f in whole.functions.values() if any(node.op_type == "Loop" for node in f)]
    assert len(holders) == 1
    loop = next(node for node in holders[0] if node.op_type == "Loop")
    inside = kernels_of(whole, loop.attributes["body"].as_graph())
    assert len(inside) == 4
    assert all(call.metadata["Primitive"] == "1" and call.metadata["target"] for call in inside)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(tmp_path / "a" / "model.onnx"), providers=["CPUExecutionProvider"])
    for made, right in zip(session.run(None, {"x": x}), outputs_of(executable, {"x": x}), strict=True):
        np.testing.assert_allclose(made, right, rtol=1e-5)


def test_the_host_stands_in_where_a_kernel_of_a_body_fails() -> None:
    body = helper.make_graph(
        [helper.make_node("Reshape", ["state", "shape"], ["next"]), helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state", shape=["n", 3])],
        [value("still", TensorProto.BOOL, []), value("next", shape=None), value("state", shape=["n", 3])],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y", "all"], body=body)]
    outputs = [value("y", shape=None), value("all", shape=None)]
    model = model_of(nodes, [value("x", shape=["n", 3])], outputs, trips=np.int64(0), shape=np.int64([-1, 3]))
    executable = build_with_bodies(model)
    x = np.ones((2, 3), np.float32)
    with pytest.warns(RuntimeWarning, match="the host ran it instead"):  # Nothing says how long an empty stack is.
        y, stacked = executable.run({"x": x}).values()
    np.testing.assert_array_equal(y, x)
    assert stacked.shape[0] == 0


def test_the_host_runs_a_loop_whose_body_is_given_nothing() -> None:
    model = counting_loop(3, shape=["n", 3])
    executable = build_with_bodies(model)
    x = np.zeros((0, 3), np.float32)
    body = helper.make_graph(
        [helper.make_node("Slice", ["state", "one", "end"], ["next"]), helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("state", shape=None)],
        [value("still", TensorProto.BOOL, []), value("next", shape=None)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    constants = {"trips": np.int64(3), "one": np.int64([1]), "end": np.int64([9])}
    shrinking = model_of(nodes, [value("x")], [value("y", shape=["n", 3])], **constants)
    assert_right(model, executable, {"x": x})  # The host is asked at once, without a word.
    with pytest.warns(RuntimeWarning, match="without elements"):
        (made,) = build_with_bodies(shrinking).run({"x": np.ones(SHAPE, np.float32)}).values()
    assert made.shape == (0, 3)


@pytest.mark.parametrize("length", [1, 3])
def test_a_scan_over_texts_is_right(length: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["word"], ["same"]), helper.make_node("Identity", ["state"], ["next"])],
        "body",
        [value("state"), value("word", TensorProto.STRING, [])],
        [value("next"), value("same", TensorProto.STRING, [])],
    )
    node = helper.make_node("Scan", ["s", "words"], ["last", "all"], body=body, num_scan_inputs=1)
    words = value("words", TensorProto.STRING, ["n"])
    model = model_of([node], [value("s"), words], [value("last"), value("all", TensorProto.STRING, ["n"])])
    executable = build_with_bodies(model)
    given = {"s": np.ones(SHAPE, np.float32), "words": np.array(["a", "no", "longest"][:length], object)}
    last, made = outputs_of(executable, given)
    assert list(made) == list(given["words"])
    np.testing.assert_array_equal(last, given["s"])


def test_a_loop_carries_a_sequence() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["twice"]),
            helper.make_node("SequenceInsert", ["state", "twice"], ["next"]),
            helper.make_node("Identity", ["on"], ["still"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("on", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("state", TensorProto.FLOAT, None),
        ],
        [value("still", TensorProto.BOOL, []), helper.make_tensor_sequence_value_info("next", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["begin"]),
        helper.make_node("Loop", ["trips", "", "begin"], ["all"], body=body),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0),
    ]
    model = model_of(nodes, [value("x")], [value("y", shape=[6, 3])], trips=np.int64(3))
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(outputs_of(build_with_bodies(model), {"x": x})[0], np.concatenate([x, x, x]) * 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact with a Loop whose body is kernels."""
    return build_with_bodies(counting_loop(2)).save(tmp_path_factory.mktemp("loops") / "a")


def test_only_operators_with_bodies_hold_kernels(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    manifest = json.loads(path.read_text())
    plain, holder = manifest["kernels"]
    plain["compiled"]["parts"] = holder["compiled"]["parts"][:1]
    plain["compiled"]["files"] += plain["compiled"]["parts"][0]["files"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match="holds other kernels"):
        collage.load(tmp_path / "a")


def test_kernels_within_kernels_without_end_are_refused(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    manifest = json.loads(path.read_text())
    compiled = manifest["kernels"][1]["compiled"]
    for _ in range(100):
        compiled = {**compiled, "parts": [compiled]}
    manifest["kernels"][1]["compiled"] = compiled
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match="deep"):
        collage.load(tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [
        lambda program: program.update(op_type="While"),
        lambda program: program.update(reads=["nothing"]),
        lambda program: program["bodies"][0]["kernels"].pop(),
        lambda program: program["bodies"][0].update(outputs=["nowhere"] * 3),
        lambda program: program["bodies"][0].update(reads=["nowhere"]),
        lambda program: program["bodies"][0]["kernels"].reverse(),
        lambda program: program["constants"].update(trips={"dtype": "int64", "shape": [1 << 40], "data": ""}),
        lambda program: program["constants"].update(trips={"dtype": "object", "shape": [], "data": "AAAAAAAAAAA="}),
        lambda program: program.clear(),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(tmp_path: Path, saved: Path, change: Any) -> None:
    shutil.copytree(saved, tmp_path / "a")
    (file,) = (tmp_path / "a").glob("*.bodies.json")
    program = json.loads(file.read_text())
    change(program)
    text = json.dumps(program).encode()
    file.write_bytes(text)
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    manifest["files"][file.name] = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError):
        collage.load(tmp_path / "a")
