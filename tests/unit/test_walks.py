"""The four walks of CONTRIBUTING.md hold of everything that was added by them: toolchains, rules, options, strategies."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import collage.fusion
from collage.cli._app import app
from collage.options import CompileOptions

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
NOT_ON_THE_COMMAND_LINE = {"seed", "finals", "finalists", "min_gain", "fusion", "launch_penalties_s", "fixed"}
"""Fields of ``CompileOptions`` that the command line sets under another name, or leaves to Python."""


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


def test_every_field_of_the_options_is_described_and_reaches_the_command_line() -> None:
    documentation = inspect.getdoc(CompileOptions) or ""
    command = next(
        each.callback
        for each in app.registered_commands
        if each.name == "compile" or (each.callback is not None and each.callback.__name__.rstrip("_") == "compile")
    )
    assert command is not None
    source = inspect.getsource(inspect.getmodule(command) or collage)
    for field in dataclasses.fields(CompileOptions):
        assert re.search(rf"^ *{field.name}: ", documentation, re.MULTILINE), field.name
        if field.name not in NOT_ON_THE_COMMAND_LINE:
            assert re.search(rf"\b{field.name}=", source), field.name


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_its_name_and_is_described(name: str) -> None:
    module, _, class_name = STRATEGIES[name].partition(":")
    assert getattr(importlib.import_module(module), class_name).name == name
    assert f"| `{name}` |" in page("docs/fusion.md")
