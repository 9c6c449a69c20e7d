"""The model zoo: the models by which Collage judges itself, built on demand with seeded random weights.

`catalogue` lists them, each family has a file, `building` turns a family's module into ``model.onnx`` and
``inputs.npz``. Importing this package is cheap; PyTorch is imported when a model is built.
"""

from __future__ import annotations

from .building import Built, build
from .catalogue import CATALOGUE, Entry, find

__all__ = ["CATALOGUE", "Built", "Entry", "build", "find"]
