"""Functions of libraries, called from modules that TVM compiles."""

from collage_extern.functions import BoundFunction, ExternFunction, ExternLibrary, extern_libraries

__all__ = ["BoundFunction", "ExternFunction", "ExternLibrary", "extern_libraries"]
