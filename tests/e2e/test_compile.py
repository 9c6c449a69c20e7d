"""From a model to answers, with the real toolchains."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import collage
from collage._errors import ArtefactError, InputError, NothingCanRun, UsageError
from collage.graph import kernels_of
from tests.e2e.conftest import LENT, MENU, model_of
from tests.figures import figures

OPTIONS = collage.CompileOptions(finalists=2)


def reference(path: Path, feeds: dict) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.fixture(scope="module")
def compiled(mixed_model: Path) -> collage.Executable:
    return collage.compile(mixed_model, targets=MENU, options=OPTIONS, workers=LENT)


@pytest.fixture(scope="module")
def feeds() -> dict:
    return {"x": np.random.default_rng(5).standard_normal((1, 8, 50)).astype(np.float32)}


def test_outputs_match_onnx_runtime(compiled: collage.Executable, mixed_model: Path, feeds: dict) -> None:
    outputs = compiled.run(feeds)
    assert list(outputs) == ["y", "last"]
    for actual, expected in zip(outputs.values(), reference(mixed_model, feeds), strict=True):
        assert_close(actual, expected)
    for actual, expected in zip(compiled(feeds["x"]), outputs.values(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_the_report_says_what_the_design_promises(compiled: collage.Executable) -> None:
    report = compiled.report
    assert {row["target"]: row["status"] for row in figures(report)["singles"]} == {
        "llvm": "refused",
        "llvm -compiler=onnxruntime": "ok",
        "llvm -compiler=openvino": "ok",
    }
    assert "GRU" in next(row["reason"] for row in figures(report)["singles"] if row["target"] == "llvm")
    assert sorted(node for kernel in report["kernels"] for node in kernel["nodes"]) == sorted(
        ["conv", "relu", "transpose", "gru", "squeeze", "project", "softmax"]
    )
    assert report["numerics"]["ok"]
    assert report["numerics"]["max_rel_error"] <= 1e-4
    low, high = figures(report)["speedup_interval"]
    assert low <= figures(report)["speedup_vs_best_single"] <= high
    search = report["search"]
    assert search["measured"] <= search["built"]
    assert search["measured"] + search["cache_hits"] > 0
    assert search["candidates"] >= search["keys"] > 10


def test_the_second_compile_measures_nothing_and_chooses_the_same(
    compiled: collage.Executable, mixed_model: Path
) -> None:
    """However noisy the first one was. Only targets that were left out, or a choice in doubt, are raced again."""
    again = collage.compile(mixed_model, targets=MENU, options=OPTIONS, workers=LENT)
    assert not again.report["search"]["measured"]
    if not again.report["search"]["raced"]:
        assert [(k["target"], k["nodes"]) for k in again.report["kernels"]] == [
            (k["target"], k["nodes"]) for k in compiled.report["kernels"]
        ]


def test_every_plan_gives_the_same_answers(mixed_model: Path, feeds: dict, tmp_path: Path) -> None:
    """Forced mixes: the executor, the partitioned model and all toolchains, whatever the search would choose."""
    expected = reference(mixed_model, feeds)
    for split, (first, second) in enumerate([("llvm", "openvino"), ("openvino", "onnxruntime")], start=2):
        executable = force(mixed_model, split, first, second)
        assert len({kernel.compiled.toolchain for kernel in executable.recipe.kernels}) == 2
        for actual, wanted in zip(executable.run(feeds).values(), expected, strict=True):
            assert_close(actual, wanted)
        artefact = executable.save(tmp_path / f"{split}.collage")
        model_file = artefact / "model.onnx"
        onnx.checker.check_model(str(model_file), full_check=True)
        for actual, wanted in zip(reference(model_file, feeds), expected, strict=True):
            assert_close(actual, wanted)
        functions = {f.name: {p.key: p.value for p in f.metadata_props} for f in onnx.load(model_file).functions}
        assert all(f["Primitive"] == "1" and f["global_symbol"] == name for name, f in functions.items())
        assert {f.get("Compiler") for f in functions.values()} == {None if n == "llvm" else n for n in (first, second)}
        import onnx_ir

        assert [call.node.name for call in kernels_of(onnx_ir.load(model_file))] == [
            kernel.name for kernel in executable.recipe.kernels
        ]


def force(path: Path, split: int, first: str, second: str) -> collage.Executable:
    """An executable whose first ``split`` operators are one kernel and the rest another."""
    import shutil
    import tempfile

    from collage.compiler.opening import measure_session
    from collage.compiler.pipeline import settle
    from collage.compiler.plans import lower
    from collage.compiler.problem import Problem
    from collage.database import Database
    from collage.frontend import place_weights, read_model
    from collage.graph import IndexSet, SubGraph
    from collage.options import CompileOptions
    from collage.plan import Plan, PlannedKernel
    from collage.toolchains import registry
    from collage.transform import prepare

    menu = registry().parse_targets([first, second])
    workspace = Path(tempfile.mkdtemp())
    try:
        with (
            Database() as database,
            measure_session(registry(), database, workspace, CompileOptions(), workers=LENT) as session,
        ):
            model = place_weights(prepare(read_model(path)), workspace)
            problem = Problem.of(model, menu, registry(), CompileOptions())
            parts = [range(split), range(split, len(problem.graph))]
            kernels = tuple(
                PlannedKernel(SubGraph(problem.graph, IndexSet.from_indices(part)), target, "forced")
                for part, target in zip(parts, menu, strict=True)
            )
            return settle(lower(problem, session, Plan("forced", kernels)), workspace, registry())
    finally:
        shutil.rmtree(workspace)


def test_saved_and_loaded_again(compiled: collage.Executable, feeds: dict, tmp_path: Path) -> None:
    path = compiled.save(tmp_path / "m.collage")
    loaded = collage.load(path)
    assert loaded.notes == []
    for actual, expected in zip(loaded.run(feeds).values(), compiled.run(feeds).values(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
    compiled.save(path)  # An artefact may be replaced; anything else may not.
    (tmp_path / "precious").mkdir()
    with pytest.raises(UsageError, match="not an artefact"):
        compiled.save(tmp_path / "precious")


def test_what_was_tampered_with_is_refused(compiled: collage.Executable, tmp_path: Path) -> None:
    path = compiled.save(tmp_path / "m.collage")
    files = [entry for entry in path.iterdir() if entry.name != "manifest.json"]
    for file in files:
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(ArtefactError, match="was changed"):
            collage.load(path)
        file.unlink()
        with pytest.raises(ArtefactError, match="missing"):
            collage.load(path)
        file.write_bytes(good)
    (path / "extra.so").write_bytes(b"")
    with pytest.raises(ArtefactError, match="does not list"):
        collage.load(path)
    (path / "extra.so").unlink()
    manifest = path / "manifest.json"
    text = manifest.read_text()
    for bad in (
        text[: len(text) // 2],
        "[]",
        re.sub(r'"schema": \d', '"schema": 99', text, count=1),
        text.replace('"files"', '"f"'),
    ):
        manifest.write_text(bad)
        with pytest.raises(ArtefactError):
            collage.load(path)
    manifest.write_text(text)
    collage.load(path)


def test_an_artefact_of_another_machine_is_rebuilt(mixed_model: Path, feeds: dict, tmp_path: Path) -> None:
    path = force(mixed_model, 3, "llvm", "onnxruntime").save(tmp_path / "m.collage")
    manifest = path / "manifest.json"
    isa = __import__("json").loads(manifest.read_text())["machine"]["isa"]
    manifest.write_text(manifest.read_text().replace(isa, "0" * 16))
    loaded = collage.load(path)
    assert any("another kind of machine" in note for note in loaded.notes)
    for actual, expected in zip(loaded.run(feeds).values(), reference(mixed_model, feeds), strict=True):
        assert_close(actual, expected)


def test_wrong_inputs_are_named(compiled: collage.Executable) -> None:
    with pytest.raises(InputError, match="missing input 'x'"):
        compiled.run({})
    with pytest.raises(InputError, match="float64"):
        compiled.run({"x": np.ones((1, 8, 50))})


def test_symbolic_dimensions_run_at_other_lengths() -> None:
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
        onnx.helper.make_node("Softmax", ["h"], ["s"], axis=-1),
        onnx.helper.make_node("ReduceSum", ["s", "axes"], ["y"], keepdims=0),
    ]
    float_ = onnx.TensorProto.FLOAT
    weights = {"w": np.random.default_rng(0).standard_normal((8, 4)).astype("f"), "axes": np.array([1])}
    model = model_of(nodes, {"x": (float_, ["batch", "seq", 8])}, {"y": (float_, ["batch", 4])}, weights)
    options = collage.CompileOptions(dims={"batch": 2, "seq": 16}, finals=False)
    executable = collage.compile(model, targets=MENU, options=options, workers=LENT)
    session = ort.InferenceSession(model.SerializeToString())
    for batch, seq in ((2, 16), (1, 1), (3, 40)):
        x = np.random.default_rng(1).standard_normal((batch, seq, 8)).astype("f")
        assert_close(executable.run({"x": x})["y"], session.run(None, {"x": x})[0])


def test_operators_that_no_target_takes_run_on_the_host() -> None:
    nodes = [
        onnx.helper.make_node("StringNormalizer", ["t"], ["u"], case_change_action="UPPER"),
        onnx.helper.make_node("Relu", ["x"], ["y"]),
    ]
    kinds = onnx.TensorProto
    model = model_of(
        nodes,
        {"t": (kinds.STRING, [2]), "x": (kinds.FLOAT, [4])},
        {"u": (kinds.STRING, [2]), "y": (kinds.FLOAT, [4])},
        {},
    )
    options = collage.CompileOptions(finals=False)
    executable = collage.compile(model, targets=["openvino"], options=options, workers=LENT)
    # The host alone would be as fast, and is nothing that was asked for.
    assert [kernel.compiled.toolchain for kernel in executable.recipe.kernels] == ["host", "openvino"]
    outputs = executable.run({"t": np.array(["a", "b"], object), "x": np.float32([-1, 0, 1, 2])})
    assert outputs["u"].tolist() == ["A", "B"]
    np.testing.assert_array_equal(outputs["y"], [0, 0, 1, 2])


def test_an_operator_that_nothing_can_run_is_named() -> None:
    node = onnx.helper.make_node("Frobnicate", ["x"], ["y"], domain="example.com", name="strange")
    float_ = onnx.TensorProto.FLOAT
    model = model_of([node], {"x": (float_, [2])}, {"y": (float_, [2])}, {})
    model.opset_import.append(onnx.helper.make_opsetid("example.com", 1))
    with pytest.raises(NothingCanRun, match="Frobnicate"):
        collage.compile(model, targets=["onnxruntime"], workers=LENT)
