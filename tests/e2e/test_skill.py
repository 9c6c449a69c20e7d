"""The commands of the skill file for assistants run, in order, and print what the file says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.short_measurements import LOCKS, PROGRAM

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "examples" / "skill" / "SKILL.md").read_text()


def test_the_commands_of_the_skill_run(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 8
    documents = {}
    for line in lines:
        command, *words = shlex.split(line)
        assert command == "collage"
        more = ["-t", "onnxruntime"] if words[0] == "compile" else []  # One target is enough to see that it runs.
        environment = {
            "COLLAGE_DB": str(tmp_path / "t.db"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            LOCKS: os.environ[LOCKS],
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words, *more],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (line, done.stderr)
        if "--json" in words:
            documents[words[0]] = json.loads(done.stdout)
    report = documents["compile"]
    for key in re.findall(r"^\* `(\w+)`", SKILL, re.MULTILINE):
        assert key in report, key
    assert {"max_rel_error", "tolerance"} <= set(report["numerics"])


def test_the_pages_of_llms_txt_exist() -> None:
    for path in re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text()):
        assert (ROOT / path).exists(), path
