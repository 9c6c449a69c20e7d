"""Code in README and in the pages runs, or a comment above it says why not; commands that are shown exist.

A block of Python is run by itself, unless ``<!-- not run: reason -->`` stands on the line above. With
``<!-- run with: an artefact -->`` there, ``test_code_blocks_with_artefacts.py`` runs it. Sessions with ``>>>`` are run by the
tests of their pages. Lines that begin with ``collage`` must be understood by the command line.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from collage.cli._app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SESSIONS = {"devices.md", "fusion.md", "passes.md", "patterns.md"}

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?:not run: \w.*|run with: (\w.*)) -->\s*$")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    is_run: bool
    needs: str = ""


def blocks(page: Path, text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        indent, language, body = match.groups()
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        line = text.count("\n", 0, match.start()) + 1
        mark = MARK.search(text[: match.start()])
        needs = (mark[1] or "") if mark else ""
        found.append(Block(page, line, language, "\n".join(lines), mark is None, needs))
    return found


def commands(block: Block) -> list[str]:
    """Command lines of ``collage``: after a prompt in sessions, else at the beginning of a line."""
    if block.language in ("text", "python"):
        return []
    joined = re.sub(r"\\\n\s*", "", block.text)
    has_prompt = bool(re.search(r"^\$ ", joined, re.MULTILINE))
    prompt = r"^\$ " if has_prompt else r"^"
    return re.findall(rf"{prompt}(collage (?!:).*)$", joined, re.MULTILINE)


def why_refused(line: str) -> str | None:
    """The reason why the command line does not understand a line; None if it does. Nothing is executed."""
    words = shlex.split(re.split(r" [|<>&] ?", line)[0], comments=True)[1:]
    command: Any = typer.main.get_command(app)
    context, name = None, "collage"
    try:
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            context = command.make_context(name, [], parent=context, resilient_parsing=True)
            name = words.pop(0)
            if name not in command.commands:
                return f"no command {name!r}"
            command = command.commands[name]
        command.make_context(name, words, parent=context)
    except (typer.Exit, SystemExit):
        return None
    except Exception as error:
        return str(error) or type(error).__name__
    return None


ALL = [block for page in PAGES for block in blocks(page, page.read_text())]
PYTHON = [block for block in ALL if block.language == "python"]


def block_id(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


@pytest.mark.parametrize("block", PYTHON, ids=block_id)
def test_python_is_valid(block: Block) -> None:
    compile(block.text, block_id(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", [block for block in PYTHON if block.is_run], ids=block_id)
def test_python_runs(block: Block, tmp_path: Path) -> None:
    environment = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", block.text], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stderr}\nrun it, or write <!-- not run: reason --> above {block_id(block)}"


def test_sessions_are_in_pages_whose_tests_run_them() -> None:
    assert {block.page.name for block in ALL if block.language == "pycon"} == SESSIONS


@pytest.mark.parametrize("block", [block for block in ALL if commands(block)], ids=block_id)
def test_commands_are_understood(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    refused = {line: reason for line in commands(block) if (reason := why_refused(line))}
    assert not refused


@pytest.mark.parametrize(
    "line", ["collage compiel m.onnx", "collage db shwo", "collage run --no-such-option a", "collage run"]
)
def test_a_wrong_command_is_refused(line: str) -> None:
    assert why_refused(line)


def test_blocks_are_found_with_their_marks() -> None:
    text = "a\n\n<!-- not run: slow -->\n```python\nx = 1\n```\n\n  ```sh\n  collage run \\\n    a\n  ```\n"
    marked, plain = blocks(Path("p.md"), text)
    assert (marked.language, marked.text, marked.line, marked.is_run) == ("python", "x = 1", 4, False)
    assert plain.is_run and commands(plain) == ["collage run a"]
    assert commands(plain._replace(text="$ collage env\ncollage prints this")) == ["collage env"]
