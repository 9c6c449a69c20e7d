"""Helpers that several toolchains share: files of kernels, threads, memory, names in profiles, devices.

``collage.toolchains`` offers the parts of it that third parties may use.
"""

__all__: list[str] = []
