"""The store: files at URLs, and a content-addressed folder of artefacts, here or on an object store.

This package does not depend on the format of artefacts. ``collage.runtime`` verifies what it writes and what it reads.
"""

from collage.store._objects import Collected, Problem, Store, StoredName, default_root
from collage.store._places import shown, url_of
from collage.store._transfer import check_writable, download, stored_name, upload

__all__ = [
    "Collected",
    "Problem",
    "Store",
    "StoredName",
    "check_writable",
    "default_root",
    "download",
    "shown",
    "stored_name",
    "upload",
    "url_of",
]
