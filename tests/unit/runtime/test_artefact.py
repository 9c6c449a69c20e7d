"""What is saved comes back, whole or not at all; what does not fit here is built anew."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.unit.runtime.conftest import Build, assert_right

import collage
from collage._errors import ArtefactError, ToolchainError, UsageError
from collage.runtime import Executable, verify
from collage.runtime._artefact import check_destination
from collage.testing import executable_of

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("name", ["m.collage", "m.collage.zip"])
@pytest.mark.parametrize("recipe_only", [False, True])
def test_saved_and_loaded_again(small: Executable, tmp_path: Path, name: str, recipe_only: bool) -> None:
    path = small.save(tmp_path / name, recipe_only=recipe_only)
    loaded = collage.load(path)
    assert_right(loaded)
    assert [note.split(":")[0] for note in loaded.notes] == (
        [f"rebuilt {kernel.name}" for kernel in small.recipe.kernels] if recipe_only else []
    )
    assert [entry.name for entry in tmp_path.iterdir()] == [name]  # No drafts are left.
    assert_right(collage.load(loaded.save(tmp_path / "again.collage")))


def test_a_recipe_holds_nothing_that_was_compiled(small: Executable, tmp_path: Path) -> None:
    path = small.save(tmp_path / "m.collage", recipe_only=True)
    names = ["manifest.json", "model.onnx", "tried.json.gz", "weights.bin"]
    assert sorted(entry.name for entry in path.iterdir()) == names


def test_equal_executables_give_equal_zips(small: Executable, tmp_path: Path) -> None:
    first, second = (small.save(tmp_path / f"{i}.zip").read_bytes() for i in range(2))
    assert first == second


def test_an_unpacked_zip_goes_with_its_executable(small: Executable, tmp_path: Path) -> None:
    loaded = collage.load(small.save(tmp_path / "m.zip"))
    workspace = loaded.workspace
    assert workspace.is_dir()
    del loaded
    assert not workspace.exists()


def test_nothing_else_is_ever_replaced(small: Executable, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_text("data")
    (tmp_path / "file.zip").write_text("data")
    small.save(tmp_path / "artefact")
    (tmp_path / "artefact").rename(tmp_path / "artefact.zip")
    newer = small.save(tmp_path / "newer.zip")
    data = bytearray(newer.read_bytes())
    data[data.index(b"PK\1\2") + 6] = 99  # The version that is needed to read it.
    newer.write_bytes(data)
    for name in ("folder", "file.zip", "artefact.zip", "newer.zip"):
        with pytest.raises(UsageError, match="not an artefact"):
            small.save(tmp_path / name)
    with pytest.raises(UsageError, match="cannot write"):
        small.save(tmp_path / "file.zip" / "below")
    for write in (small.save, check_destination):
        with pytest.raises(UsageError, match="cannot write"):
            write(tmp_path / ("x" * 300))


def test_a_reader_never_sees_half_an_artefact(small: Executable, tmp_path: Path) -> None:
    """While one thread replaces it again and again, it is there and whole at every moment."""
    path = small.save(tmp_path / "m.collage")
    stop = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not stop.is_set():
            try:
                with os.scandir(path) as folder:
                    seen.append(sorted(entry.name for entry in folder))
            except FileNotFoundError:
                seen.append(["nothing at the path"])

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        small.save(path)
    stop.set()
    reader.join()
    whole = sorted(entry.name for entry in path.iterdir())
    assert whole in seen
    # A folder that was opened before it was replaced may be seen while it is removed, but nothing is seen half written.
    assert all(set(names) <= set(whole) for names in seen)
    verify(path)


def test_a_save_that_fails_leaves_what_was_there(small: Executable, tmp_path: Path) -> None:
    path = small.save(tmp_path / "m.collage")
    lost = small.workspace / "weights.bin"
    kept = lost.rename(tmp_path / "kept")
    try:
        with pytest.raises(UsageError, match="cannot write"):
            small.save(path)
    finally:
        kept.rename(lost)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.collage"]
    assert_right(collage.load(path))


@pytest.mark.parametrize("name", ["current.collage", "current.zip"])
def test_a_link_gives_way_and_leaves_nothing_behind(small: Executable, tmp_path: Path, name: str) -> None:
    first = small.save(tmp_path / f"first.{name}")
    (tmp_path / name).symlink_to(first.name)
    assert not small.save(tmp_path / name).is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([first.name, name])


def test_an_artefact_that_takes_the_place_of_a_loaded_one_is_not_mixed_with_it(
    small: Executable, build: Build, tmp_path: Path
) -> None:
    """Further contexts, first runs and the host read files late."""
    path = small.save(tmp_path / "m.collage")
    loaded, lazy = collage.load(path, contexts=2), collage.load(path, lazy=True)
    build().save(path)
    assert_right(loaded)
    for late in (
        loaded.warm_up,
        lambda: lazy.run({"x": np.ones((1, 6), np.float32)}),
        lambda: loaded.run({"x": np.ones((0, 6), np.float32)}),
        lambda: loaded.save(tmp_path / "again.collage"),
    ):
        with pytest.raises((ArtefactError, ToolchainError), match="was replaced after it was loaded"):
            late()
    assert_right(loaded)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.collage"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_native_code_that_takes_the_place_of_loaded_code_is_loaded_too(tmp_path: Path, is_kept: bool) -> None:
    def saved(slope: float) -> Path:
        node = helper.make_node("LeakyRelu", ["x"], ["y"], name="leaky", alpha=slope)
        ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])] for name in "xy"]
        graph = helper.make_graph([node], "leaky", *ports)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        return executable_of(model, [([0], "tvm")]).save(tmp_path / "m.collage")

    kept = []
    for slope in (0.5, 0.25, 0.5):
        loaded = collage.load(saved(slope))
        assert loaded.run({"x": np.full(4, -1, np.float32)})["y"].tolist() == [-slope] * 4
        kept += [loaded] if is_kept else []


def test_artefacts_of_the_first_release_load() -> None:
    """An artefact of 0.1.0; native code in it is rebuilt where it does not fit."""
    data = np.load(DATA / "0.1.0.npz")
    loaded = collage.load(DATA / "0.1.0.collage")
    assert {kernel.compiled.toolchain for kernel in loaded.recipe.kernels} == {"openvino", "host", "tvm", "onnxruntime"}
    np.testing.assert_allclose(loaded.run({"x": data["x"]})["y"], data["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["machine", "build"])
def test_native_code_that_does_not_fit_is_rebuilt(tmp_path: Path, what: str) -> None:
    data = np.load(DATA / "0.1.0.npz")
    path = collage.load(DATA / "0.1.0.collage").save(tmp_path / "m.collage")
    manifest = json.loads((path / "manifest.json").read_text())
    if what == "machine":
        manifest["machine"]["isa"] = "0" * 16
    else:
        manifest["toolchains"]["tvm"] = "of yesterday"
    library = next(name for name in manifest["files"] if name.endswith(".so"))
    (path / "manifest.json").write_text(json.dumps(manifest))
    loaded = collage.load(path)
    assert [note.split(":")[0] for note in loaded.notes] == [f"rebuilt {library.removesuffix('.so')}"]
    np.testing.assert_allclose(loaded.run({"x": data["x"]})["y"], data["y"], rtol=1e-5, atol=1e-6)
    again = collage.load(loaded.save(tmp_path / "again.collage"))
    assert again.notes == []  # What was rebuilt is saved as what it is.


def test_everything_is_rebuilt_on_request(artefact: Path) -> None:
    loaded = collage.load(artefact, rebuild=True)
    assert len(loaded.notes) == 3
    assert_right(loaded)


def test_a_toolchain_that_is_not_here_is_named(artefact: Path) -> None:
    text = (artefact / "manifest.json").read_text().replace("-compiler=host", "-compiler=elsewhere")
    (artefact / "manifest.json").write_text(text.replace('"toolchain": "host"', '"toolchain": "elsewhere"'))
    with pytest.raises(ArtefactError, match="elsewhere"):
        collage.load(artefact)
