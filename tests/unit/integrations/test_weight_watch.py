from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from collage.integrations import _weight_watch
from collage.integrations._weight_watch import FrozenWeights, WeightWatch

LARGE = 300_000


def arguments_of(tensors: dict[int, torch.Tensor]) -> list[Any]:
    return [tensors.get(i, i) for i in range(max(tensors) + 1)]


def seen(watch: WeightWatch, arguments: list[Any]) -> tuple[list[int], bool]:
    return ([], False) if watch.are_same(arguments) else watch.changed(arguments)


@pytest.mark.parametrize(
    "tensor", [torch.ones(3), torch.ones(LARGE), torch.ones(3, 4).t(), torch.ones(2, 1).expand(2, 5), torch.tensor(1.0)]
)
def test_a_change_of_all_of_a_tensor_is_seen_at_once(tensor: torch.Tensor) -> None:
    arguments = arguments_of(tensors := {4: torch.zeros(5), 7: tensor})
    watch = WeightWatch(tensors)
    assert seen(watch, arguments) == ([], False)
    (tensor[:, 0] if 0 in tensor.stride() else tensor).data.add_(1)
    assert seen(watch, arguments) == ([7], False)


CHANGES: dict[str, Callable[[torch.nn.Parameter], Any]] = {
    "in place": lambda p: p.add_(1),
    "data in place": lambda p: p.data.mul_(2),
    "other data": lambda p: setattr(p, "data", torch.full_like(p, 3)),
    "equal data elsewhere": lambda p: setattr(p, "data", p.data.clone()),
    "NumPy": lambda p: p.detach().numpy().fill(5),
    "DLPack": lambda p: np.from_dlpack(p.detach()).fill(5),
    "copy": lambda p: p.copy_(torch.zeros_like(p)),
    "an index": lambda p: p.__setitem__(-1, 7.0),
    "set_": lambda p: p.set_(torch.zeros_like(p)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_ways_to_change_a_weight_are_seen_at_once(change: str) -> None:
    weights = {i: torch.nn.Parameter(torch.ones(7, 11)) for i in range(100)}
    arguments, watch = arguments_of(weights), WeightWatch(weights)
    with torch.no_grad():
        assert all(watch.are_same(arguments) for _ in range(2 * watch.pieces))
        CHANGES[change](weights[42])
        assert seen(watch, arguments) == ([42], False)


def test_another_tensor_in_a_place_is_seen_at_once_even_if_it_is_equal() -> None:
    weights = {i: torch.ones(3) for i in range(5)}
    watch = WeightWatch(weights)
    assert seen(watch, arguments_of({**weights, 2: torch.ones(3)})) == ([2], False)
    assert watch.gone() == []
    arguments = arguments_of(weights)
    weights[3] = arguments[3] = torch.ones(
        3
    )  # It may have the identity and the memory of the one that is deleted here.
    gc.collect()
    assert watch.gone() == [3]
    assert seen(watch, arguments) == ([3], False)


def test_a_change_of_one_element_is_seen_before_every_piece_was_looked_at_twice() -> None:
    tensors = {0: torch.ones(10), 1: torch.ones(LARGE), 2: torch.ones(LARGE)}
    arguments = arguments_of(tensors)
    for element in (LARGE - 1, LARGE // 2, 1000):
        watch = WeightWatch(tensors)
        assert watch.pieces > 1 and all(watch.are_same(arguments) for _ in range(2 * watch.pieces))
        tensors[2].data[element] += 1
        looks = [watch.are_same(arguments) for _ in range(watch.pieces)]
        assert not all(looks) and watch.changed(arguments) == ([2], True)
        assert not watch.are_same(arguments)  # Until the graph is compiled again.


def test_tensors_without_elements_have_nothing_to_change() -> None:
    tensors = {0: torch.ones(0, 3)}
    watch = WeightWatch(tensors)
    assert watch.are_same(arguments_of(tensors)) and watch.pieces == 0
    assert WeightWatch({}).are_same([1, 2])


def test_small_tensors_are_compared_whole() -> None:
    tensors = {0: torch.zeros(_weight_watch._HEAD_BYTES // 4)}
    watch = WeightWatch(tensors)
    tensors[0].data[-1] = 1
    assert seen(watch, arguments_of(tensors)) == ([0], False) and watch.pieces == 0


def test_large_models_are_looked_at_in_larger_pieces() -> None:
    small, large = WeightWatch({0: torch.zeros(20_000)}), WeightWatch({0: torch.zeros(40_000_000)})
    assert small.pieces == -(-80_000 // _weight_watch._LEAST_PIECE_BYTES)
    assert large.pieces == -(-160_000_000 // _weight_watch._MOST_PIECE_BYTES)


@pytest.mark.parametrize("shape", [(7, 11), (1,), (0,), (2, 3)])
def test_frozen_weights_are_compared_by_identity(shape: tuple[int, ...]) -> None:
    weights = {i: torch.nn.Parameter(torch.full(shape, 2.0)) for i in (1, 3, 4)}
    arguments, frozen = arguments_of(weights), FrozenWeights(weights)
    weights[3].data.add_(1)
    assert frozen.are_same(arguments)
    arguments[3] = torch.zeros(7, 11)
    assert not frozen.are_same(arguments)
    assert frozen.changed(arguments) == ([3], False)
    assert FrozenWeights({}).are_same([1])
