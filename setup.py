"""Fill the fields of the package's metadata that depend on the public repository; all others are in pyproject.toml."""

import re
import runpy
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
REPOSITORY = runpy.run_path(str(ROOT / "src" / "collage" / "_distribution.py"))["REPOSITORY"]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def readable_anywhere(text: str, repository: str) -> str:
    """Return a README whose links work outside a checkout: absolute ones, or their texts if there is no repository."""

    def link(found: re.Match[str]) -> str:
        is_picture, shown, path = found.groups()
        if not repository:
            return "" if is_picture else shown
        return f"{is_picture}[{shown}]({repository}/{'raw' if is_picture else 'blob'}/main/{path})"

    return LINK.sub(link, text)


if __name__ == "__main__":
    setup(
        long_description=readable_anywhere((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY),
        long_description_content_type="text/markdown",
        project_urls={
            "Source": REPOSITORY,
            "Issues": f"{REPOSITORY}/issues",
            "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        }
        if REPOSITORY
        else {},
    )
