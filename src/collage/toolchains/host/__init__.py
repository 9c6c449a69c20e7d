"""The host: kernels of one operator each, for what no other toolchain takes."""

__all__: list[str] = []
