"""Facts about this computer: its processors and memory, the limits of control groups, folders for scratch files."""

__all__: list[str] = []
