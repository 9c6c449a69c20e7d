"""What the built package states of itself, and what must be stated in one place."""

from __future__ import annotations

import ast
import hashlib
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import collage
from collage._distribution import IS_PUBLISHED, NAME, REPOSITORY, RUNTIME_NAME, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_licence_is_the_full_text_that_the_metadata_name() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE"]
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256


def test_the_version_is_a_plain_string_in_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    module, _, name = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    tree = ast.parse((ROOT / "src" / Path(*module.split("."))).with_suffix(".py").read_text())
    values = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    assert values == [collage.__version__]
    elsewhere = re.compile(rf"""__version__ = ["']|["']{re.escape(collage.__version__)}["']""")
    holders = [path.name for path in (ROOT / "src").rglob("*.py") if elsewhere.search(path.read_text())]
    assert holders == ["_version.py"]
    assert f"[{collage.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_packages_have_the_version_of_the_whole() -> None:
    files = sorted(ROOT.glob("packages/*/pyproject.toml"))
    assert {tomllib.loads(file.read_text())["project"]["version"] for file in files} == {collage.__version__}


@pytest.mark.parametrize("arguments", [["--version"], ["--version", "compile"]])
def test_the_command_line_prints_the_version(arguments: list[str]) -> None:
    script = "from collage.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"collage {collage.__version__}\n")


def test_every_extra_that_an_extra_names_exists() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    named = {
        name: [
            word
            for line in lines
            if line.startswith(f"{NAME}[")
            for word in re.findall(r"\w+", line.removeprefix(NAME))
        ]
        for name, lines in extras.items()
    }
    assert {word for words in named.values() for word in words} <= set(extras)
    assert set(named["cpu"]) == {"onnxruntime", "openvino", "tvm"}
    reached = {"all", "docs", *named["all"], *named["cpu"]}
    assert reached == set(extras) - {"cuda"}  # It is there in place of another one.


def test_either_package_of_onnxruntime_will_do() -> None:
    """A dependency on one would overwrite the other's files: both bring the module ``onnxruntime``."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert not [line for line in PROJECT["project"]["dependencies"] if line.startswith("onnxruntime")]
    assert set(extras["cuda"]) > {line.replace("onnxruntime", "onnxruntime-gpu") for line in extras["onnxruntime"]}


def test_the_distribution_that_only_runs_says_what_the_whole_one_says() -> None:
    runtime = tomllib.loads((ROOT / "packaging" / "runtime" / "pyproject.toml").read_text())
    whole, part = PROJECT["project"], runtime["project"]
    assert set(part["dependencies"]) < set(whole["dependencies"])
    assert part["optional-dependencies"].items() <= whole["optional-dependencies"].items()
    assert part["entry-points"]["collage.toolchains"].items() <= whole["entry-points"]["collage.toolchains"].items()
    assert part["requires-python"] == whole["requires-python"] and part["license"] == whole["license"]


def test_files_beside_modules_are_in_the_package() -> None:
    package = ROOT / "src" / "collage"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["collage"]
    listed = {path for pattern in patterns for path in package.glob(pattern)}
    present = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert listed == present


@pytest.mark.parametrize("path", sorted(ROOT.glob("packages/*/pyproject.toml")), ids=lambda path: path.parent.name)
def test_a_package_of_toolchains_is_of_this_version_and_in_an_extra(path: Path) -> None:
    package = tomllib.loads(path.read_text())["project"]
    assert package["name"] == path.parent.name and package["version"] == collage.__version__
    assert package["requires-python"] == PROJECT["project"]["requires-python"]
    assert package["license"] == PROJECT["project"]["license"]
    extras = PROJECT["project"]["optional-dependencies"]
    assert any(package["name"] in requirements for requirements in extras.values())
    module = package["name"].replace("-", "_")
    assert (path.parent / "src" / module / "py.typed").exists() and (path.parent / "README.md").exists()
    settings = PROJECT["tool"]
    assert f"packages/{path.parent.name}/src" in settings["mypy"]["files"]
    assert module in settings["importlinter"]["contracts"][0]["forbidden_modules"]


def test_classifiers_name_every_python_that_the_workflow_tests() -> None:
    prefix = "Programming Language :: Python :: 3."
    classified = {line.removeprefix(prefix) for line in PROJECT["project"]["classifiers"] if line.startswith(prefix)}
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    tested = set(re.findall(r'"3\.(\d+)"', workflow))
    assert classified == tested
    assert PROJECT["project"]["requires-python"] == f">=3.{min(map(int, tested))}"


EVERYWHERE = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/**/*",
        "packaging/**/*",
        "packages/**/*.md",
        "src/**/*.py",
        "*.toml",
        ".github/**/*.yml",
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and path.name != "CHANGELOG.md" and path.suffix in (".md", ".py", ".toml", ".yml", ".ipynb")
]


def faults_of_install_lines(text: str, extras: Iterable[str]) -> list[str]:
    """Install lines that name a stranger's package, a folder that is not there, or an extra that we do not have."""
    known = {install_command(*words, runtime=runtime) for words in [(), *((e,) for e in extras)] for runtime in (0, 1)}
    faults = re.findall(r"pip install[^\n`]*?\bcollage\b(?![-_./])[^\n`]*|\bcollage\[[a-z][\w,]*\]", text)
    ours = re.findall(rf"pip install '(?:\.|{NAME}|{RUNTIME_NAME}|\./packaging)[^']*'", text)
    folders = re.findall(r"pip install (?:-\S+ )*'?(\./\w[^\s'\[]*)", text)
    return [*faults, *(line for line in ours if line not in known), *(f for f in folders if not (ROOT / f).exists())]


@pytest.mark.parametrize("path", EVERYWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_install_line_works_today(path: Path) -> None:
    assert not faults_of_install_lines(path.read_text(), PROJECT["project"]["optional-dependencies"])


def test_install_lines_that_do_not_work_are_found() -> None:
    bad = ["pip install collage", "pip install 'collage[cpu]'", "pip install '.[cqu]'", "pip install ./exam/gone"]
    assert all(faults_of_install_lines(f"run {line} now", ["cpu"]) for line in bad)
    assert not faults_of_install_lines("pip install '.[cpu]'; pip install ./packaging/runtime", ["cpu"])


def test_publishing_is_one_edit() -> None:
    assert PROJECT["project"]["name"] == NAME
    runtime = tomllib.loads((ROOT / "packaging" / "runtime" / "pyproject.toml").read_text())
    assert runtime["project"]["name"] == RUNTIME_NAME
    example = tomllib.loads((ROOT / "examples" / "numexpr_toolchain" / "pyproject.toml").read_text())
    assert NAME in example["project"]["dependencies"]
    tool = runpy.run_path(str(ROOT / "tools" / "install_lines.py"))
    for path in tool["places"]():
        assert tool["rewritten"](path.read_text(), IS_PUBLISHED) == path.read_text(), path
    assert tool["rewritten"]("x pip install '.[a,b]' y", True) == f"x pip install '{NAME}[a,b]' y"
    assert tool["rewritten"](f"pip install '{RUNTIME_NAME}[tvm]'", False) == "pip install './packaging/runtime[tvm]'"


def test_links_of_the_readme_work_outside_a_checkout() -> None:
    text = (ROOT / "README.md").read_text()
    readable = runpy.run_path(str(ROOT / "setup.py"))["readable_anywhere"]
    link = re.compile(r"\]\(([^)#]+)")
    for repository in (REPOSITORY, "", "https://example.org/collage"):
        assert all(target.startswith("https://") for target in link.findall(readable(text, repository)))
    targets = [t for t in link.findall(readable(text, "https://example.org/c")) if "example.org" in t]
    assert len(targets) > 5
    assert all((ROOT / re.sub(r"https://example.org/c/(blob|raw)/main/", "", target)).exists() for target in targets)
