"""Facts about this computer: its processors and memory, what control groups leave of them, folders for scratch files."""

__all__: list[str] = []
