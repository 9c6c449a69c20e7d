"""Write the install lines of pages, notebooks and examples as ``collage._distribution`` says: ``python tools/install_lines.py``.

A line names a checkout until the package is published, and its name from then on.
"""

from __future__ import annotations

import re
from pathlib import Path

from collage._distribution import IS_PUBLISHED, NAME, RUNTIME_NAME, install_command

ROOT = Path(__file__).parents[1]
LINE = re.compile(
    rf"pip install '(?:(?P<place>{NAME}|{RUNTIME_NAME}|\.(?:/packaging/runtime)?))(?:\[(?P<extras>[\w,]+)\])?'"
)


def places() -> list[Path]:
    """Return all files in which users read install lines. Those of contributors always name a checkout."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [*pages, *sorted(p for kind in ("*.md", "*.ipynb", "*.py") for p in (ROOT / "examples").rglob(kind))]


def rewritten(text: str, published: bool = IS_PUBLISHED) -> str:
    """Return a text with its install lines as they are before or after publishing."""

    def line(found: re.Match[str]) -> str:
        extras = found["extras"].split(",") if found["extras"] else []
        return install_command(*extras, runtime="runtime" in found["place"], published=published)

    return LINE.sub(line, text)


if __name__ == "__main__":
    for path in places():
        before = path.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))
