"""Toolchains that compute with torch, and their shared code: operators, threads, groups of operators."""

__all__: list[str] = []
