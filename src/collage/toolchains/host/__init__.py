"""The host: kernels of one operator each, for operators that no other toolchain takes."""

__all__: list[str] = []
