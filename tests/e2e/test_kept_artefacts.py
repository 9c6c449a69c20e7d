"""The same command again returns the whole artefact, without any process; whatever it depends on makes another one of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import collage
from collage.compiler import kept_artefacts
from collage.compiler.kept_artefacts import KeptArtefact
from collage.compiler.problem import Part
from collage.database.database import Database
from collage.measure.bench_findings import keep_faster
from collage.options import CompileOptions
from collage.report import Report
from collage.system import installation
from collage.target import Target
from collage.toolchains import Registry, registry
from collage.workers.worker import Worker

MENU = ("llvm -compiler=onnxruntime",)
X = np.arange(8, dtype=np.float32).reshape(1, 8) - 4


def model(scale: float = 1.0) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[1, 8] x) => (float[1, 8] y) { z = MatMul(x, w) y = Relu(z) }'
    )
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) * np.float32(scale)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return made


def right(scale: float = 1.0) -> Any:
    return np.maximum(X @ numpy_helper.to_array(model(scale).graph.initializer[0]), 0)


def compiled(folder: Path, **options: Any) -> collage.Executable:
    """With one thread there is one plan, so that its choice is never in doubt."""
    return collage.compile(model(), MENU, db=str(folder / "t.sqlite"), threads=1, **options)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("kept")
    return folder, compiled(folder).report


@pytest.fixture
def folder(first: tuple[Path, Report], tmp_path: Path) -> Path:
    """A database with the artefact beside it."""
    shutil.copytree(first[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(Worker, "_start", fail)


@pytest.fixture
def timings(folder: Path) -> Iterator[Database]:
    with Database(str(folder / "t.sqlite")) as opened:
        yield opened


def place(timings: Database, source: Any = None, menu: Any = MENU, **options: Any) -> KeptArtefact | None:
    targets = [Target.parse(text) for text in menu]
    source = model() if source is None else source
    given = CompileOptions(**{"threads": 1, **options})
    return KeptArtefact.of(timings, source, targets, given, registry(), Part(), is_named=True)


def searched(report: Report) -> Mapping[str, Any]:
    return {key: value for key, value in report.as_json().items() if key != "search"}


def test_a_plan_for_some_lengths_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_model = model()
    open_model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"

    def compiled_at() -> collage.Executable:
        return collage.compile(open_model, MENU, db=str(tmp_path / "t.sqlite"), threads=1, dims={"n": {2: 1, 5: 1}})

    first = compiled_at()
    assert len([*(tmp_path / "t.sqlite.artefacts").iterdir()]) == 3
    monkeypatch.setattr(Worker, "_start", None)
    again = compiled_at()
    assert again.report.as_json()["specialised"] == first.report.as_json()["specialised"]
    for rows in (2, 3, 5):
        x = np.ones((rows, 8), np.float32)
        np.testing.assert_allclose(again.run([x])["y"], first.run([x])["y"], rtol=1e-5)


@pytest.mark.usefixtures("no_process")
def test_the_same_command_again_needs_no_process(first: tuple[Path, Report], folder: Path) -> None:
    again = compiled(folder)
    np.testing.assert_allclose(again.run([X])["y"], right(), rtol=1e-5, atol=1e-5)
    assert searched(again.report) == searched(first[1])
    assert (again.report.search.measured, again.report.search.built, again.report.search.raced) == (0, 0, False)
    assert again.explain().kernels


def test_other_weights_options_inputs_and_targets_have_other_names(timings: Database) -> None:
    usual = place(timings)
    assert usual is not None
    given = np.zeros((1, 8), np.float32)
    others = [
        place(timings, model(2.0)),
        place(timings, menu=("llvm -compiler=openvino",)),
        place(timings, threads=2),
        place(timings, seed=1),
        place(timings, inputs={"x": given}),
        place(timings, inputs={"x": given + 1}),
        place(timings, forbid=("onnxruntime:Relu",)),
    ]
    names = [str(sorted(other.name.items())) for other in others if other is not None]
    assert len({str(sorted(usual.name.items())), *names}) == 1 + len(others)
    same = place(timings, db="elsewhere.sqlite", remeasure=True)
    assert same is not None
    assert same.name == usual.name


def test_what_no_name_identifies_is_not_looked_up(timings: Database, tmp_path: Path) -> None:
    for options in (
        {"plan_out": str(tmp_path / "p.toml")},
        {"tune_s": 5.0},
        {"objective": "size"},
        {"limits": ("p99<=1s",)},
    ):
        assert place(timings, **options) is None
    added = Registry()
    added.add(registry().get("onnxruntime"))  # A program may have made it, with code that no digest covers.
    targets = [Target.parse(text) for text in MENU]
    assert KeptArtefact.of(timings, model(), targets, CompileOptions(), added, Part(), is_named=True) is None


def test_a_damaged_artefact_is_compiled_again(folder: Path) -> None:
    (kept,) = (folder / "t.sqlite.artefacts").iterdir()
    victim = max(kept.iterdir(), key=lambda file: file.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1] + b"\0")
    np.testing.assert_allclose(compiled(folder).run([X])["y"], right(), rtol=1e-5, atol=1e-5)
    assert not kept.exists()
    assert len([*(folder / "t.sqlite.artefacts").iterdir()]) == 1, "the new one takes its place"


def test_remeasure_and_a_faster_target_ask_for_another_one(folder: Path, timings: Database) -> None:
    found = place(timings, remeasure=True)
    assert found is not None
    assert found.load(registry(), 0.0) is None
    assert not [*(folder / "t.sqlite.artefacts").iterdir()]
    usual = place(timings)
    assert usual is not None
    assert not usual.is_open
    keep_faster(timings, str(usual.name["model"]), ["llvm"])
    faster = place(timings)
    assert faster is not None
    assert faster.is_open


def test_a_new_database_measures(folder: Path) -> None:
    (folder / "t.sqlite").unlink()
    assert compiled(folder).report.search.raced


def test_a_database_cannot_name_a_foreign_folder(folder: Path, timings: Database) -> None:
    found = place(timings)
    assert found is not None
    (kept,) = (folder / "t.sqlite.artefacts").iterdir()
    for name in ("../" + kept.name, "0" * 64 + kept.name[64:], kept.name + "/.", ""):
        timings.keep_local_fact(kept_artefacts._FOLDER, name, **found.name)
        assert found.load(registry(), 0.0) is None
    assert kept.is_dir()


def test_a_folder_that_others_may_write_to_does_not_count(folder: Path, timings: Database) -> None:
    found = place(timings)
    assert found is not None
    (folder / "t.sqlite.artefacts").chmod(0o777)
    assert found.load(registry(), 0.0) is None


def test_the_oldest_go_when_there_is_no_room(folder: Path, timings: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    found = place(timings)
    assert found is not None
    executable = found.load(registry(), 0.0)
    assert executable is not None
    (kept,) = (folder / "t.sqlite.artefacts").iterdir()
    size = sum(file.stat().st_size for file in kept.iterdir())
    monkeypatch.setattr(kept_artefacts, "_MOST_BYTES", int(1.5 * size))
    other = place(timings, model(2.0))
    assert other is not None
    other.keep(executable)
    assert found.load(registry(), 0.0) is None
    monkeypatch.setattr(kept_artefacts, "_MOST_BYTES", size // 2)
    found.keep(executable)
    assert not [*(folder / "t.sqlite.artefacts").iterdir()], "what is larger than the room is not kept"


def test_each_installation_and_each_edit_in_place_has_a_digest_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = installation.installation_digest.__wrapped__
    monkeypatch.syspath_prepend(str(tmp_path))
    before = fresh()
    assert fresh() == before
    (tmp_path / "new-1.0.dist-info").mkdir()
    installed = fresh()
    assert installed != before
    source = tmp_path / "collage_test_plug.py"  # A plug-in may be one module.
    source.write_text("")
    points = EntryPoints([EntryPoint("plug", "collage_test_plug:Plug", "collage.toolchains")])
    monkeypatch.setattr(installation, "entry_points", lambda: points)
    plain = fresh()
    source.write_text("# edited\n")
    assert fresh() != plain
