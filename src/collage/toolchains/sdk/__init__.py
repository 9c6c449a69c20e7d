"""Helpers that toolchains share, for those of third parties too: files of kernels, imports, threads, memory, coarser types.

Import from its modules. What most toolchains need of them, ``collage.toolchains`` offers too.
"""

__all__: list[str] = []
