"""Hooks of ``make docs``: links to the public repository, if there is one."""

from __future__ import annotations

from typing import Any

from collage._distribution import REPOSITORY


def on_config(config: Any) -> Any:
    """Name the repository at the top of each page."""
    config.repo_url = REPOSITORY or None
    return config
