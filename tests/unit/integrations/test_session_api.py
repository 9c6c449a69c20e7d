"""Parts of ONNX Runtime's session that run models: each works as there, and one warning names what has no effect."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import CollageError, InputError, UsageError
from collage.frontend import fix_lengths, read_model
from collage.integrations import InferenceSession, _inference_session
from collage.integrations._session_options import fixed_lengths, free_dims
from collage.testing import executable_of

CPU = ["CPUExecutionProvider"]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    values = {
        "x": (TensorProto.FLOAT, [2, 3]),
        "k": (TensorProto.INT64, ["n"]),
        "b": (TensorProto.BFLOAT16, [2]),
        "y": (TensorProto.FLOAT, [2, 3]),
        "m": (TensorProto.INT64, ["n"]),
        "p": (TensorProto.BOOL, [2, 3]),
        "c": (TensorProto.BFLOAT16, [2]),
        "w": (TensorProto.FLOAT, [3]),
    }
    info = {name: helper.make_tensor_value_info(name, *facts) for name, facts in values.items()}
    nodes = [
        helper.make_node("Add", ["x", "w"], ["z"], name="add"),
        helper.make_node("Relu", ["z"], ["y"], name="relu"),
        helper.make_node("Greater", ["x", "w"], ["p"], name="greater"),
        helper.make_node("Neg", ["k"], ["m"], name="neg"),
        helper.make_node("Identity", ["b"], ["c"], name="narrow"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info[name] for name in ("x", "k", "b", "w")],
        [info[name] for name in ("y", "m", "p", "c")],
        [numpy_helper.from_array(np.float32([1, 2, 3]), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture(scope="module")
def artefact(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return executable_of(model, "onnxruntime").save(tmp_path_factory.mktemp("api") / "m.collage")


@pytest.fixture(scope="module")
def ours(artefact: Path) -> InferenceSession:
    return InferenceSession(artefact)


@pytest.fixture(scope="module")
def theirs(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=CPU)


def feeds(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    narrow = numpy_helper.to_array(helper.make_tensor("b", TensorProto.BFLOAT16, [2], [1.5, -2.0]))
    return {"x": rng.standard_normal((2, 3)).astype(np.float32), "k": rng.integers(0, 9, 4), "b": narrow}


def expected(given: dict[str, Any]) -> dict[str, Any]:
    w = np.float32([1, 2, 3])
    return {"y": np.maximum(given["x"] + w, 0), "m": -given["k"], "p": given["x"] > w, "c": given["b"]}


def same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def test_methods_have_the_parameters_of_onnx_runtimes() -> None:
    for name in ("run", "run_with_ort_values", "run_with_iobinding", "io_binding", "get_inputs", "get_outputs"):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (InferenceSession, ort.InferenceSession))
        assert list(ours.parameters) == list(theirs.parameters)


@pytest.mark.parametrize("name", ["run_async", "end_profiling", "set_providers", "no_such_method"])
def test_another_attribute_is_refused_with_the_name_of_the_class_that_has_it(ours: InferenceSession, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name}.*onnxruntime\.InferenceSession"):
        getattr(ours, name)


def idle_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.intra_op_num_threads = 1
    return options


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, []),
        ({"sess_options": ort.SessionOptions(), "providers": CPU, "provider_options": [{}]}, []),
        ({"sess_options": idle_options()}, ["graph_optimization_level", "enable_profiling"]),
        ({"providers": ["CUDAExecutionProvider", *CPU]}, ["CUDAExecutionProvider", "targets=['cuda']"]),
        ({"providers": CPU, "provider_options": [{"use_arena": "1"}]}, ["provider_options"]),
        (
            {"disabled_optimizers": ["ConstantFolding"], "enable_fallback": 0},
            ["disabled_optimizers", "enable_fallback"],
        ),
    ],
)
def test_one_warning_names_all_that_has_no_effect(artefact: Path, given: dict[str, Any], named: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        InferenceSession(artefact, **given)
    assert len(caught) == bool(named)
    assert all(name in str(caught[0].message) for name in [*named, "onnxruntime.InferenceSession"] if named)
    assert "intra_op_num_threads" not in "".join(str(each.message) for each in caught)


def test_options_of_a_run_are_named(ours: InferenceSession) -> None:
    options = ort.RunOptions()
    options.log_severity_level = 3
    with pytest.warns(UserWarning, match=r"RunOptions\.log_severity_level"):
        ours.run(["y"], feeds(), options)


PLAIN = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 17]> '
    "g (float[2,3] x, int64[n] k) => (float[2,3] y, int64[n] m) {y = Relu (x) m = Neg (k)}"
)
GOOD: dict[str, Any] = {"x": np.zeros((2, 3), np.float32), "k": np.zeros(2, np.int64)}
WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "an unknown name": (None, {**GOOD, "q": np.zeros(1)}),
    "another type": (None, {**GOOD, "x": np.zeros((2, 3))}),
    "another rank": (None, {**GOOD, "x": np.zeros(3, np.float32)}),
    "another length": (None, {**GOOD, "x": np.zeros((2, 4), np.float32)}),
    "a missing input": (None, {"x": GOOD["x"]}),
    "an unknown output": (["nothing"], GOOD),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> InferenceSession:
    return InferenceSession(executable_of(PLAIN, "onnxruntime").save(tmp_path_factory.mktemp("plain") / "m.collage"))


@pytest.mark.parametrize("mistake", WRONG)
def test_handlers_of_onnx_runtimes_errors_catch_those_of_a_session(plain: InferenceSession, mistake: str) -> None:
    with pytest.raises(Exception) as there:
        ort.InferenceSession(PLAIN.SerializeToString(), providers=CPU).run(*WRONG[mistake])
    with pytest.raises(InputError) as here:
        plain.run(*WRONG[mistake])
    assert isinstance(here.value, type(there.value)) and isinstance(here.value, ValueError)
    assert here.value.exit_code == 2 and type(here.value).__name__ == "InputError"


def test_a_file_that_is_no_model_is_an_error_of_onnx_runtimes_too(tmp_path: Path) -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

    with pytest.raises((Fail, InvalidArgument)):
        InferenceSession(b"no model", cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"onnxruntime\.SessionOptions"):
        InferenceSession(tmp_path, ["CPUExecutionProvider"])


def test_lengths_of_an_artefact_are_fixed_where_it_is_compiled(artefact: Path) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 4)
    with pytest.raises(UsageError, match="--fix n=4"):
        InferenceSession(artefact, options)


def test_targets_are_for_models(artefact: Path) -> None:
    with pytest.raises(UsageError, match="compiled already"):
        InferenceSession(artefact, targets=["onnxruntime"])


@pytest.mark.parametrize("by", ["name", "denotation"])
def test_free_dimensions_are_fixed_as_onnx_runtime_fixes_them(by: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None, "time"]) for name in "xy"]
    values[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    values[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = ort.SessionOptions()
    options.enable_profiling = True
    if by == "name":
        options.add_free_dimension_override_by_name("batch", 3)
        options.add_free_dimension_override_by_name("nothing", 5)
    else:
        options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
        options.add_free_dimension_override_by_denotation("data_channel", 7)
    fixed = fixed_lengths(options, free_dims(read_model(made)))
    assert fixed == ({"batch": 3} if by == "name" else {"batch": 3, "x[1]": 7})
    assert options.enable_profiling
    options.enable_profiling = False
    theirs = ort.InferenceSession(made.SerializeToString(), options, providers=CPU)
    there = [dim if isinstance(dim, int) else None for dim in theirs.get_inputs()[0].shape]
    ours = fix_lengths(read_model(made), fixed).graph.inputs[0].shape
    assert ours is not None
    assert there == [dim if isinstance(dim, int) else None for dim in ours]


def test_fixed_dimensions_are_compiled(model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compiled(model: Any, targets: Any, options: Any, cache: Path) -> Any:
        seen.append(options.fixed)
        return executable_of(fix_lengths(model, options.fixed), "onnxruntime")

    monkeypatch.setattr(_inference_session, "_compiled", compiled)
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 4)
    session = InferenceSession(model.SerializeToString(), options, cache_dir=tmp_path)
    assert seen == [{"n": 4}]
    theirs = ort.InferenceSession(model.SerializeToString(), options, providers=CPU)
    assert [each.shape for each in session.get_inputs()] == [each.shape for each in theirs.get_inputs()]
    same(session.run(["m"], feeds())[0], expected(feeds())["m"])
    with pytest.raises(InputError):
        session.run(["m"], {**feeds(), "k": np.arange(5)})


def test_threads_of_an_artefact_are_those_of_the_options(artefact: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    assert InferenceSession(artefact, options).executable._loader.args[4].threads == 1
    assert InferenceSession(artefact).executable._loader.args[4].threads == 0


def test_run_with_ort_values(ours: InferenceSession, theirs: ort.InferenceSession) -> None:
    given = feeds()
    values = {name: ort.OrtValue.ortvalue_from_numpy(given[name]) for name in ("x", "k")}
    values["b"] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(given["b"].view(np.uint16), TensorProto.BFLOAT16)
    names = ["c", "p", "y", "m"]
    for found, wanted in zip(
        ours.run_with_ort_values(names, values), theirs.run_with_ort_values(names, values), strict=True
    ):
        assert isinstance(found, ort.OrtValue)
        assert (found.data_type(), list(found.shape())) == (wanted.data_type(), list(wanted.shape()))
        if found.data_type() != "tensor(bfloat16)":
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    again = ours.run_with_ort_values(["y"], {**values, "x": ours.run_with_ort_values(["y"], values)[0]})[0]
    np.testing.assert_array_equal(again.numpy(), expected({**given, "x": expected(given)["y"]})["y"])


@pytest.mark.parametrize("where", ["ours", "theirs"])
def test_io_binding_as_onnx_runtime_has_it(where: str, request: pytest.FixtureRequest) -> None:
    session = request.getfixturevalue(where)
    given = feeds()
    bound = session.io_binding()
    bound.bind_cpu_input("x", given["x"])
    key = ort.OrtValue.ortvalue_from_numpy(given["k"])
    bound.bind_ortvalue_input("k", key)
    bound.bind_input("b", "cpu", 0, TensorProto.BFLOAT16, [2], given["b"].ctypes.data)
    target = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cpu", 0)
    bound.bind_output("m")
    bound.bind_ortvalue_output("y", target)
    raw = np.zeros((2, 3), bool)
    bound.bind_output("p", "cpu", 0, np.bool_, [2, 3], raw.ctypes.data)
    bound.synchronize_inputs()
    session.run_with_iobinding(bound)
    bound.synchronize_outputs()
    wanted = expected(given)
    for found, name in zip(bound.copy_outputs_to_cpu(), ("m", "y", "p"), strict=True):
        same(found, wanted[name])
    assert [list(value.shape()) for value in bound.get_outputs()] == [[4], [2, 3], [2, 3]]
    same(target.numpy(), wanted["y"])
    same(raw, wanted["p"])
    later = given["k"] + 1
    key.update_inplace(later)  # What is bound is read anew by each run.
    session.run_with_iobinding(bound)
    same(bound.copy_outputs_to_cpu()[0], -later)
    bound.clear_binding_outputs()
    bound.bind_output("y")
    session.run_with_iobinding(bound)
    assert len(bound.get_outputs()) == 1
    same(bound.get_outputs()[0].numpy(), wanted["y"])


def test_io_binding_refuses_what_does_not_fit(ours: InferenceSession, artefact: Path) -> None:
    bound = ours.io_binding()
    for name, call in {
        "nothing": lambda: bound.bind_cpu_input("nothing", np.zeros(1)),
        "nowhere": lambda: bound.bind_output("nowhere"),
        "cuda": lambda: bound.bind_output("y", "cuda"),
        "run on the CPU": lambda: bound.bind_input("x", "cuda", 0, np.float32, [2, 3], 0),
        "provided": lambda: bound.bind_output("y", "cpu", 0, None, None, 64),
        "address 0": lambda: bound.bind_input("x", "cpu", 0, np.float32, [2, 3], 0),
        "no memory": lambda: bound.bind_output("y", "cpu", 0, np.float32, [-1, 3], 64),
        "'nonsense' is not": lambda: bound.bind_input("x", "cpu", 0, "nonsense", [2, 3], 64),
        "999 is not": lambda: bound.bind_output("y", "cpu", 0, 999, [2, 3], 64),
        "'object'> is not": lambda: bound.bind_output("y", "cpu", 0, object, [2, 3], 64),
        "session": lambda: InferenceSession(artefact).run_with_iobinding(bound),
        "one output": lambda: ours.run_with_iobinding(bound),
    }.items():
        with pytest.raises(CollageError, match=name):
            call()
    bound.bind_output("y")
    with pytest.raises(CollageError, match="missing"):
        ours.run_with_iobinding(bound)
