from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from collage.page._markup import Markup, clean, join, tag


class Reader(HTMLParser):
    """Collects elements, attributes and texts as a browser would."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_texts_stay_texts_whatever_is_in_them(content: str, attribute: str) -> None:
    read = Reader(tag("p", content, title=attribute))
    assert read.tags == ["p"]
    assert read.attributes == [("title", clean(attribute))]
    assert read.text == clean(content)


@given(st.text())
def test_a_clean_text_can_be_printed_and_is_cleaned_once(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


def test_marks_of_direction_and_control_characters_are_replaced() -> None:
    assert clean("a\u202eb\x00c\nd") == "a�b�c d"


def test_long_texts_are_cut() -> None:
    assert clean("x" * 50, 10) == "x" * 9 + "…"


def test_markup_is_not_escaped_twice() -> None:
    assert tag("p", tag("b", "<"), "&") == "<p><b>&lt;</b>&amp;</p>"
    assert join([Markup("<i>"), "<"], ">") == "<i>&lt;&gt;"


def test_attributes_are_left_out_or_have_no_value() -> None:
    assert (
        tag("td", "x", class_=None, hidden=True, open=False, data_from="1", x=1.5)
        == '<td hidden data-from="1" x="1.5">x</td>'
    )
    assert tag("input", id="a") == '<input id="a">'
