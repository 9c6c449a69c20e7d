"""The command line: ``collage compile``, ``run``, ``bench``, ``inspect``, ``targets``, ``env``.

Exit codes: 0 done (also when a budget ended first); 2 usage (a missing path, an unknown target, wrong inputs); 3 nothing
can run the model; 4 wrong answers; 5 no valid or no safe model or artefact.
"""

from collage.cli._app import main

__all__ = ["main"]
