"""The public names, as type checkers and editors see them, and as they are imported at run time."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import collage

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "collage"
LAZY_PACKAGES = [
    "collage",
    *(f"collage.{room}" for room in ("compiler", "cost", "database", "measure", "numerics", "testing", "workers")),
]

SCRIPT = """\
import collage
from collage.integrations import InferenceSession

exe = collage.compile("model.onnx", targets=["llvm", "openvino"], options=collage.CompileOptions(threads=2))
outputs = exe.run({"x": [1.0]})
print(outputs["y"], collage.__version__, exe)
loaded: collage.Executable = collage.load("model.collage", contexts=2)
loaded.profile(runs=5).to_chrome_trace("trace.json")
session = InferenceSession("model.onnx", targets=["llvm"])
session.executable.save("other.collage")
with collage.transform.PassContext(config={}):
    estimator = collage.testing.MockCostEstimator
try:
    collage.Target.parse("llvm")
except collage.CollageError as error:
    print(error.exit_code)
"""

ERRORS = """\
exe.svae("x")  # attr-defined
collage.complie("model.onnx")  # attr-defined
collage.CompileOptions(thread=2)  # call-arg
collage.CompileOptions(threads="two")  # arg-type
collage.compile("model.onnx", target=["llvm"])  # call-arg
collage.load(7)  # arg-type
number: int = exe.run()  # assignment
loaded.profile(runs="many")  # arg-type
session.executable.rum()  # attr-defined
collage.testing.MockCostEstimater  # attr-defined
"""
PYRIGHTS = {
    "attr-defined": "reportAttributeAccessIssue",
    "call-arg": "reportCallIssue",
    "arg-type": "reportArgumentType",
    "assignment": "reportAssignmentType",
}
"""Pyright's names of mypy's rules."""
PLANTED = [
    (SCRIPT.count("\n") + 1 + offset, line.rpartition("# ")[2]) for offset, line in enumerate(ERRORS.splitlines())
]


def mypy(script: Path) -> str:
    # The settings and the cache of `make lint`, so that little is left to analyse.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(script)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600).stdout


def test_a_user_script_is_checked_and_its_mistakes_are_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + ERRORS)
    told = re.findall(r"script\.py:(\d+): error: .*\[([\w-]+)\]", printed := mypy(script))
    assert [(int(line), rule) for line, rule in told] == PLANTED, printed


def test_pyright_finds_the_same_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    (tmp_path / "script.py").write_text(SCRIPT + ERRORS)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    found = [
        (each["range"]["start"]["line"] + 1, each["rule"]) for each in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert found == [(line, PYRIGHTS[rule]) for line, rule in PLANTED], done.stdout


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_type_checkers_and_the_interpreter_are_told_the_same_names(name: str) -> None:
    module = importlib.import_module(name)
    path = SOURCES.joinpath(*name.split(".")[1:]) / "__init__.py"
    blocks = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.asname or alias.name: node.module for node in imports for alias in node.names}
    rooms = dict.fromkeys(getattr(module, "_ROOMS", ()), "collage")
    homes = module._HOME if module is collage else module.__getattr__.homes
    assert typed == homes | rooms
    assert set(module.__all__) - {"__version__"} == set(homes)
    for public in module.__all__:
        assert getattr(module, public) is not None
    with pytest.raises(AttributeError, match="complie"):
        module.complie  # noqa: B018


def test_the_names_can_be_listed() -> None:
    assert set(collage.__all__) <= set(dir(collage))
    assert {"transform", "testing", "integrations"} <= set(dir(collage))


def test_importing_collage_imports_nothing_but_the_standard_library() -> None:
    script = "import sys; before = set(sys.modules); import collage; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    roots = {module.partition(".")[0] for module in done.stdout.split()}
    assert roots - set(sys.stdlib_module_names) == {"collage"}
    assert {module for module in done.stdout.split() if module.startswith("collage")} == {"collage", "collage._version"}


@pytest.mark.parametrize(
    ("code", "offered"),
    [
        ("import collage\ncollage.", {"compile", "load", "Executable", "CompileOptions", "transform"}),
        ('import collage\nexe = collage.load("model.collage")\nexe.', {"run", "save", "profile", "report"}),
        ('import collage\ncollage.compile("m.onnx").', {"run", "save", "profile", "report"}),
    ],
)
def test_editors_complete_the_names(code: str, offered: set[str]) -> None:
    jedi = pytest.importorskip("jedi", reason="Jedi is not installed")
    lines = code.splitlines()
    names = {found.name for found in jedi.Script(code).complete(len(lines), len(lines[-1]))}
    assert offered <= names
