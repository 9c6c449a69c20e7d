"""The names under which Collage is distributed: read from here by the build, the site, every page and every message.

To publish, set ``REPOSITORY`` and ``IS_PUBLISHED``, and run ``python tools/install_lines.py``.
"""

from __future__ import annotations

__all__ = ["IS_PUBLISHED", "NAME", "REPOSITORY", "RUNTIME_NAME", "WHERE", "install_command"]

# The import name and the command are `collage`. The name `collage` of the package index belongs to another project.
NAME = "collage-compiler"
RUNTIME_NAME = "collage-runtime"

# The address of the public repository, without a slash at its end. Empty until there is one.
REPOSITORY = ""

# False until the package index has NAME. Until then an install line names a checkout.
IS_PUBLISHED = False

# The packages that an extra brings and the index does not have yet, by extra: they are installed from their folders.
_FOLDERS = {
    "torch": ("./packages/collage-torch", "./packages/collage-extern"),
    "iree": ("./packages/collage-iree",),
    "ncnn": ("./packages/collage-ncnn",),
    "cuda": ("./packages/collage-torch", "./packages/collage-cuda"),
}

WHERE = "" if IS_PUBLISHED else " in a checkout of Collage"
"""The end of a sentence with an install command: the folder in which it works."""


def install_command(*extras: str, runtime: bool = False, again: bool = False, published: bool = IS_PUBLISHED) -> str:
    """Return the command that installs Collage with some extras.

    Args:
        extras: Their names, such as ``cpu``.
        runtime: Install the distribution that only loads and runs.
        again: Replace a damaged installation.
        published: Take it from the package index, not from a checkout.
    """
    places = (RUNTIME_NAME, "./packaging/runtime") if runtime else (NAME, ".")
    folders = [] if published else [folder for extra in extras for folder in _FOLDERS.get(extra, ())]
    named = [extra for extra in extras if published or extra not in _FOLDERS]
    words = f"{places[not published]}[{','.join(named)}]" if named else places[not published]
    return " ".join([f"pip install {'--force-reinstall ' if again else ''}'{words}'", *folders])
