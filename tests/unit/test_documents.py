"""Documents lead to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PATHS_ARE_CHECKED = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/security.md",
    "docs/stability.md",
    "STYLE.md",
]

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#([^)]*))?\)")
PATH = re.compile(r"`((?:src|tests|docs)/[\w./-]+|[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|toml|txt|yml)))`")
PLACES = [ROOT, ROOT / "src" / "collage", ROOT / "tests" / "unit"]


def missing_paths(text: str) -> list[str]:
    """Paths in backticks that are neither in the repository, nor in the package, nor beside one named before them."""
    missing, places = [], list(PLACES)
    for path in PATH.findall(text):
        found = [place / path for place in places if (place / path).exists()]
        if found:
            places.append(found[0].parent)
        else:
            missing.append(path)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path
        assert target.exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


def shallow_blocks(text: str) -> list[str]:
    """Lines that the site would put elsewhere: blocks of list items that are indented by less than four spaces, and items
    without an empty line between them and a block.
    """
    found, fence, before = [], False, ""
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        starts_block = is_fence or line.lstrip().startswith("|") or not before.strip()
        is_stuck = re.match(r"(\d+\.|[*-]) ", line) and re.match(r" {4}[^\s*-]", before)
        if not fence and (is_stuck or (starts_block and re.match(r" {1,3}\S", line))):
            found.append(line)
        fence, before = fence != is_fence, line
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_in_lists_stay_in_them_on_the_site(page: Path) -> None:
    assert shallow_blocks(page.read_text()) == []


def test_a_shallow_block_is_found() -> None:
    assert shallow_blocks("1. A\n   b\n\n    c\n    | t |\n    ```\n  code\n    ```\n") == []
    shallow = ["   c", "   | t |", "   ```"]
    assert shallow_blocks(f"1. A\n\n{shallow[0]}\n{shallow[1]}\n{shallow[2]}\n") == shallow
    assert shallow_blocks("1. A\n\n    c\n2. B\n") == ["2. B"]
    assert shallow_blocks("1. A\n\n    c\n\n2. B\n") == []


@pytest.mark.parametrize("page", PATHS_ARE_CHECKED)
def test_paths_that_are_named_exist(page: str) -> None:
    assert not missing_paths((ROOT / page).read_text())


def test_a_missing_path_is_found() -> None:
    assert missing_paths("`pyproject.toml`, `frontend/_read.py` and `_budget.py` beside it, `make test`, `docs/`") == []
    gone = ["frontend/_gone.py", "_budget.py", "gone/", "tests/gone"]
    assert missing_paths(", ".join(f"`{path}`" for path in gone)) == gone
