"""All hostile models, by what they attack."""

from __future__ import annotations

from tests.hostile import attacks_by_graphs, attacks_by_sizes, attacks_by_weights, attacks_on_files
from tests.hostile.corpus import CORPUS, LABORIOUS

__all__ = ["CORPUS", "LABORIOUS", "attacks_by_graphs", "attacks_by_sizes", "attacks_by_weights", "attacks_on_files"]
