"""Run a script of PyTorch with its top modules compiled.

::

    python -m collage.torch [--profile] [--wait] [-t TARGET] script.py [arguments]
    python -m collage.torch [--profile] [--wait] [-t TARGET] -m package.module [arguments]

A module that the script calls in evaluation mode under ``torch.inference_mode()`` or ``torch.no_grad()`` is compiled, as
``torch.compile(module, backend="collage")`` has it. PyTorch runs it until then, unless ``--wait`` is given. ``--profile``
prints how much of the time was spent in compiled graphs, in graphs left to PyTorch, and outside of any module.
"""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from collage._errors import CollageError, UsageError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script."""
    parser = argparse.ArgumentParser(
        prog="python -m collage.torch", description="Run a script of PyTorch with its top modules compiled."
    )
    parser.add_argument("--profile", action="store_true", help="print where the time went")
    parser.add_argument("--wait", action="store_true", help="wait until a module is compiled at its first call")
    parser.add_argument("-t", "--target", action="append", metavar="TARGET", help="a target; may be repeated")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)

    from collage.integrations._torch_options import torch_settings
    from collage.integrations._torch_script import TopModules, print_summary  # Late: --help needs no PyTorch.

    options = {"wait": given.wait} | ({"targets": given.target} if given.target else {})
    try:
        if given.target:
            torch_settings(options, None)
        if not _is_there(given.script, given.is_module):
            raise UsageError(f"{given.script}: there is no such {'module' if given.is_module else 'script'}")
    except CollageError as error:
        parser.error(str(error))
    modules = TopModules(options)
    sys.argv = [given.script, *given.arguments]
    try:
        with modules.compiled():
            if given.is_module:
                runpy.run_module(given.script, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(Path(given.script).resolve().parent)
                runpy.run_path(given.script, run_name="__main__")
    finally:
        print_summary(modules, has_profile=given.profile)


def _is_there(script: str, is_module: bool) -> bool:
    """Return True if there is such a script. Python's ``-m`` lets modules be found in the current folder, too."""
    if not is_module:
        return Path(script).exists()
    with suppress(ImportError, ValueError):  # A package above it is missing, or has no such name.
        return importlib.util.find_spec(script) is not None
    return False


if __name__ == "__main__":
    main()
