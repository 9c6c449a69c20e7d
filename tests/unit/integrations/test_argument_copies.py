"""Copies of arguments lie in memory as the arguments do, here and in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from collage._errors import ModelError
from collage.integrations._argument_copies import ArgumentCopies


def arguments() -> list[object]:
    base = torch.arange(24.0).reshape(4, 6)
    with torch.inference_mode():
        made_there = torch.ones(3)
    return [
        *(base[:2], base[1:].t(), 7, torch.zeros(0, 3), torch.tensor(True), torch.ones(2, 1).expand(2, 5), made_there),
        *(torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), torch.nn.Parameter(torch.ones(2), False)),
        torch.tensor([1 + 2j]),
    ]


@pytest.mark.parametrize("is_written", [False, True])
def test_they_have_values_layouts_and_memory_in_common(tmp_path: Path, is_written: bool) -> None:
    given = arguments()
    copies = ArgumentCopies(given)
    copies.write(tmp_path)
    made = ArgumentCopies.read(tmp_path) if is_written else copies.made()
    for ours, theirs in zip(made, given, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert torch.equal(ours, theirs)
        assert type(ours) is type(theirs)
        for name in ("dtype", "requires_grad", "shape"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (ours.stride(), ours.is_inference()) == (theirs.stride(), theirs.is_inference())
    made[0][1, 0] = 100.0
    assert made[1][0, 0] == 100.0
    assert given[1][0, 0] == 6.0  # type: ignore[index]


def test_inputs_are_copied_at_once_and_parameters_late() -> None:
    x, weight = torch.zeros(3), torch.nn.Parameter(torch.zeros(3))
    copies = ArgumentCopies([x, weight])
    with torch.no_grad():
        x.add_(1)
        weight.add_(1)
    assert [float(one.detach().sum()) for one in copies.made()] == [0.0, 3.0]


def test_a_tensor_of_another_class_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be copied"):
        ArgumentCopies([torch.tensor([1 + 2j]).conj()])
