"""Places that are not files of this machine: URLs, and the file systems behind them.

``fsspec`` knows the file systems. It is imported late, since a plain installation has no need of it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from collage._distribution import WHERE, install_command
from collage._errors import CollageError, UsageError

__all__ = ["FileSystem", "shown", "telling", "url_of"]

_DRAFT = ".draft"
"""End of the names of files that are being written. A killed process leaves one behind."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_LOGIN = re.compile(r"(//)[^/\s]*(@)")
# It may sign the URL, or hold a token.
_QUERY = re.compile(r"(://[^\s?]*\?)[^\s'\"]+()")
_LOCAL = ("file", "local")

# An object there is seen whole or not at all, so no draft is needed. Moving one would copy it.
_WHOLE_OBJECTS = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"))


def url_of(place: str | Path) -> str | None:
    """Return a place as a URL, None if it is a path of this machine.

    A ``Path`` of a URL has lost a slash, which is put back. A file of this machine with such a name comes first.
    """
    match = _URL.fullmatch(str(place))
    if match is None or os.path.lexists(place):
        return None
    scheme, rest = match[1].lower(), match[2]
    return f"file:///{rest}" if scheme in _LOCAL else f"{scheme}://{rest}"


def shown(place: str | Path) -> str:
    """Return a place for messages: a URL with all of its slashes, and without a name, a password or a query."""
    url = url_of(place)
    return str(place) if url is None else _without_secrets(url)


@contextmanager
def telling(action: str, url: str) -> Iterator[None]:
    """Turn an error of the file system into one sentence for the user.

    Raises:
        UsageError: The action failed.
    """
    try:
        yield
    except CollageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{shown(url)} does not exist") from error
    except Exception as error:  # Each file system has exceptions of its own.
        strerror = error.strerror if isinstance(error, OSError) else None
        # Clients name the URL as it was given.
        reason = _without_secrets(" ".join(str(strerror or error).split()))[:300] or type(error).__name__
        raise UsageError(f"cannot {action} {shown(url)}: {reason}") from error


def _without_secrets(text: str) -> str:
    for secret in (_LOGIN, _QUERY):
        text = secret.sub(r"\1***\2", text)
    return text


class FileSystem:
    """The file system of a URL, and the path of the URL on it.

    Attributes:
        url: The URL.
        path: The path.

    Raises:
        UsageError: The scheme is not known, or a package is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise UsageError(f"{shown(url)} needs the package fsspec: {install_command('store')}{WHERE}") from error
        with telling("open", url):
            fs, path = url_to_fs(url)
        self._fs: Any = fs
        self.path = str(path)
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
        self._is_whole = not _WHOLE_OBJECTS.isdisjoint(protocols)
        self._is_local = not frozenset(_LOCAL).isdisjoint(protocols)

    def size(self, path: str) -> int | None:
        """Return the size of a file, None if there is none."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.info(path)
        except FileNotFoundError:
            return None
        return int(found["size"] or 0) if found.get("type") == "file" else None

    def open(self, path: str) -> Any:
        """Open a file for reading its bytes."""
        return self._fs.open(path, "rb")

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def write(self, source: Path, path: str) -> None:
        """Write a file so that readers see either the whole new file or the old one."""
        if self._is_whole:
            self._fs.put_file(str(source), path)
            return
        parent, _, name = path.rpartition("/")
        self._fs.makedirs(parent, exist_ok=True)
        draft = f"{parent}/.{name[:100]}.{secrets.token_hex(8)}{_DRAFT}"
        try:
            self._fs.put_file(str(source), draft)
            if self._is_local:
                _flush(Path(draft))
                Path(draft).replace(path)
            else:
                self._fs.mv(draft, path)
        finally:
            self.remove(draft)


def _flush(file: Path) -> None:
    with file.open("r+b") as written:
        os.fsync(written.fileno())
