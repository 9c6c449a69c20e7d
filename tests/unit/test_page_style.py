"""Rules 2 to 4 of ``STYLE.md`` for documents: persons, "is no", conditions, and sentences of at most 25 words.

``python tests/unit/test_page_style.py`` prints the breaches.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = "docs/reference/cli.md"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.relative_to(ROOT).as_posix() != GENERATED
)
MOST_WORDS = 25
ALLOWED = {"STYLE.md": 4}
"""Breaches by page. ``STYLE.md`` shows breaches as examples."""

NOT_PROSE = re.compile(r"^ *```.*?^ *```|^    \S.*?$|<!--.*?-->", re.MULTILINE | re.DOTALL)
BREAKS = re.compile(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) | ?\|\s?|\n#+ |:\n|; ")
PERSON = re.compile(r"\b(who|whoever|whom|nobody|somebody)\b", re.IGNORECASE)
IS_NO = re.compile(r"(?<!there )\b(is|are) no (?!longer\b)", re.IGNORECASE)
WHERE = re.compile(r"[^\w#]*Where .*[^?]$")
"""A sentence that begins with a condition: rule 3 wants "If" or "When"."""


def sentences(text: str) -> list[str]:
    """Sentences of prose, list items and cells of tables. Items of a list after a colon count by themselves."""
    found = []
    for part in BREAKS.split(NOT_PROSE.sub("", text)):
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "x", " ".join(part.split()).removeprefix("* "))
        found += [sentence for sentence in re.split(r"(?<=[.!?:])[*_)]* +", plain) if sentence]
    return found


def breaches(text: str) -> list[str]:
    return [
        sentence
        for sentence in sentences(text)
        if len(sentence.split()) > MOST_WORDS
        or any(rule.search(sentence) for rule in (PERSON, IS_NO))
        or WHERE.match(sentence)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_pages_keep_the_rules_that_a_program_can_check(page: str) -> None:
    found = breaches((ROOT / page).read_text())
    told = f"{len(found)} breaches, {ALLOWED.get(page, 0)} allowed; see STYLE.md:\n" + "\n".join(found)
    assert len(found) <= ALLOWED.get(page, 0), told


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("word " * 24 + "end.", 0),
        ("word " * 25 + "end.", 1),
        ("word " * 20 + "end.\nThen " + "word " * 20 + "end.", 0),
        ("word " * 20 + "`a b c d e f g`.", 0),
        ("| " + "word " * 20 + "| " + "word " * 20 + "|", 0),
        ("```\n" + "word " * 30 + "\n```\n", 0),
        ("Ask somebody. Whoever asks knows nobody.", 2),
        ("A file is no model. There is no model. It is no longer there.", 1),
        ("Where it fails, it says so. * Where it fails, it says so. Where is it?", 2),
        ("# Where it lies\n\nIt lies where it was. Wherever it lies, it is read.", 0),
        ("In a list:\n\n* " + "word " * 20 + "\n* " + "word " * 20, 0),
    ],
)
def test_breaches_are_counted(text: str, count: int) -> None:
    assert len(breaches(text)) == count


if __name__ == "__main__":
    for name in PAGES:
        broken = breaches((ROOT / name).read_text())
        print(f"{name}: {len(broken)}", *broken, sep="\n  ")
