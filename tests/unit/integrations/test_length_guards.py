"""Conditions on lengths are what PyTorch's own function asserts."""

from __future__ import annotations

import itertools

import pytest
import torch

from collage.integrations._length_guards import guards_of, hold


class Halves(torch.nn.Module):
    def forward(self, arguments: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = arguments
        if x.shape[0] % 4 == 0 and x.shape[1] != 7:
            x = x[: x.shape[0] // 2]
        return torch.cat([x, y.reshape(-1, x.shape[1])])


def test_they_hold_where_the_function_of_pytorch_passes() -> None:
    any_length = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        Halves(), ((torch.ones(8, 6), torch.ones(3, 12)),), dynamic_shapes=((any_length, any_length),)
    )
    guards, function = guards_of(program), program.module()._guards_fn
    answers = set()
    for lengths in itertools.product((4, 5, 8, 12), (6, 7), (2, 3, 4), (6, 12, 14)):
        arguments = [torch.empty(lengths[:2]), torch.empty(lengths[2:])]
        try:
            function(*arguments)
        except AssertionError:
            assert not hold(guards, arguments), lengths
            answers.add(False)
        else:
            assert hold(guards, arguments), lengths
            answers.add(True)
    assert answers == {True, False}


@pytest.mark.parametrize(
    "text",
    ["x[0].size()[0].bit_length()", "__import__('os')", "x[0].size()[7] > 0", "1 // 0", "2 **", "open('x')", "'a'"],
)
def test_unknown_forms_hold_for_nothing(text: str) -> None:
    assert not hold([text], [torch.ones(3)])
    assert hold([], [torch.ones(3)])
