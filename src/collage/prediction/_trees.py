"""Regression trees as data, and their short evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.system.codec import Count

__all__ = ["Tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    """A regression tree; node 0 is the root, and children come after their parents.

    Attributes:
        feature: The feature that each node compares; of a leaf it has no meaning.
        threshold: The largest value of the feature with which the left child is next.
        left: The left child of each node; 0 marks a leaf.
        right: The right child of each node.
        value: The value of each leaf.
    """

    feature: tuple[Count, ...]
    threshold: tuple[float, ...]
    left: tuple[Count, ...]
    right: tuple[Count, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse a tree in which a walk from the root may not end.

        Raises:
            ValueError: There is no node, a column is too short, or a child does not come after its parent.
        """
        count = len(self.feature)
        if not count or any(len(column) != count for column in (self.threshold, self.left, self.right, self.value)):
            raise ValueError("a tree has columns of different lengths, or no node")
        for node, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            if left and not (node < left < count and node < right < count):
                raise ValueError("a child in a tree does not come after its parent")

    def evaluate(self, features: Sequence[float]) -> float:
        """Return the value of the leaf that these features lead to.

        Raises:
            IndexError: The tree compares a feature that is not there.
        """
        node = 0
        while self.left[node]:
            # In float32, as the library compares that grew the tree.
            is_left = float(np.float32(features[self.feature[node]])) <= self.threshold[node]
            node = self.left[node] if is_left else self.right[node]
        return self.value[node]
