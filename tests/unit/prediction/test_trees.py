"""Trees as data: the short evaluator agrees with the library that grew them, and walks end."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from collage.prediction._trees import Tree


@pytest.mark.parametrize("seed", range(5))
def test_the_evaluator_agrees_with_the_library(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(200, 4)), random.normal(size=200)
    grown = DecisionTreeRegressor(max_depth=5, random_state=0).fit(x, y).tree_
    tree = Tree(
        tuple(max(0, int(each)) for each in grown.feature),
        tuple(map(float, grown.threshold)),
        tuple(max(0, int(each)) for each in grown.children_left),
        tuple(max(0, int(each)) for each in grown.children_right),
        tuple(map(float, grown.value[:, 0, 0])),
    )
    expected = grown.predict(x.astype(np.float32))[:, 0]
    assert [tree.evaluate(row) for row in x] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("left", "right"), [((0, 0), (0, 0, 0)), ((1, 1, 0), (2, 2, 0)), ((1, 0, 0), (3, 0, 0)), ((2, 0, 0), (0, 0, 0))]
)
def test_a_tree_whose_walk_may_not_end_is_refused(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="tree"):
        Tree((0, 0, 0), (0.0, 0.0, 0.0), left, right, (0.0, 0.0, 0.0))
