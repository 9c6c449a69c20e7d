"""Tables that scroll by themselves if they are wider than the page."""

from __future__ import annotations

from collections.abc import Sequence

from collage.page._markup import Markup, tag

__all__ = ["table"]

# Rows of a table whose numbers are labelled on a phone. Beyond that, labels would make the page large.
_MOST_LABELLED = 200


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    class_: str | None = None,
) -> Markup:
    """Return a table that scrolls by itself if it is wider than the page.

    Args:
        caption: Its caption.
        columns: Headings.
        rows: Cells; the first one of a row is its heading.
        numbers: Columns of numbers, which are aligned to the right.
        class_: Class of the table. With ``stack``, each row becomes a block on a narrow screen, and numbers get labels.
    """
    are_labelled = "stack" in (class_ or "").split() and len(rows) <= _MOST_LABELLED
    heads = [tag("th", name, scope="col", class_="number" if i in numbers else None) for i, name in enumerate(columns)]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [
                tag("td", cell, class_="number", data_label=columns[i] if are_labelled else None)
                if i in numbers
                else tag("td", cell)
                for i, cell in enumerate(row[1:], 1)
            ],
        )
        for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", heads)), tag("tbody", body), class_=class_)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
