"""The token that Ray is told to send, and what is said of it when a cluster does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.fleet import cluster
from collage.fleet.cluster import _token_hint, token_environment

SENT = {"RAY_AUTH_MODE": "token"}
HEAD = "ray://head:10001"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def give_file(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0" * 32)


def test_a_token_is_sent_wherever_it_comes_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_environment(HEAD) == {}
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        assert token_environment(HEAD) == {}
        monkeypatch.setenv(name, "x")
        assert token_environment(HEAD) == SENT
        monkeypatch.delenv(name)
    give_file(home)
    assert token_environment(HEAD) == SENT


@pytest.mark.parametrize(("is_open", "mode"), [(True, "disabled"), (False, "token")])
def test_a_cluster_that_answers_without_a_token_gets_none(
    is_open: bool, mode: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller inside of it that sends a token would take no answer from its nodes."""
    asked: list[str] = []
    monkeypatch.setattr(cluster, "_is_open", lambda address: asked.append(address) or is_open)
    assert token_environment("head:6379") == {} and not asked
    give_file(home)
    assert token_environment("head:6379") == {"RAY_AUTH_MODE": mode}
    assert token_environment("auto") == {"RAY_AUTH_MODE": mode}
    assert asked == ["head:6379", "auto"]


def test_what_the_user_chose_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_file(home)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert token_environment(HEAD) == {}


def test_a_cluster_that_does_not_answer_may_want_a_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ConnectionError("ray client connection timeout")
    assert "no token here" in _token_hint("ray://head:10001", lost)
    give_file(home)
    assert "~/.ray/auth_token was sent" in _token_hint("head:6379", lost)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    assert "RAY_AUTH_TOKEN was sent" in _token_hint("head:6379", lost)
    assert _token_hint("local", lost) == ""
    assert _token_hint("head:6379", ConnectionAbortedError("the server failed")) == ""
