"""Functions of libraries, called from modules that TVM compiles."""

__all__: list[str] = []
