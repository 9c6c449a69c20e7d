"""Files at URLs: an artefact there is one zip.

This package does not depend on the format of artefacts. ``collage.runtime`` verifies what it writes and what it reads.
"""

from collage.store._places import shown, url_of
from collage.store._transfer import check_writable, download, upload

__all__ = ["check_writable", "download", "shown", "upload", "url_of"]
