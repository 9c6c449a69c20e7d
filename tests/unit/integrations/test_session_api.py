"""The whole of ONNX Runtime's session: each method works as there, or is refused with the way out."""

from __future__ import annotations

import inspect
import json
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.runtime.conftest import small_model

from collage._errors import CollageError, InputError, ToolchainError, UsageError
from collage.frontend import fix_lengths, read_model
from collage.integrations import InferenceSession, _inference_session
from collage.integrations import _session_options as known
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


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "there"), [("InferenceSession", ort.InferenceSession), ("IOBinding", ort.IOBinding)])
def test_every_public_method_is_there_with_its_parameters(ours: InferenceSession, kind: str, there: type) -> None:
    here = type(ours) if kind == "InferenceSession" else type(ours.io_binding())
    for name, method in public(there).items():
        assert name in vars(here), f"{kind}.{name} is missing"
        wanted = list(inspect.signature(method).parameters.values())
        given = list(inspect.signature(vars(here)[name]).parameters.values())
        assert [p.name for p in given][: len(wanted)] == [p.name for p in wanted], name
        for mine, its in zip(given, wanted, strict=False):
            assert its.default is inspect.Parameter.empty or mine.default is not inspect.Parameter.empty, name
        assert all(p.default is not inspect.Parameter.empty for p in given[len(wanted) :]), name


def test_the_constructor_takes_what_onnx_runtime_takes() -> None:
    wanted = [name for name in inspect.signature(ort.InferenceSession.__init__).parameters if name != "kwargs"]
    assert list(inspect.signature(InferenceSession.__init__).parameters)[: len(wanted)] == wanted


def test_no_keyword_is_ignored_in_silence(artefact: Path) -> None:
    InferenceSession(artefact, disabled_optimizers=None, read_config_from_model=0)
    with pytest.warns(UserWarning, match="disabled_optimizers changes nothing"):
        InferenceSession(artefact, disabled_optimizers=["ConstantFolding"])
    with pytest.raises(UsageError, match=r"read_config_from_model.*SessionOptions"):
        InferenceSession(artefact, read_config_from_model=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'optoins'"):
        InferenceSession(artefact, optoins=None)


def attributes(options: Any) -> list[str]:
    return [name for name in dir(options) if not name.startswith("_") and not callable(getattr(options, name))]


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return next(member for member in type(value).__members__.values() if member != value)


@pytest.mark.parametrize("name", attributes(ort.SessionOptions()))
def test_no_option_of_a_session_is_ignored_in_silence(artefact: Path, name: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    setattr(options, name, changed(getattr(options, name)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            InferenceSession(artefact, options)
        except UsageError as error:
            assert name in known.REFUSED and name in str(error)
            return
    assert name in known.HONOURED or [True for each in said if name in str(each.message)]
    assert [each.filename for each in said if name in str(each.message)] in ([], [__file__])


def of_file(options: ort.SessionOptions) -> None:
    options.add_external_initializers_from_files_in_memory(["w.bin"], [b"abcd"], [4])


METHODS: dict[str, tuple[Any, str, str]] = {
    # How it is called, what follows, and what is said.
    "add_external_initializers": (
        lambda o: o.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))]),
        "refusal",
        "add_external_initializers",
    ),
    "add_free_dimension_override_by_name": (
        lambda o: o.add_free_dimension_override_by_name("n", 4),
        "refusal",
        "compile it with --fix n=4",
    ),
    "add_free_dimension_override_by_denotation": (
        lambda o: o.add_free_dimension_override_by_denotation("DATA_BATCH", 4),
        "warning",
        "--fix",
    ),
    "add_provider": (lambda o: o.add_provider("CPUExecutionProvider", {}), "warning", "add_provider"),
    "add_provider_for_devices": (
        lambda o: o.add_provider_for_devices(ort.get_ep_devices(), {}),
        "warning",
        "add_provider_for_devices",
    ),
    "add_session_config_entry": (
        lambda o: o.add_session_config_entry("session.graph_optimization_level", "0"),
        "warning",
        "graph_optimization_level",
    ),
    "set_load_cancellation_flag": (lambda o: o.set_load_cancellation_flag(True), "refusal", "cancel"),
    "set_provider_selection_policy": (
        lambda o: o.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU),
        "warning",
        "set_provider_selection_policy",
    ),
    "set_provider_selection_policy_delegate": (
        lambda o: o.set_provider_selection_policy_delegate(lambda *_: []),
        "warning",
        "set_provider_selection_policy",
    ),
    # These are about models that Collage refuses: weights beside a model of bytes, operators of others, contexts of devices.
    "add_external_initializers_from_files_in_memory": (of_file, "silence", ""),
    "register_custom_ops_library": (None, "silence", ""),
    "set_ep_context_data_read_func": (lambda o: o.set_ep_context_data_read_func(lambda *_: None, 8), "silence", ""),
    "clear_ep_context_data_read_func": (lambda o: o.clear_ep_context_data_read_func(), "silence", ""),
    # A tensor that several sessions share is a weight of the model in any case.
    "add_initializer": (
        lambda o: o.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))),
        "silence",
        "",
    ),
    # They only tell.
    "get_session_config_entry": (None, "silence", ""),
    "has_providers": (lambda o: o.has_providers(), "silence", ""),
}


def methods(options: Any) -> list[str]:
    return [name for name in dir(options) if not name.startswith("_") and callable(getattr(options, name))]


@pytest.mark.parametrize("name", methods(ort.SessionOptions()))
def test_no_method_of_options_is_ignored_in_silence(artefact: Path, name: str) -> None:
    call, outcome, word = METHODS[name]
    options = ort.SessionOptions()
    if call is not None:
        call(options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if outcome == "refusal":
            with pytest.raises(CollageError, match=word):
                InferenceSession(artefact, options)
        else:
            InferenceSession(artefact, options)
    assert [each.filename for each in said if word in str(each.message)] == [__file__] * (outcome == "warning")


def test_every_entry_that_onnx_runtime_reads_is_known() -> None:
    (library,) = Path(ort.__file__).parent.glob("capi/onnxruntime_pybind11_state*")
    found = re.findall(rb"\0((?:session|optimization|mlas|memory)\.[a-z_.0-9]{8,})\0", library.read_bytes())
    names = {name.decode() for name in found if not name.endswith((b"_", b"."))}
    assert len(names) > 40
    assert names <= {*known.ENTRIES, *known.RUN_ENTRIES}


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
    fixed = known.fixed_lengths(options, read_model(made))
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


def test_adapters_and_entries_of_a_run_are_not_ignored(ours: InferenceSession, tmp_path: Path) -> None:
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with pytest.warns(UserWarning, match="memory.enable_memory_arena_shrinkage"):
        ours.run(None, feeds(), options)
    form = ort.AdapterFormat()
    form.set_adapter_version(1)
    form.set_model_version(1)
    form.set_parameters({"w": ort.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32))})
    form.export_adapter(str(tmp_path / "adapter"))
    adapter = ort.LoraAdapter()
    adapter.Load(str(tmp_path / "adapter"))
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    with pytest.raises(UsageError, match="add_active_adapter"):
        ours.run(None, feeds(), options)
    told = {"add_active_adapter", "add_run_config_entry", "get_run_config_entry"}
    assert set(methods(options)) == told  # A new one needs a case here.


@pytest.mark.parametrize("name", attributes(ort.RunOptions()))
def test_no_option_of_a_run_is_ignored_in_silence(ours: InferenceSession, name: str) -> None:
    options = ort.RunOptions()
    setattr(options, name, changed(getattr(options, name)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            ours.run(None, feeds(), options)
        except (UsageError, ToolchainError) as error:
            assert name in str(error)
            return
    assert [each.filename for each in said if name in str(each.message)] == [__file__]


@pytest.mark.parametrize("options", [CPU, {"intra_op_num_threads": 1}, "CPUExecutionProvider", 2])
def test_what_has_no_options_is_refused(artefact: Path, ours: InferenceSession, options: Any) -> None:
    with pytest.raises(UsageError, match="SessionOptions, not ") as refusal:
        InferenceSession(artefact, options)
    assert ("providers=" in str(refusal.value)) == isinstance(options, list | str)
    with pytest.raises(UsageError, match="RunOptions, not "):
        ours.run(None, {}, options)


def test_an_option_of_a_later_version_is_refused(artefact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tables in ("WITHOUT_EFFECT", "REFUSED"):
        monkeypatch.setattr(known, tables, {})
    options = ort.SessionOptions()
    options.inter_op_num_threads = 3
    with pytest.raises(UsageError, match="inter_op_num_threads is not known"):
        InferenceSession(artefact, options)


@pytest.mark.parametrize(
    ("key", "value", "outcome"),
    [
        ("session.record_ep_graph_assignment_info", "1", "silence"),
        ("session.intra_op.allow_spinning", "0", "warning"),
        ("session.set_denormal_as_zero", "1", "refusal"),
        ("session.load_model_format", "ORT", "refusal"),
        ("session.load_model_format", "ONNX", "silence"),
    ],
)
def test_entries_of_a_session(artefact: Path, key: str, value: str, outcome: str) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, value)
    if outcome == "refusal":
        with pytest.raises(UsageError, match=key):
            InferenceSession(artefact, options)
    elif outcome == "warning":
        with pytest.warns(UserWarning, match=key):
            InferenceSession(artefact, options)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            InferenceSession(artefact, options)


def test_threads_of_an_artefact_are_those_of_the_options(artefact: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    assert InferenceSession(artefact, options).executable._loader.args[3].threads == 1
    assert InferenceSession(artefact).executable._loader.args[3].threads == 0


@pytest.mark.parametrize(
    ("providers", "options", "said"),
    [
        (CPU, None, None),
        (["CUDAExecutionProvider", *CPU], None, "CUDAExecutionProvider"),
        ([("CUDAExecutionProvider", {"device_id": 0})], None, "CUDAExecutionProvider"),
        ([("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})], None, "arena_extend_strategy"),
        (CPU, [{"use_arena": "1"}], "use_arena"),
    ],
)
def test_providers_that_change_nothing_are_said(artefact: Path, providers: Any, options: Any, said: str | None) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        InferenceSession(artefact, providers=providers, provider_options=options)
    assert len(found) == (said is not None)
    assert all(str(said) in str(warning.message) for warning in found)


def test_set_providers(ours: InferenceSession) -> None:
    ours.set_providers(CPU)
    ours.set_providers()
    with pytest.raises(UsageError, match="CUDAExecutionProvider"):
        ours.set_providers(["CUDAExecutionProvider"])


def test_describes_memory_as_onnx_runtime_does(ours: InferenceSession, theirs: ort.InferenceSession) -> None:
    for name in ("get_input_memory_infos", "get_output_memory_infos"):
        found, wanted = getattr(ours, name)(), getattr(theirs, name)()
        assert [(each.name, each.device_id) for each in found] == [(each.name, each.device_id) for each in wanted]
    assert [each.ep_name for each in ours.get_input_epdevices()] == CPU * 3
    assert isinstance(ours.get_session_options(), ort.SessionOptions)
    assert ours.get_provider_options() == theirs.get_provider_options()
    assert ours.get_tuning_results() == theirs.get_tuning_results()


def test_tells_which_target_runs_which_operators(ours: InferenceSession, model: onnx.ModelProto) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    theirs = ort.InferenceSession(model.SerializeToString(), options, providers=CPU)
    (wanted, *_), (found,) = theirs.get_provider_graph_assignment_info(), ours.get_provider_graph_assignment_info()
    for name in attributes(wanted):
        assert hasattr(found, name)
    for name in attributes(wanted.get_nodes()[0]):
        assert hasattr(found.get_nodes()[0], name)
    assert found.ep_name == "llvm -compiler=onnxruntime"
    assert {node.op_type for node in found.get_nodes()} == {"Add", "Relu", "Greater", "Neg", "Identity"}


@pytest.mark.parametrize("names", [None, [], ["p", "y"]])
def test_run_async(ours: InferenceSession, names: list[str] | None) -> None:
    done, told = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        told.append((results, user_data, error))
        done.set()

    given = feeds()
    ours.run_async(names, given, callback, "mine")
    assert done.wait(60)
    ((results, user_data, error),) = told
    assert (user_data, error) == ("mine", "")
    for name, result in zip(names or list(expected(given)), results, strict=True):
        same(result, expected(given)[name])


def test_run_async_tells_errors_to_its_callback(ours: InferenceSession) -> None:
    done, told = threading.Event(), []
    ours.run_async(None, {"x": np.zeros(7)}, lambda *said: (told.append(said), done.set()), None)
    assert done.wait(60)
    assert told[0][0] == [] and "input" in told[0][2]
    with pytest.raises(InputError, match="unknown output"):
        ours.run_async(["nothing"], feeds(), lambda *said: None, None)


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


def test_run_with_ortvaluevector(ours: InferenceSession, theirs: ort.InferenceSession) -> None:
    from onnxruntime.capi import _pybind_state as binding

    given = feeds()
    results = []
    for session in (ours, theirs):
        vector, fetched = binding.OrtValueVector(), binding.OrtValueVector()
        kept = [ort.OrtValue.ortvalue_from_numpy(given[name]) for name in ("x", "k")]
        kept.append(ort.OrtValue.ortvalue_from_numpy_with_onnx_type(given["b"].view(np.uint16), TensorProto.BFLOAT16))
        for value in kept:
            vector.push_back(value._ortvalue)
        device = binding.OrtDevice(binding.OrtDevice.cpu(), binding.OrtDevice.default_memory(), 0)
        session.run_with_ortvaluevector(ort.RunOptions(), ["x", "k", "b"], vector, ["m", "y"], fetched, [device] * 2)
        results.append([np.array(value.numpy()) for value in fetched])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(found, wanted)


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
    assert len(bound.get_outputs_as_ortvaluevector()) == 3
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
        "session": lambda: InferenceSession(artefact).run_with_iobinding(bound),
        "missing": lambda: ours.run_with_iobinding(bound),
    }.items():
        with pytest.raises(CollageError, match=name):
            call()


def test_ort_values_of_a_session(ours: InferenceSession) -> None:
    made = ours.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
    assert made.shape() == [2, 3]
    with pytest.raises(InputError, match="cuda"):
        ours.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cuda")


def test_profiling(artefact: Path, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = InferenceSession(artefact, options)
    given = feeds()
    for _ in range(3):
        same(session.run(["y"], given)[0], expected(given)["y"])
    bound = session.io_binding()
    for name, value in given.items():
        bound.bind_cpu_input(name, value)
    target = np.zeros((2, 3), np.float32)
    bound.bind_output("y", "cpu", 0, np.float32, [2, 3], target.ctypes.data)
    session.run_with_iobinding(bound)
    same(target, expected(given)["y"])
    file = session.end_profiling()
    assert file.startswith(str(tmp_path / "trace"))
    events = json.loads(Path(file).read_text())
    assert [event["name"] for event in events if event["cat"] == "Session"] == ["model_run"] * 4
    kernels = [event for event in events if event["cat"] == "Node"]
    assert len(kernels) == 4 and all(event["dur"] >= 0 and event["ph"] == "X" for event in kernels)
    with pytest.raises(UsageError, match="enable_profiling"):
        session.end_profiling()


def test_what_has_no_meaning_here_is_refused_with_the_way_out(ours: InferenceSession) -> None:
    ours.release_captured_graph()
    ours.enable_fallback()
    with pytest.warns(UserWarning, match="debug=True"):
        ours.disable_fallback()
    ours.set_ep_dynamic_options({})
    ours.set_tuning_results([])
    with pytest.raises(UsageError, match="workload"):
        ours.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    with pytest.raises(UsageError, match="collage db import"):
        ours.set_tuning_results([{"ep": "x"}])


def test_targets_are_for_models(artefact: Path) -> None:
    with pytest.raises(UsageError, match="compiled already"):
        InferenceSession(artefact, targets=["llvm"])


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16])
def test_initializers_that_options_replace_are_not_ignored(kind: int) -> None:
    values = [helper.make_tensor_value_info(name, kind, [2]) for name in "xy"]
    weights = [
        helper.make_tensor("odd name/ü", kind, [2], [1, 2]),
        helper.make_tensor("yes", TensorProto.BOOL, [2], [1, 0]),
    ]
    graph = helper.make_graph(
        [helper.make_node("Where", ["yes", "x", "odd name/ü"], ["y"])], "g", *[[v] for v in values], weights
    )
    made = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    options = ort.SessionOptions()
    known.check_initializers(options, made)
    given = np.array([3, 4], helper.tensor_dtype_to_np_dtype(kind))
    if kind == TensorProto.BFLOAT16:
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(given.view(np.uint16), kind)
    else:
        value = ort.OrtValue.ortvalue_from_numpy(given)
    options.add_initializer("nothing of the model", value)
    known.check_initializers(options, made)
    options.add_initializer("odd name/ü", value)
    with pytest.raises(UsageError, match="add_initializer"):
        known.check_initializers(options, made)


def test_initializers_that_options_give_the_same_value_are_told() -> None:
    made = read_model(small_model())
    kept = ort.OrtValue.ortvalue_from_numpy(made.graph.initializers["w"].const_value.numpy())  # Options hold a pointer.
    options = ort.SessionOptions()
    options.add_initializer("w", kept)
    with pytest.warns(UserWarning, match="add_initializer changes nothing for 'w'"):
        known.check_initializers(options, made)
