"""The report page: a compilation as one HTML file, and as files for other viewers."""

from collage.page._contents import PageContents, read_contents
from collage.page._dot import as_dot
from collage.page._netron import as_netron_attachment
from collage.page._page import as_html, as_svg
from collage.page._redact import redacted
from collage.page._trace import as_trace

__all__ = [
    "PageContents",
    "as_dot",
    "as_html",
    "as_netron_attachment",
    "as_svg",
    "as_trace",
    "read_contents",
    "redacted",
]
