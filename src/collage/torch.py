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
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from collage._errors import CollageError


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
    if not given.is_module and not Path(given.script).is_file():
        parser.error(f"there is no file {given.script}")

    # Late: --help needs no PyTorch.
    from collage.integrations._torch_options import torch_settings
    from collage.integrations._torch_script import TopModules, print_summary

    options = {"wait": given.wait} | ({"targets": given.target} if given.target else {})
    try:
        torch_settings(options, None)
    except CollageError as error:
        parser.error(str(error))
    modules = TopModules(options)
    sys.argv = [given.script, *given.arguments]
    try:
        with modules.compiled():
            if given.is_module:
                sys.path.insert(0, "")
                runpy.run_module(given.script, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(Path(given.script).resolve().parent)
                runpy.run_path(given.script, run_name="__main__")
    finally:
        print_summary(modules, has_profile=given.profile)


if __name__ == "__main__":
    main()
