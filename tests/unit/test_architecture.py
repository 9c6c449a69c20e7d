"""The house rules, as tests: who may import whom, what may not occur in the sources, what is public."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "packages").glob("*/src/**/*.py")])
TOOLCHAIN_NAMES = r"onnxruntime|openvino|\btvm\b|tensorrt|cutlass|inductor|onednn|\biree\b|\bncnn\b"


def test_rooms_import_only_from_rooms_above_them() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("back", ["if TYPE_CHECKING:\n    from p.a import A", "def late():\n    from p.a import A"])
def test_imports_for_annotations_and_late_ones_make_circles_too(back: str, tmp_path: Path) -> None:
    """The project's own settings, applied to a package with a circle that does not show when it is imported."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(each for each in settings["contracts"] if each["type"] == "acyclic_siblings")
    own = {**settings, "root_package": "p", "contracts": [{**contract, "ancestors": ["p"], "ignore_imports": []}]}
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").touch()
    (tmp_path / "p" / "a.py").write_text("from p.b import B\n")
    (tmp_path / "p" / "b.py").write_text("from typing import TYPE_CHECKING\n")
    (tmp_path / "pyproject.toml").write_text(_as_toml(own))
    assert _lint(tmp_path).returncode == 0
    with (tmp_path / "p" / "b.py").open("a") as file:
        file.write(back + "\n")
    done = _lint(tmp_path)
    assert done.returncode == 1 and "No cycles are allowed in p." in done.stdout, done.stdout


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).parent / "lint-imports"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([linter, "--no-cache"], cwd=folder, capture_output=True, text=True, env=environment)


def _as_toml(settings: dict[str, Any]) -> str:
    lines = ["[tool.importlinter]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key != "contracts"]
    for contract in settings["contracts"]:
        lines += [
            "[[tool.importlinter.contracts]]",
            *(f"{key} = {json.dumps(value)}" for key, value in contract.items()),
        ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("room", ["graph", "fusion", "search"])
def test_no_toolchain_and_no_model_is_named_in_rules_and_search(room: str) -> None:
    for path in (ROOT / "src" / "collage" / room).rglob("*.py"):
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
        assert not re.search(TOOLCHAIN_NAMES + r"|resnet|\bbert\b|mnist", code, re.IGNORECASE), path


def test_nothing_that_executes_data_is_used() -> None:
    danger = r"\b(pickle|marshal|dill|cloudpickle)\b|(?<![.\w])(eval|exec)\(|shell=True|os\.system|yaml\.load\("
    for path in SOURCES:
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL).replace("allow_pickle=False", "")
        assert not re.search(danger, code), path


@pytest.mark.parametrize(
    "room",
    [
        "compiler",
        "cost",
        "database",
        "device",
        "fleet",
        "frontend",
        "fusion",
        "graph",
        "integrations",
        "measure",
        "numerics",
        "pattern",
        "runtime",
        "search",
        "testing",
        "toolchains",
        "transform",
        "workers",
    ],
)
def test_every_public_name_exists_and_is_documented(room: str) -> None:
    module = importlib.import_module(f"collage.{room}")
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, f"collage.{room}.{name} has no docstring"


def test_the_command_line_comes_up_fast() -> None:
    heavy = "onnx_ir", "onnx", "numpy", "sqlalchemy", "torch", "tvm"
    script = f"import collage.cli, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


REFERENCE_TO_NOWHERE = r"(?i)\bspecification\s+[0-9]{3}|\bdesign(,|\s+page,?)?\s+sections?\s+[0-9]"
"""References to documents that are not in the repository. ``SOURCES.md`` names those that readers can find."""

STILL_TO_DO: tuple[str, ...] = ()
"""Rooms, and folders of tests of these rooms, in which such references have not been replaced yet."""


def test_documents_that_are_referred_to_are_in_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for folder in ("src", "tests", "docs", "examples", "benchmarks")
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md"), *(ROOT / folder).rglob("*.toml")]
        if path != Path(__file__) and not set(STILL_TO_DO) & set(path.relative_to(ROOT).parts)
        for match in re.finditer(REFERENCE_TO_NOWHERE, path.read_text())
    ]
    assert not found


@pytest.mark.parametrize("room", STILL_TO_DO)
def test_a_room_that_is_done_is_taken_off_the_list(room: str) -> None:
    sources = (ROOT / "src" / "collage" / room).rglob("*.py")
    assert any(re.search(REFERENCE_TO_NOWHERE, path.read_text()) for path in sources), f"{room} is done"


@pytest.mark.parametrize(
    "page",
    [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md"],
    ids=lambda page: page.name,
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


def test_files_that_the_page_of_sources_names_exist() -> None:
    names = re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / "SOURCES.md").read_text())
    assert names and all((ROOT / "src" / "collage" / name).exists() for name in names)
