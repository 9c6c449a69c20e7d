"""IREE, an MLIR compiler for the processor."""

__all__: list[str] = []
