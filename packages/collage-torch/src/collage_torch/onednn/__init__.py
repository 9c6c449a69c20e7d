"""oneDNN through torch, on the processor."""

__all__: list[str] = []
