"""Folders of the user's own, and users that have none."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtime.conftest import small_model

from collage._errors import UsageError
from collage.database.database import default_url
from collage.inspection import describe_environment
from collage.integrations import InferenceSession
from collage.integrations._torch_options import torch_settings
from collage.system.user_folders import cache_folder


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a number and no name, as in a container that is started with ``--user 12345``."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "COLLAGE_DB", "COLLAGE_STORE"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.parametrize(
    ("folder", "variable", "usual"),
    [(cache_folder, "XDG_CACHE_HOME", ".cache")],
)
def test_the_variable_counts_more_than_the_home(
    folder: Callable[[str], Path], variable: str, usual: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    assert folder("no matter") == tmp_path / usual / "collage"
    monkeypatch.setenv(variable, str(tmp_path / "told"))
    assert folder("no matter") == tmp_path / "told" / "collage"


@pytest.mark.parametrize(
    ("ask", "remedy"),
    [
        (default_url, "COLLAGE_DB"),
        (lambda: InferenceSession(small_model().SerializeToString()), "cache_dir"),
    ],
)
def test_without_a_home_the_message_names_the_option(ask: Callable[[], Any], remedy: str, homeless: None) -> None:
    with pytest.raises(UsageError, match=f"no home folder: set HOME or XDG_.*{remedy}"):
        ask()


def test_without_a_home_the_rest_goes_on(homeless: None) -> None:
    assert "no home folder" in describe_environment()["settings"]["database"]
    assert torch_settings({}, None)["cache_dir"] is None
    assert os.environ.get("HOME") is None
