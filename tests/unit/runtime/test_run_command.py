"""``collage run``: from files to files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.unit.runtime.conftest import expected

from collage._errors import UsageError
from collage.cli._app import _main
from collage.cli._run import _file_names
from collage.option_texts import read_files
from collage.runtime import Executable, read_inputs
from collage.testing import executable_of


def test_a_zip_runs_and_is_profiled(small: Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artefact, trace = small.save(tmp_path / "m.zip"), tmp_path / "trace.json"
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", str(artefact), "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", str(tmp_path / "out")]
    assert _main([*arguments, "--profile", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected(x)["y"], rtol=1e-4, atol=1e-6)
    assert found["notes"] == []
    assert [kernel["name"] for kernel in found["profile"]["kernels"]] == [
        kernel.name for kernel in small.recipe.kernels
    ]
    assert json.loads(trace.read_text())["traceEvents"]
    assert _main([*arguments, "--profile", str(tmp_path / "missing" / "trace.json")]) == 2


def test_made_up_inputs_go_with_the_given_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[N, 2] a, float[N, 2] b) => (float[N, 2] y) { y = Add (a, b) }'
    artefact = executable_of(onnx.parser.parse_model(text), "onnxruntime").save(tmp_path / "m.zip")
    np.save(tmp_path / "a.npy", np.ones((3, 2), np.float32))
    words = ["run", str(artefact), "--json", "--input", f"a={tmp_path / 'a.npy'}"]
    assert _main(words) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["shape"] == [3, 2]
    assert _main([*words, "--dim", "N=4"]) == 2
    assert "dimension 'N' is 3 in the given inputs, and 4 was requested" in capsys.readouterr().err
    assert _main([*words, "--input", f"a={tmp_path / 'b.npy'}"]) == 2
    assert "--input gives 'a' twice" in capsys.readouterr().err


MIRRORED = """<ir_version: 9, opset_import: ["" : 17]> g (float[n] x, int64[] k) => (float[n] y)
<int64[4] pads = {0, 1, 0, 1}> { y = Pad <mode = "reflect"> (x, pads) }"""


def mirrored(folder: Path, dims: dict[str, object]) -> Path:
    """Return an artefact that runs only where the second dimension is above 1, which was measured at these lengths."""
    model = onnx.parser.parse_model(MIRRORED)
    model.graph.input[0].type.tensor_type.shape.dim.add()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    artefact = executable_of(model, "onnxruntime").save(folder / "m.collage")
    manifest = json.loads((artefact / "manifest.json").read_text())
    manifest["report"] = {**manifest["report"], "dims": dims}
    (artefact / "manifest.json").write_text(json.dumps(manifest))
    return artefact


@pytest.mark.parametrize(
    ("dims", "words", "shape"),
    [
        ({"x[1]": 256}, [], [1, 258]),
        ({"x[1]": {"8": 1, "4": 3}, "fixed": 5}, [], [1, 6]),
        ({"x[1]": 256, "n": 3}, ["--dim", "x[1]=16"], [3, 18]),
    ],
)
def test_made_up_inputs_have_the_lengths_that_were_measured(
    dims: dict[str, object], words: list[str], shape: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(["run", str(mirrored(tmp_path, dims)), "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == shape


@pytest.mark.parametrize("dims", [{}, {"x[1]": "many"}])
def test_a_failure_on_made_up_inputs_names_the_options_that_give_real_ones(
    dims: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artefact = mirrored(tmp_path, dims)
    assert _main(["run", str(artefact), "--dim", "x[1]=1"]) == 1
    said = capsys.readouterr().err
    assert "Inputs were made up: --dim 'n=LENGTH' or --dim 'x[1]=LENGTH' or --input 'x=FILE.npy'" in said
    np.save(tmp_path / "x.npy", np.ones((1, 1), np.float32))
    np.save(tmp_path / "k.npy", np.int64(1))
    given = [word for name in "xk" for word in ("--input", f"{name}={tmp_path / name}.npy")]
    assert _main(["run", str(artefact), *given]) == 1
    assert "made up" not in capsys.readouterr().err


def test_what_was_rebuilt_is_said(artefact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["run", str(artefact), "--rebuild"]) == 0
    assert capsys.readouterr().err.count("note: rebuilt") == 3


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["y", "z.1"], ["y", "z.1"]),
        (["\u7c7b\u522b", "\u5206\u6570"], ["\u7c7b\u522b", "\u5206\u6570"]),
        (["a/b", "a:b", "A_b", "a_b_2"], ["a_b", "a_b_2", "A_b_3", "a_b_2_2"]),
        (["..", "../../x", "\0"], ["..", ".._.._x", "_"]),
        (["n" * 500, "n" * 501], ["n" * 200, "n" * 200 + "_2"]),
        (["\u7c7b" * 100], ["\u7c7b" * 66]),
    ],
)
def test_outputs_have_files_of_their_own(names: list[str], files: list[str]) -> None:
    assert _file_names(names) == [f"{file}.npy" for file in files]


@pytest.mark.parametrize(
    ("name", "file"),
    [("x", "x.npy"), ("x", "date=1/x.npy"), ("x=0", "x.npy"), ("x=0", "date=1/a=b/x.npy"), ("x", "none.npy")],
)
def test_equals_signs_may_be_in_names_and_in_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if file != "none.npy":
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    assert read_files([f"{name}={file}", f"{name}2={tmp_path / file}"], "--input", "NAME=FILE.npy") == {
        name: file,
        f"{name}2": str(tmp_path / file),
    }
    with pytest.raises(UsageError, match="write NAME=FILE"):
        read_files(["=x"], "--input", "NAME=FILE.npy")


@pytest.mark.parametrize("zipped", [False, True])
def test_a_wrong_name_is_told_before_anything_is_loaded(
    zipped: bool, small: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = small.save(tmp_path / ("m.zip" if zipped else "m.collage"))
    monkeypatch.setattr("collage.cli._run.load", lambda *_, **__: pytest.fail("it was loaded"))
    assert _main(["run", str(saved), "--input", f"q={tmp_path / 'none.npy'}"]) == 2
    assert "unknown input 'q'; the model takes x" in capsys.readouterr().err


def test_what_is_no_artefact_is_left_to_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.zip").write_text("a text")
    (tmp_path / "empty").mkdir()
    for name, code in (("text.zip", 5), ("empty", 5), ("missing", 2)):
        assert read_inputs(tmp_path / name) is None
        assert _main(["run", str(tmp_path / name)]) == code
        assert capsys.readouterr().err.startswith("collage: ")


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, int], outputs: dict[str, int]) -> onnx.ModelProto:
    described = [
        [helper.make_tensor_value_info(name, dtype, [2]) for name, dtype in each.items()] for each in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "g", *described)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_outputs_of_bfloat16_can_be_given_to_a_model_that_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to, back = TensorProto.BFLOAT16, TensorProto.FLOAT
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=to)], [helper.make_node("Cast", ["y"], ["z"], to=back)]
    first = executable_of(model_of(nodes[0], {"x": back}, {"y": to}), "onnxruntime").save(tmp_path / "a.collage")
    second = executable_of(model_of(nodes[1], {"y": to}, {"z": back}), "onnxruntime").save(tmp_path / "b.collage")
    np.save(tmp_path / "x.npy", np.float32([1.5, -3.0]))
    for artefact, pair in ((first, "x"), (second, "y")):
        command = ["run", str(artefact), "--input", f"{pair}={tmp_path / pair}.npy", "--output-dir", str(tmp_path)]
        assert _main(command) == 0, capsys.readouterr().err
    assert np.load(tmp_path / "z.npy").tolist() == [1.5, -3.0]


def test_texts_are_written_and_read_under_a_terminal_of_ascii(tmp_path: Path) -> None:
    text = TensorProto.STRING
    model = model_of(
        [helper.make_node("Identity", ["\u0441"], ["\u7c7b\u522b"])], {"\u0441": text}, {"\u7c7b\u522b": text}
    )
    executable_of(model, "onnxruntime").save(tmp_path / "m.collage")
    np.save(tmp_path / "s.npy", np.array(["\u00e4", ""]))
    script = "import sys; from collage.cli import main; main()"
    locale = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    given = os.fsencode(f"\u0441={tmp_path / 's.npy'}")
    command = [sys.executable, "-c", script, "run", str(tmp_path / "m.collage"), "--input", given]
    done = subprocess.run(
        [*command, "--output-dir", str(tmp_path / "out")], env={**os.environ, **locale}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").iterdir()
    assert np.load(file).tolist() == ["\u00e4", ""]
    assert file.name == "\u7c7b\u522b.npy" and done.stdout.isascii()
