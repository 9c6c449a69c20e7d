"""The operator at which a toolchain goes wrong is named, with a small kernel that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from tests.wrong_operator_toolchain import WrongOperator

from collage._errors import UsageError
from collage.cli._app import _main
from collage.compiler.first_difference import Difference, first_differences
from collage.testing import FakeToolchain
from collage.toolchains import Registry

MODEL = """<ir_version: 10, opset_import: ["" : 17]>
g (float[2, 6] x, float[6, 6] w) => (float[2, 6] y) {
    [first] a = MatMul (x, w)
    [second] b = Tanh (a)
    [third] c = Add (b, x)
    [fourth] d = MatMul (c, w)
    [fifth] e = Softmax (d)
    [sixth] f = Neg (e)
    [seventh] y = Exp (f)
}"""


def found(tmp_path: Path, toolchain: FakeToolchain, folder: Path | None = None) -> Difference:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    toolchains = Registry()
    toolchains.add(toolchain)
    options = {"db": str(tmp_path / "db")}
    (difference,) = first_differences(path, [toolchain.name], folder, options=options, toolchains=toolchains)
    return difference


def test_a_right_toolchain_has_no_difference(tmp_path: Path) -> None:
    assert found(tmp_path, WrongOperator(["LSTM"])).verdict == "right"


@pytest.mark.parametrize(
    ("operators", "node", "kernel"),
    [
        (["Softmax"], "fifth", ("fifth",)),
        (["MatMul"], "first", ("first",)),
        (["Exp"], "seventh", ("seventh",)),
        # It shows only where both are in one kernel.
        (["Add", "Softmax"], "fifth", ("third", "fourth", "fifth")),
    ],
    ids=str,
)
def test_the_operator_is_named(tmp_path: Path, operators: list[str], node: str, kernel: tuple[str, ...]) -> None:
    difference = found(tmp_path, WrongOperator(operators), tmp_path / "wrong")
    assert (difference.verdict, difference.node) == ("wrong", node)
    assert difference.kernel == kernel and difference.reason and difference.difference
    folder = Path(str(difference.folder))
    session = onnxruntime.InferenceSession(folder / "kernel.onnx", providers=["CPUExecutionProvider"])
    results = session.run(None, dict(np.load(folder / "inputs.npz")))
    for port, result in zip(session.get_outputs(), results, strict=True):
        np.testing.assert_allclose(result, np.load(folder / "reference.npz")[port.name], rtol=1e-5, atol=1e-6)


def test_a_toolchain_that_always_fails_is_not_called_wrong(tmp_path: Path) -> None:
    difference = found(tmp_path, FakeToolchain("compile:raise"))
    assert difference.verdict == "failed" and "told to fail" in str(difference.reason)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "mine").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        found(tmp_path, FakeToolchain(), tmp_path / "wrong")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    words = ["diff", str(path), "-t", "onnxruntime", "--db", str(tmp_path / "db"), "-q"]
    assert _main(words) == 0
    assert "right at every operator" in capsys.readouterr().out
    assert _main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["verdict"] == "right"
