"""Wrong usages, each with a sentence that names the fault and the way out, and its exit code.

The texts are in ``wrong_usages.txt``. ``python -m tests.unit.cli.test_wrong_usages`` writes it anew, for a reader to judge.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli._app import _main

SNAPSHOT = Path(__file__).with_name("wrong_usages.txt")

USAGES = """
complie m.onnx -o o.collage
compile m.onnx
compile m.onnx n.onnx -o o.collage
compile gone.onnx -o o.collage
compile . -o o.collage
compile m.onnx -o n.onnx
compile m.onnx -o o.collage -t ""
compile m.onnx -o o.collage --threads 2.5
compile m.onnx -o o.collage --threads -1
compile m.onnx -o o.collage --data gone --max-drop 1%
compile m.onnx -o o.collage --plan gone.json
compile https://example.org/m.onnx -o o.collage
compile m.onnx -o gone/o.collage
compile m.onnx -o m.tar.gz
compile m.onnx -o o.collage --timebudget 60
compile m.onnx -o o.collage --time-budget 0
compile m.onnx -o o.collage --time-budget soon
compile m.onnx -o o.collage --int8
compile m.onnx -o o.collage --fp16
compile m.onnx -o o.collage --precision int8
compile m.onnx -o o.collage --precision fp16
compile m.onnx -o o.collage --max-drop 0.5
compile m.onnx -o o.collage --max-drop half
compile m.onnx -o o.collage --max-drop 120%
compile m.onnx -o o.collage --accuracy-budget tiny
compile m.onnx -o o.collage --metric top1
compile m.onnx -o o.collage --metric best --max-drop 1%
compile m.onnx -o o.collage --metric python:nowhere:score --max-drop 1%
compile m.onnx -o o.collage -t gpu
compile m.onnx -o o.collage -t openvin
compile m.onnx -o o.collage -t llvm,openvino
compile m.onnx -o o.collage -t "llvm -precision"
compile m.onnx -o o.collage --objective speed
compile m.onnx -o o.collage --limit "p98<=20ms"
compile m.onnx -o o.collage --limit "latency<=5ms"
compile m.onnx -o o.collage --search best
compile m.onnx -o o.collage --fix batch=4 --dim batch=2
compile m.onnx -o o.collage --fix batch=four
compile m.onnx -o o.collage --dim batch
compile m.onnx -o o.collage --force Relu:llvm --forbid llvm:Relu
compile m.onnx -o o.collage --plan p.json --force Relu:llvm
compile m.onnx -o o.collage --threads many
compile m.onnx -o o.collage --config gone.toml
compile m.onnx -o o.collage --config flat.toml
compile m.onnx -o o.collage --input x
compile pointer.onnx -o o.collage
compile page.onnx -o o.collage
compile m.onnx.gz -o o.collage
compile m.zip -o o.collage
compile m.tflite -o o.collage
compile m.safetensors -o o.collage
compile m.pt -o o.collage
run m.onnx
run gone.collage
bench gone.collage
compare gone.collage gone.collage
explain gone.collage
report gone.collage -o r.html
bench m.onnx
explain m.onnx
db show --status okk --db t.db
predict gone.onnx
predict page.onnx
predict m.onnx -q --dim other=3 --db t.db
predict m.onnx -t openvin
db train --db gone.db
toolchain check onnxruntime --takes nothing
fleet compile
fleet status -o gone
targets extra
inspect m.onnx --time-budget 5m
inspect m.onnx --headroom --time-budget soon
inspect m.onnx --headroom --coverage
"""

FILES = {
    "pointer.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    "page.onnx": b"<!DOCTYPE html>\n<html></html>\n",
    "m.onnx.gz": b"\x1f\x8b\x08\x00" + bytes(20),
    "m.zip": b"PK\x03\x04" + bytes(60),
    "m.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(60),
    "m.safetensors": (20).to_bytes(8, "little") + b'{"w":{}}' + bytes(20),
    "m.pt": b"PK\x03\x04" + bytes(60),
    "flat.toml": b"threads = 2\n",
    "p.json": b"{}",
}


def write_files(folder: Path) -> None:
    for name, contents in FILES.items():
        (folder / name).write_bytes(contents)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    for name in ("m.onnx", "n.onnx"):
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / name)


def answers(folder: Path) -> Iterator[str]:
    """Yield each usage, its exit code and what it says; the folder is written as ``.``."""
    for line in USAGES.strip().splitlines():
        said = StringIO()
        with redirect_stderr(said), redirect_stdout(StringIO()):
            try:
                code = _main(shlex.split(line))
            except SystemExit as stop:
                code = int(stop.code or 0)
        yield f"$ collage {line}\n{said.getvalue().rstrip().replace(str(folder), '.')}\n[exit code {code}]\n"


def test_each_wrong_usage_names_the_fault_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    expected = SNAPSHOT.read_text().split("\n$ ")
    found = "\n".join(answers(tmp_path)).split("\n$ ")
    assert len(found) >= 40
    for one, other in zip(found, expected, strict=True):
        assert one.strip() == other.strip()
        assert "Traceback" not in one and "[exit code 0]" not in one


@pytest.mark.parametrize("line", [line for line in USAGES.splitlines() if " gone.collage" in line])
def test_an_artefact_that_is_not_there_is_missed_before_any_library_is_imported(line: str, tmp_path: Path) -> None:
    program = (
        "import sys; from collage.cli._app import _main; code = _main(sys.argv[1:]); "
        "print(code, sorted({'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'sqlalchemy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, *shlex.split(line)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n" and "gone.collage does not exist" in done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        os.chdir(name)
        SNAPSHOT.write_text("\n".join(answers(Path(name))))
