"""The reference of the command line is that of the code."""

from __future__ import annotations

from tools.cli_reference import PAGE, _described, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python tools/cli_reference.py"


def test_every_command_has_a_section_and_its_options() -> None:
    text = page()
    for words in ("compile", "run", "bench", "db merge", "toolchain check"):
        assert f"## `collage {words}`" in text
    assert "| `--threads N` |" in text
    bench = text.partition("## `collage bench`")[2].partition("\n## ")[0]
    assert "`--dim NAME=V[:W,V:W...]`" in bench and "as for `collage compile`" in bench
    assert "Representative length" not in bench
    assert "--measure-budget" not in text, "options for experts are in the help only"


def test_examples_are_left_to_the_help() -> None:
    text = "Do it.\n\nOr do not. Examples:\n\n  collage a\n\n  collage b\n"
    assert _described(text) == "Do it.\n\nOr do not.\n"
