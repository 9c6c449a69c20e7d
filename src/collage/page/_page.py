"""A whole page: sections, style and script in one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from collage.page._comparison import comparison_section, front_section, lengths_section
from collage.page._contents import PageContents
from collage.page._facts import machine_section, numerics_section, privacy_section, search_section
from collage.page._kernels import model_section
from collage.page._markup import Markup, join, tag
from collage.page._picture import picture
from collage.page._toolchains import toolchains_section
from collage.page._verdict import headline_of, verdict_section
from collage.system.texts import counted

__all__ = ["as_html", "as_svg"]

_LARGE = 500
"""Kernels from which sections are laid out only when they come into view."""

_HAS_SCRIPT = 'document.documentElement.classList.add("js");'
"""Runs before the body is drawn, so that details of thousands of kernels are not laid out first and hidden later."""


def as_html(contents: PageContents) -> str:
    """Return a page as HTML.

    Its security policy allows the style and the script that are part of this package, by their digests, and pictures that the
    script draws. Everything else is refused.
    """
    style, script = _resource("page.css") + _resource("picture.css"), _resource("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
        f"script-src '{_digest(_HAS_SCRIPT)}' '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    report = contents.report
    operators = sum(len(kernel.operators) for kernel in contents.kernels)
    version = f" by Collage {report.machine.collage}" if report.machine.collage else " by Collage"
    summary = f"{headline_of(report)}: {contents.title} on {report.machine.cpu or 'an unknown processor'}"
    name = f"{contents.artefact}, " if contents.artefact else ""
    title = f"{contents.title}: report of Collage"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("meta", name="description", content=summary),
        tag("meta", property="og:title", content=title),
        tag("meta", property="og:description", content=summary),
        tag("style", Markup(style)),
        tag("script", Markup(_HAS_SCRIPT)),
    )
    sections = (
        ("model", "Model", model_section(contents)),
        ("comparison", "Comparison", comparison_section(contents)),
        ("lengths", "Plans for lengths", lengths_section(contents)),
        ("front", "Time against error", front_section(contents)),
        ("toolchains", "Toolchains", toolchains_section(contents)),
        ("numerics", "Numerics", numerics_section(contents)),
        ("search", "Search", search_section(contents)),
        ("machine", "Machine", machine_section(contents)),
        ("privacy", "What this page holds", privacy_section(contents)),
    )
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, body in sections if body]
    body = tag(
        "body",
        tag(
            "header",
            tag(
                "p",
                f"{name}{counted(operators, 'operator')}, compiled{version}",
                join(" on ", tag("span", report.date, class_="number")) if report.date else "",
                class_="kicker",
            ),
            tag("h1", contents.title),
            tag("nav", tag("ul", links), aria_label="Sections"),
        ),
        tag("main", verdict_section(contents), [section for _, _, section in sections]),
        tag("script", Markup(script)),
        class_="large" if len(contents.kernels) > _LARGE else None,
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def as_svg(contents: PageContents) -> str:
    """Return the picture of the partitioned model as an SVG file, with its style."""
    drawn = picture(contents, has_links=False)
    opening, _, rest = drawn.partition(">")
    style = tag("style", Markup(_resource("picture.css")))
    return f"{join(Markup(opening), Markup('>'), style, Markup(rest))}\n"


def _resource(name: str) -> str:
    return resources.files("collage.page").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
