"""Devices, as users meet them: from Python, from annotations, from a TOML given to the command line, in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import ConfigError
from collage.compiler.copy_costs import measure_copy_cost
from collage.database.database import Database
from collage.device import DeviceConflict, PlanDevices, device_copy, on_device, read_device_plan, require_output
from collage.frontend import read_model
from collage.graph import kernels_of
from collage.runtime import CopyRecord
from tests.e2e.conftest import LENT, model_of
from tests.e2e.test_cli import run, run_here

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
SMALL = ("onnxruntime",)

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two devices take two cores")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedding, what is done with it, and two outputs."""
    random = np.random.default_rng(0)
    shapes = {"table": (50, 32), "w1": (32, 64), "b1": (64,), "w2": (64, 32), "w3": (32, 16)}
    weights = {name: (0.1 * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="embedding"),
        helper.make_node("MatMul", ["e", "w1"], ["m1"], name="block/up"),
        helper.make_node("Add", ["m1", "b1"], ["a1"], name="block/bias"),
        helper.make_node("Relu", ["a1"], ["r1"], name="block/relu"),
        helper.make_node("MatMul", ["r1", "w2"], ["m2"], name="block/down"),
        helper.make_node("Add", ["m2", "e"], ["hidden"], name="residual"),
        helper.make_node("MatMul", ["hidden", "w3"], ["logits"], name="head"),
    ]
    outputs = {"logits": (TensorProto.FLOAT, [4, 8, 16]), "hidden": (TensorProto.FLOAT, [4, 8, 32])}
    path = tmp_path_factory.mktemp("devices") / "m.onnx"
    onnx.save(model_of(nodes, {"ids": (TensorProto.INT64, [4, 8])}, outputs, weights), path)
    return path


IDS = {"ids": np.arange(32).reshape(4, 8)}


def plan(rest: str, **devices: str) -> bytes:
    """A plan of two devices, one core each, and more."""
    text = "".join(
        f'[devices.{name}]\ndevice = "cpu:{i}"\ncores = [{core}]\n{devices.get(name, "")}\n'
        for i, (name, core) in enumerate(zip(("main", "small"), CORES, strict=False))
    )
    return (text + rest).encode()


EMBEDDING = plan('[nodes]\nembedding = "small"\n')
"""Keep the embedding on cpu:1, the rest may go anywhere."""

APART = b'default = "main"\n' + EMBEDDING
"""Keep the embedding on cpu:1, the rest on cpu:0."""

OUTPUT = plan('[nodes]\n"*" = "small"\n[outputs]\nlogits = "host"\n')
"""This output must be in host memory."""


def options(source: bytes) -> collage.CompileOptions:
    return collage.CompileOptions(devices=read_device_plan(source), finals=False)


def devices_of(executable: collage.Executable) -> dict[str, str]:
    rows = executable.report["kernels"]
    return {node: row["device"] for row in rows for node in row["nodes"]}


def assert_right(executable: collage.Executable, model: Path) -> None:
    expected = ort.InferenceSession(str(model)).run(None, IDS)
    for actual, wanted in zip(executable.run(IDS).values(), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def embedded(model: Path) -> collage.Executable:
    return collage.compile(model, SMALL, options=options(APART), workers=LENT)


def test_keep_the_embedding_there_and_the_rest_here(embedded: collage.Executable, model: Path) -> None:
    devices = devices_of(embedded)
    assert devices.pop("embedding") == "cpu:1"
    assert set(devices.values()) == {"cpu:0"}
    assert embedded.recipe.devices.copies == (CopyRecord("e", "e_to_cpu_0", "cpu:1", "cpu:0"),)
    assert embedded.report["devices"]["cores"] == {"cpu:0": [CORES[0]], "cpu:1": [CORES[1]]}
    before = os.sched_getaffinity(0)
    assert_right(embedded, model)
    assert os.sched_getaffinity(0) == before


def test_keep_the_embedding_there_the_rest_may_go_anywhere(model: Path) -> None:
    """Cheapest is where it already is: there is nothing to copy."""
    executable = collage.compile(model, SMALL, options=options(EMBEDDING), workers=LENT)
    assert set(devices_of(executable).values()) == {"cpu:1"}
    assert not executable.recipe.devices.copies
    assert executable.report["devices"]["default"] is None
    assert_right(executable, model)


def test_of_what_is_pinned_apart_the_rest_goes_where_the_fewest_copies_are(model: Path) -> None:
    """Between an embedding here and a head there, the one value to copy is the last."""
    source = plan('[nodes]\nembedding = "small"\nhead = "main"\n[values]\nhidden = "small"\n')
    executable = collage.compile(model, SMALL, options=options(source), workers=LENT)
    devices = devices_of(executable)
    assert devices.pop("head") == "cpu:0"
    assert set(devices.values()) == {"cpu:1"}
    (copy,) = executable.recipe.devices.copies
    assert (copy.source, copy.src, copy.dst) == ("hidden", "cpu:1", "cpu:0")
    assert executable.report["search"]["optimal"] in (True, False)
    assert_right(executable, model)
    assert_right(collage.load(executable.save(model.with_name("apart.collage")), debug=True), model)


def test_what_copies_cost_is_measured_once_and_kept(model: Path, database: str) -> None:
    facts = {}
    for _ in range(2):
        with Database(database) as kept:
            facts[measure_copy_cost((CORES[0],), (CORES[1],), kept)] = None
    (found,) = facts
    assert found.latency_s >= 0 and found.s_per_byte >= 0, "how much it is, neighbours decide"
    assert found.seconds(1 << 20) >= found.seconds(0) == found.latency_s


def test_the_partitioned_model_says_where_and_runs_anywhere(embedded: collage.Executable, model: Path) -> None:
    file = embedded.workspace / embedded.recipe.model_file
    partitioned = ir.load(file)
    scopes = [call.function.metadata_props["result_se_scope"] for call in kernels_of(partitioned)]
    assert sorted(scope.partition("[")[0] for scope in scopes)[-1] == "cpu:1"
    assert [node.op_type for node in partitioned.graph].count("device_copy") == 1
    got = ort.InferenceSession(str(file)).run(None, IDS)
    for actual, wanted in zip(got, ort.InferenceSession(str(model)).run(None, IDS), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def test_an_output_must_be_in_host_memory(model: Path) -> None:
    executable = collage.compile(model, SMALL, options=options(OUTPUT), workers=LENT)
    assert set(devices_of(executable).values()) == {"cpu:1"}
    (copy,) = executable.recipe.devices.copies
    assert (copy.result, copy.src, copy.dst) == ("logits", "cpu:1", "cpu:0")
    assert_right(executable, model)


def test_annotations_in_the_model_are_enough(model: Path) -> None:
    annotated = read_model(model)
    on_device("e", "cpu:1", model=annotated)
    on_device("block/relu", "cpu:0", model=annotated)
    require_output(annotated, "hidden", "cpu:1")
    executable = collage.compile(annotated, SMALL, options=collage.CompileOptions(finals=False), workers=LENT)
    devices = devices_of(executable)
    assert devices["embedding"] == "cpu:1"
    assert devices["block/relu"] == "cpu:0"
    made = {
        name: where for row in executable.recipe.kernels for name, where in zip(row.outputs, row.writes, strict=True)
    }
    made |= {copy.result: copy.dst for copy in executable.recipe.devices.copies}
    assert made["hidden"] == "cpu:1", "wherever it is computed"
    assert_right(executable, model)


def test_a_device_with_a_target_gets_kernels_of_that_target_only(model: Path) -> None:
    source = plan('[nodes]\nembedding = "small"\n', small='target = "llvm -compiler=openvino"')
    executable = collage.compile(model, ("onnxruntime", "openvino"), options=options(source), workers=LENT)
    targets = {row["device"]: row["target"] for row in executable.report["kernels"]}
    assert targets["cpu:1"] == "llvm -compiler=openvino"
    assert_right(executable, model)
    with pytest.raises(ConfigError, match=r"'embedding' is planned for .*openvino.*, and no target of the menu"):
        collage.compile(model, SMALL, options=options(source), workers=LENT)


def test_an_artefact_with_devices_runs_in_another_process(
    embedded: collage.Executable, model: Path, tmp_path: Path
) -> None:
    path = embedded.save(tmp_path / "m.collage")
    for how in ({"debug": True}, {"rebuild": True}, {"contexts": 2}):
        assert_right(collage.load(path, **how), model)
    np.save(tmp_path / "ids.npy", IDS["ids"])
    done = run("run", path, "--input", f"ids={tmp_path / 'ids.npy'}", "--output-dir", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["notes"] == []
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), embedded.run(IDS)["logits"], rtol=1e-5, atol=1e-6)
    assert json.loads((path / "manifest.json").read_text())["schema"] == 1


def test_where_cores_are_missing_the_artefact_runs_with_a_note(embedded: collage.Executable, tmp_path: Path) -> None:
    path = embedded.save(tmp_path / "m.collage")
    script = (
        f"import os, collage; os.sched_setaffinity(0, {{{CORES[0]}}}); executable = collage.load({str(path)!r}); "
        "import numpy as np; executable.run({'ids': np.zeros((4, 8), np.int64)}); print(executable.notes[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == (
        f"device cpu:1 is the cores {CORES[1]}, and this process may use {CORES[0]}: "
        "kernels run one after the other, on any core\n"
    )


def test_the_command_line_takes_a_plan(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_bytes(EMBEDDING)
    words = ["compile", model, "-o", tmp_path / "m.collage", "-t", "onnxruntime", "--json"]
    done = run_here(capsys, *words, "--devices", tmp_path / "plan.toml")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {row["device"] for row in report["kernels"] if "embedding" in row["nodes"]} == {"cpu:1"}


CONFLICT = plan('[values]\ne = "small"\n[nodes]\nembedding = "main"\n')


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (CONFLICT, "[values] 'e' is to be in cpu:1, but what computes it in cpu:0"),
        (plan('[nodes]\nembeding = "small"\n'), "did you mean 'embedding'?"),
        (EMBEDDING.replace(f"cores = [{CORES[-1]}]".encode(), b"cores = [999]"), "is to be the cores 999"),
    ],
    ids=["two demands", "a misspelt name", "a core that is not there"],
)
def test_what_cannot_be_is_refused_with_exit_code_2(
    model: Path, tmp_path: Path, source: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.toml").write_bytes(source)
    done = run_here(capsys, "compile", model, "-o", tmp_path / "m.collage", "--devices", tmp_path / "plan.toml")
    assert done.returncode == 2
    assert message in done.stderr


def test_a_conflict_shows_its_chain_and_exits_with_2(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotated = read_model(model)
    on_device("e", "cpu:1", model=annotated, constrain_result=True)
    on_device("residual", "cpu:0", model=annotated)
    on_device("m2", "cpu:1", model=annotated, constrain_result=True)
    with pytest.raises(DeviceConflict) as caught:
        collage.compile(annotated, SMALL, workers=LENT)
    assert "because" in str(caught.value)
    ir.save(annotated, tmp_path / "annotated.onnx")
    words = ("compile", tmp_path / "annotated.onnx", "-o", tmp_path / "m.collage", "-t", "onnxruntime")
    done = run_here(capsys, *words)
    assert done.returncode == 2
    assert "because" in done.stderr
    assert "to resolve it" in done.stderr


def test_demands_inside_control_flow_that_runs_as_a_whole_are_refused() -> None:
    value = helper.make_tensor_value_info("y1", TensorProto.FLOAT, [4])
    other = helper.make_tensor_value_info("y2", TensorProto.FLOAT, [4])
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["y1"], name="inner")], "then", [], [value])
    otherwise = helper.make_graph([helper.make_node("Neg", ["x"], ["y2"], name="neg")], "else", [], [other])
    nodes = [
        helper.make_node("If", ["c"], ["z"], name="choice", then_branch=then, else_branch=otherwise),
        helper.make_node("Abs", ["z"], ["y"], name="abs"),
    ]
    inputs = {"x": (TensorProto.FLOAT, [4]), "c": (TensorProto.BOOL, [])}
    model = model_of(nodes, inputs, {"y": (TensorProto.FLOAT, [4])}, {})
    source = plan('[nodes]\ninner = "small"\nneg = "main"\n')
    with pytest.raises(ConfigError, match=r"'inner' .Relu. is to be in cpu:1.* inside of 'choice'"):
        collage.compile(model, SMALL, options=options(source), workers=LENT)


def test_an_annotation_is_handed_on_to_what_takes_its_place() -> None:
    random = np.random.default_rng(0)
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    weights = {
        "w": random.standard_normal((3, 4, 2, 2)).astype(np.float32),
        "s": 2 * ones,
        "b": zeros,
        "m": zeros,
        "v": ones,
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("ConvTranspose", ["r", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], name="norm"),
        helper.make_node("Identity", ["r"], ["z"], name="same"),
    ]
    shapes = {"y": (TensorProto.FLOAT, [1, 4, 6, 6]), "z": (TensorProto.FLOAT, [1, 3, 5, 5])}
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [1, 3, 5, 5])}, shapes, weights)
    executable = collage.compile(
        model, SMALL, options=options(plan('[operators]\nBatchNormalization = "small"\n')), workers=LENT
    )
    assert devices_of(executable)["conv"] == "cpu:1"
    with pytest.raises(ConfigError, match="made one operator of them"):
        collage.compile(model, SMALL, options=options(plan('[nodes]\nconv = "main"\nnorm = "small"\n')), workers=LENT)


def test_equal_operators_on_two_devices_stay_two() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="here"),
        helper.make_node("Exp", ["x"], ["b"], name="there"),
        helper.make_node("Neg", ["a"], ["y"], name="neg"),
        helper.make_node("Abs", ["b"], ["z"], name="abs"),
    ]
    tensor = (TensorProto.FLOAT, [4])
    model = model_of(nodes, {"x": tensor}, {"y": tensor, "z": tensor}, {})
    executable = collage.compile(
        model, SMALL, options=options(plan('[nodes]\nhere = "main"\nthere = "small"\n')), workers=LENT
    )
    devices = devices_of(executable)
    assert (devices["here"], devices["there"]) == ("cpu:0", "cpu:1")


@pytest.mark.parametrize("how", [pytest.param("written", marks=pytest.mark.slow), "planned"])
def test_copies_and_plans_that_are_in_the_file_count(model: Path, tmp_path: Path, how: str) -> None:
    annotated = read_model(model)
    relu = next(node for node in annotated.graph if node.name == "block/relu").outputs[0]
    readers = list(relu.uses())
    copied = device_copy(annotated, relu, "cpu:1")
    for use in readers:
        use.node.replace_input_with(use.idx, copied)
    for name in ("embedding", "block/up", "block/relu"):
        on_device(name, "cpu:0", model=annotated)
    if how == "planned":
        annotated = PlanDevices(["cpu:0", "cpu:1"], default="cpu:0")(annotated)
    ir.save(annotated, tmp_path / "copied.onnx")
    executable = collage.compile(
        tmp_path / "copied.onnx", SMALL, options=collage.CompileOptions(finals=False), workers=LENT
    )
    devices = devices_of(executable)
    copies = {(copy.source, copy.dst) for copy in executable.recipe.devices.copies}
    assert {devices[name] for name in ("embedding", "block/up", "block/relu")} == {"cpu:0"}
    assert ("r1", "cpu:1") in copies
    if how == "planned":  # what is only written leaves the rest free, and where it is fastest is measured
        assert devices["block/bias"] == "cpu:0"
        assert {devices[name] for name in ("block/down", "residual", "head")} == {"cpu:1"}
        assert copies == {("r1", "cpu:1"), ("e", "cpu:1")}
    assert_right(executable, model)
