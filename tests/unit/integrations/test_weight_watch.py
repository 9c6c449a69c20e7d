from __future__ import annotations

import pytest
import torch

from collage.integrations import _weight_watch
from collage.integrations._weight_watch import WeightWatch

LARGE = 300_000


@pytest.mark.parametrize(
    "tensor", [torch.ones(3), torch.ones(LARGE), torch.ones(3, 4).t(), torch.ones(2, 1).expand(2, 5), torch.tensor(1.0)]
)
def test_a_change_of_all_of_a_tensor_is_seen_at_once(tensor: torch.Tensor) -> None:
    other = torch.zeros(5)
    watch = WeightWatch({4: other, 7: tensor})
    assert watch.changed_now() == []
    (tensor[:, 0] if 0 in tensor.stride() else tensor).data.add_(1)
    assert watch.changed_now() == [7]


def test_a_change_of_one_element_is_seen_before_every_piece_was_looked_at_twice() -> None:
    tensors = {0: torch.ones(10), 1: torch.ones(LARGE), 2: torch.ones(LARGE)}
    watch = WeightWatch(tensors)
    for element in (LARGE - 1, LARGE // 2, 1000):
        watch = WeightWatch(tensors)
        assert watch.pieces > 1 and not any(watch.changed_before() for _ in range(2 * watch.pieces))
        tensors[2].data[element] += 1
        found = [number for _ in range(watch.pieces) for number in watch.changed_before()]
        assert found == [2]


def test_tensors_without_elements_have_nothing_to_change() -> None:
    watch = WeightWatch({0: torch.ones(0, 3)})
    assert (watch.changed_now(), watch.changed_before(), watch.pieces) == ([], [], 0)


def test_small_tensors_are_compared_whole() -> None:
    tensor = torch.zeros(_weight_watch._HEAD_BYTES // 4)
    watch = WeightWatch({0: tensor})
    tensor.data[-1] = 1
    assert watch.changed_now() == [0] and watch.pieces == 0
