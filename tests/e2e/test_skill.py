"""The commands of the skill file for assistants run, in order, and print what the file says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli import main

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "examples" / "skill" / "SKILL.md").read_text()


def test_the_commands_of_the_skill_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 8
    documents = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLAGE_DB", str(tmp_path / "t.db"))
    for line in lines:
        command, *words = shlex.split(line)
        assert command == "collage"
        more = ["-t", "onnxruntime"] if words[0] == "compile" else []  # One target is enough to see that it runs.
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*words, *more])
        said = capsys.readouterr()
        assert not stop.value.code, (line, said.err)
        if "--json" in words:
            documents[words[0]] = json.loads(said.out)
    report = documents["compile"]
    for key in re.findall(r"^\* `(\w+)`", SKILL, re.MULTILINE):
        assert key in report, key
    assert {"max_rel_error", "tolerance"} <= set(report["numerics"])


def test_the_pages_of_llms_txt_exist() -> None:
    for path in re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text()):
        assert (ROOT / path).exists(), path
