"""Files of a workspace, pinned: another artefact may take the place of one that is in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collage._errors import ArtefactError

__all__ = ["PinnedFiles"]


class PinnedFiles:
    """The files of a workspace as they are now.

    Kernels are also loaded long after an artefact was verified: for further contexts, in forks, and where the host stands in.

    Args:
        folder: The workspace.
        names: The files.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._found = {name: _identity(folder / name) for name in names}

    def check(self) -> None:
        """Check that none of the files was replaced. Kernels are loaded first and then checked.

        Raises:
            ArtefactError: One was. A file that is missing is left to its readers.
        """
        for name, found in self._found.items():
            if _identity(self._folder / name) not in (found, None):
                raise ArtefactError(f"{self._folder / name} was replaced after it was loaded; load the artefact again")


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
