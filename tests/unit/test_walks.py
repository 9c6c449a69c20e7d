"""The four walks of CONTRIBUTING.md hold of everything that was added by them: toolchains, rules, options, strategies."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import collage.fusion
from collage.cli._app import app
from collage.options import BASIC, CompileOptions, command_options

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLCHAINS: dict[str, str] = PROJECT["entry-points"]["collage.toolchains"]
IN_PACKAGES: dict[str, str] = {
    name: entry
    for path in ROOT.glob("packages/*/pyproject.toml")
    for name, entry in tomllib.loads(path.read_text())["project"]["entry-points"]["collage.toolchains"].items()
}
STRATEGIES: dict[str, str] = PROJECT["entry-points"]["collage.search_strategies"]
RULES = [
    name
    for name in collage.fusion.__all__
    if inspect.isclass(rule := getattr(collage.fusion, name))
    and issubclass(rule, collage.fusion.FusionRule)
    and rule is not collage.fusion.FusionRule
]


def page(name: str) -> str:
    return (ROOT / name).read_text()


def walk(title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)(?=^##)", page("CONTRIBUTING.md"), re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


@pytest.mark.parametrize("name", [*TOOLCHAINS, *IN_PACKAGES])
def test_a_toolchain_is_in_every_place_that_the_walk_names(name: str) -> None:
    module, _, class_name = (TOOLCHAINS | IN_PACKAGES)[name].partition(":")
    toolchain = getattr(importlib.import_module(module), class_name)
    assert toolchain().name == name
    tests = [path.read_text() for folder in ("tests", "packages") for path in (ROOT / folder).rglob("test_*.py")]
    assert any((module in text and "ToolchainTestCase" in text) or f'"{name}"' in text for text in tests)
    assert re.search(rf"\b{name}\b", page("docs/toolchains.md"), re.IGNORECASE)


def test_only_its_own_folder_and_what_the_walk_names_know_a_toolchain() -> None:
    """A toolchain that can be left out is named in no other room."""
    text = walk("Add a toolchain")
    for place in (
        "pyproject.toml",
        "tests/test_<name>.py",
        "packages/collage-<name>/src/collage_<name>/",
        "docs/toolchains.md",
        "benchmarks/_vendors.py",
    ):
        assert place in text
    rooms = [p for p in (ROOT / "src" / "collage").rglob("*.py") if "toolchains" not in p.parts]
    for name, entry in TOOLCHAINS.items():
        module = entry.partition(":")[0]
        importers = [p for p in rooms if module in p.read_text() and name not in ("host", "onnxruntime")]
        assert not importers, name


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_in_the_table_and_is_tested_against_its_definition(rule: str) -> None:
    assert f"| `{rule}` |" in page("docs/fusion.md")
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "unit" / "fusion").glob("*.py"))
    assert rule in tests


def test_an_option_is_a_field_and_nothing_else() -> None:
    """The command line, files of options and keywords in Python follow from the fields of ``CompileOptions``."""
    documentation = inspect.getdoc(CompileOptions) or ""
    for field in dataclasses.fields(CompileOptions):
        assert re.search(rf"^ *{field.name}: ", documentation, re.MULTILINE), field.name
    command = typer.main.get_command(app).commands["compile"]  # type: ignore[attr-defined]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {each.flag.partition("/")[0] for each in command_options().values()} <= flags
    keywords = runpy.run_path(str(ROOT / "tools" / "option_keywords.py"))
    assert keywords["MODULE"].read_text() == keywords["text"](), "run tools/option_keywords.py"
    reference = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))
    assert reference["PAGE"].read_text() == reference["page"](), "run tools/cli_reference.py"


def test_the_first_screen_of_compile_has_at_most_twelve_options() -> None:
    basic = [each for each in command_options().values() if each.group == BASIC]
    command = typer.main.get_command(app).commands["compile"]  # type: ignore[attr-defined]
    own = [p for p in command.params if p.param_type_name == "option" and p.rich_help_panel in (None, BASIC)]
    assert len(own) + len(["--help"]) <= 12
    assert {each.flag for each in basic} <= {flag for p in own for flag in p.opts}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_its_name_and_is_described(name: str) -> None:
    module, _, class_name = STRATEGIES[name].partition(":")
    assert getattr(importlib.import_module(module), class_name).name == name
    assert f"| `{name}` |" in page("docs/fusion.md")
