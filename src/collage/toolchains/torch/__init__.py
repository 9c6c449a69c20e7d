"""Toolchains that compute with torch, and what they share: operators, threads, groups of operators."""

__all__: list[str] = []
