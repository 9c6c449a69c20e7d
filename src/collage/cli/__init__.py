"""The command line: ``collage compile``, ``run``, ``bench``, ``inspect``, ``targets``, ``env``.

Exit codes: 0 done (also when a budget ended first); 2 usage (a missing path, an unknown target or option, wrong inputs); 3 no
target can run any of the model; 4 wrong answers; 5 no valid, no safe or no runnable model, or no such artefact.
"""

from collage.cli._app import main

__all__ = ["main"]
