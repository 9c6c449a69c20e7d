"""The board: rows of contenders in processes of their own, and the page of their files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.board import race as board
from benchmarks.board.__main__ import main
from benchmarks.board.page import page

SCRIPT = """
import sys, time
sys.path.insert(0, {contenders!r})
import numpy as np
from _turns import serve

def prepare(model, feeds):
    if "fails" in sys.argv:
        raise RuntimeError("this model is not supported")
    print("a library says hello")
    calls = []
    def run():
        calls.append(0)
        if "hangs" in sys.argv and len(calls) > 4:
            time.sleep(60)
        time.sleep(0.002 * len(sys.argv[4]) if len(sys.argv) > 4 else 0.002)
        return [feeds["x"] * (1.001 if "errs" in sys.argv else 1)]
    return run, "1.0", {{"plan": "<b>abc"}} if "errs" in sys.argv else {{}}

serve(prepare)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "with_fake.py"
    path.write_text(SCRIPT.format(contenders=str(board.SCRIPTS)))
    monkeypatch.setattr(board, "SCRIPTS", tmp_path)
    monkeypatch.setattr(board, "PLAIN", ("with_fake.py",))
    monkeypatch.setattr(board, "_TURN_S", 0.01)
    monkeypatch.setattr(board, "_PAUSE_S", 0.0)
    answer = board.Contender._answer

    def impatient(self: board.Contender, within_s: float) -> Any:
        return answer(self, 0.5 if self.name == "hangs" and self.facts else within_s)

    monkeypatch.setattr(board.Contender, "_answer", impatient)
    return path.name


def test_every_contender_has_a_row_whatever_becomes_of_it(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = {"fast": "1", "slow": "3" * 25, "errs": "errs", "fails": "fails", "hangs": "hangs"}
    monkeypatch.setattr(board, "CONTENDERS", {name: (script, word) for name, word in contenders.items()})
    rows = board.race(tmp_path / "m.onnx", {"x": np.ones((2, 3), np.float32)}, list(contenders), rounds=3)
    found = {row["contender"]: row for row in rows}
    assert list(found) == list(contenders)
    assert found["fast"]["status"] == "ok" and found["fast"]["error"] == 0 and len(found["fast"]["rounds_ms"]) == 3
    assert found["slow"]["ms"] > 2 * found["fast"]["ms"]
    assert found["errs"]["error"] == pytest.approx(1e-3, rel=0.01)
    assert found["fails"]["status"] == "RuntimeError: this model is not supported" and "ms" not in found["fails"]
    assert "hung" in found["hangs"]["status"] and "ms" not in found["hangs"]
    assert found["fast"]["compile_s"] > 0 and found["fast"]["rss_mb"] > 10


def test_the_scripts_of_rivals_use_nothing_of_collage() -> None:
    for words in board.CONTENDERS.values():
        source = (board.SCRIPTS / words[0]).read_text()
        assert ("import collage" in source) is (words[0] == "with_collage.py"), words[0]
        assert "from collage" not in source
    assert "collage" not in (board.SCRIPTS / "_turns.py").read_text().replace("Collage", "")


def test_a_run_is_a_file_that_makes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "small.onnx")
    monkeypatch.setattr(board, "_TURN_S", 0.001)
    rows = tmp_path / "rows.json"
    chosen = ["--models", str(tmp_path / "small.onnx"), "--contenders", f"onnxruntime,{board.AGAIN}"]
    assert main(["run", *chosen, "--rounds", "3", "-o", str(rows)]) == 0
    (model,) = json.loads(rows.read_text())["models"]
    assert [row["status"] for row in model["rows"]] == ["ok", "ok"] and model["rows"][0]["error"] == 0
    assert main(["page", str(rows), "-o", str(tmp_path / "board.html")]) == 0
    assert "ONNX Runtime beside itself" in (tmp_path / "board.html").read_text()
    with pytest.raises(SystemExit, match="no such contender"):
        main(["run", "--contenders", "gone"])


def model(name: str, ours: float, rival: float, again: float = 2.0) -> dict[str, Any]:
    def row(contender: str, ms: float, **more: Any) -> dict[str, Any]:
        rounds = [ms * factor for factor in (0.99, 1.0, 1.01, 1.0, 1.0, 1.0, 1.0)]
        return {"contender": contender, "status": "ok", "ms": ms, "rounds_ms": rounds, **more}

    refused = {"contender": "ncnn", "status": "it takes images only"}
    rows = [row("onnxruntime", 2.0), row(board.AGAIN, again), row("openvino", rival), refused]
    return {"name": name, "sha256": "ab", "rows": [*rows, row("collage", ours, plan="f00", error=1e-6)]}


def test_losses_are_first_and_red_and_noise_is_told() -> None:
    models = [model("gains", 1.0, 1.5), model("even", 1.0, 1.0), model("loses", 1.25, 1.0, again=2.1)]
    html = page([{"date": "2026-11-27", "machine": {"cpu": "A <CPU>", "cores": 2}, "models": models}])
    rows = re.findall(r'<tr class="(lost|even|won)"><th scope="row">(\w+)</th><td[^>]*>([\d.]+)', html)
    assert rows == [("lost", "loses", "0.80"), ("even", "even", "1.00"), ("won", "gains", "1.50")]
    assert "slower on 1 of 3" in html and "off by 5.0% at most on 3 models, and 1 of its intervals" in html
    assert "A &lt;CPU&gt;" in html and "it takes images only" in html


@pytest.mark.parametrize(
    "file",
    [
        {},
        {"models": [{"name": "x"}]},
        {"models": [{"name": "<script>", "rows": [{"contender": "collage", "ms": "1", "rounds_ms": ["a"]}]}]},
        {
            "models": [
                {"rows": [{"contender": "collage", "rounds_ms": [1, 1, 1]}, {"contender": "tvm", "ms": float("nan")}]}
            ]
        },
    ],
)
def test_files_of_strangers_make_a_page_or_nothing(file: dict[str, Any]) -> None:
    html = page([file])
    assert "<script" not in html and "unknown processor" in html
