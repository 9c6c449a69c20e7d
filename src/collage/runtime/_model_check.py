"""The check of the models in an artefact by a process of its own.

To read a model takes libraries of a hundred megabytes that running compiled kernels does not need. The check goes on while
the caller imports its toolchains.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from collage._errors import ArtefactError
from collage.runtime._manifest import check_models

__all__ = ["ModelCheck", "main"]

_READER = "onnx_ir"
_CHECKER = "collage.frontend"
"""Not in the distribution that only runs."""
_PROGRAM = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import main; main(sys.argv[1])"


class ModelCheck:
    """A check that has begun; ``finish`` or ``cancel`` ends it.

    Args:
        folder: The artefact's folder. All files of its manifest exist.
        is_here: Check in this process, which is going to read the models anyway.

    Raises:
        ArtefactError: The libraries that read models are not installed, or a system library that they need is missing.
    """

    def __init__(self, folder: Path, *, is_here: bool) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "O_NOFOLLOW"):
            raise ArtefactError(
                f"{folder}: models are checked, and built, on Linux and macOS only; "
                f"load(path, trusted=True) loads artefacts of your own that were compiled elsewhere"
            )
        if is_here or _READER in sys.modules:
            return
        if find_spec(_READER) is None or find_spec(_CHECKER) is None:
            missing = "onnx-ir" if find_spec(_READER) is None else "collage, the package with the compiler,"
            raise ArtefactError(
                f"{folder}: the models in it cannot be checked, since {missing} is not installed; "
                f"load(path, trusted=True) does without, for artefacts of your own"
            )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(folder.absolute()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:  # Some systems let no process start others. It is done here then.
            self._process = None

    def finish(self) -> None:
        """Wait for the result.

        Raises:
            ArtefactError: The first thing that is wrong with a model.
        """
        if (reason := self._answer()) is None:
            check_models(self._folder)
        elif reason:
            raise ArtefactError(reason)

    def cancel(self) -> None:
        """End the check, if it is going on."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _answer(self) -> str | None:
        """Return the fault as text, empty if there is none; None if the process did not return it."""
        process, self._process = self._process, None
        if process is None:
            return None
        told, _ = process.communicate()
        try:
            (answer,) = json.loads(told)
        except ValueError:  # ``sys.executable`` need not be Python, and processes are killed.
            return None
        return answer if isinstance(answer, str) else None


def main(folder: str) -> None:
    """Check the models of an artefact's folder; print the fault, or an empty text, in a JSON list."""
    try:
        check_models(Path(folder))
    except ArtefactError as error:
        print(json.dumps([str(error)]))
    else:
        print(json.dumps([""]))
