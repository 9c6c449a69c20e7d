"""The line of a notebook. IPython itself is not among the packages of the tests; the interface used is its documented one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from collage.system.progress import is_notebook, shown


class Cell:
    def __init__(self) -> None:
        self.texts = list[str]()

    def update(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell, ipython, display = Cell(), ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.Pretty, display.display = str, lambda _, display_id: cell  # type: ignore[attr-defined]
    for name, module in {"IPython": ipython, "IPython.display": display, "ipykernel": ModuleType("ipykernel")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return cell


def test_a_notebook_shows_one_line_that_changes(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_notebook()
    with shown(str.upper) as update:
        update("first")
        update("second")
    assert [text.split(" s  ")[1] for text in cell.texts] == ["FIRST", "SECOND"]
    assert capsys.readouterr() == ("", "")


def test_an_interactive_shell_is_no_notebook(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert not is_notebook()
    monkeypatch.delitem(sys.modules, "ipykernel")
    assert not is_notebook()
