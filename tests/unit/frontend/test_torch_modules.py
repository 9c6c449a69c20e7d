"""A module of PyTorch, with example inputs, through the front door."""

from __future__ import annotations

import pytest
import torch

from collage._errors import ModelError, UsageError
from collage.frontend import read_model


class Eigenvalues(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x)


def test_a_module_is_exported_for_inference_and_left_as_it_was() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(), torch.nn.BatchNorm1d(2)).train()
    module[2].eval()
    model = read_model(module, example_inputs=(torch.randn(3, 4),))
    assert "Dropout" not in {node.op_type for node in model.graph}
    assert [part.training for part in module] == [True, True, False]


@pytest.mark.parametrize("inputs", [None, 3, {"x": torch.ones(2)}, "text"])
def test_example_inputs_are_asked_for(inputs: object) -> None:
    with pytest.raises(UsageError, match="example inputs"):
        read_model(torch.nn.ReLU(), example_inputs=inputs)


@pytest.mark.parametrize(
    ("module", "example", "said"),
    [(Eigenvalues(), torch.eye(3), "No ONNX function found"), (torch.nn.Linear(4, 2), torch.ones(3, 5), r"\[3, 5\]")],
)
def test_what_cannot_be_exported_says_why_in_one_line(
    module: torch.nn.Module, example: torch.Tensor, said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        read_model(module, example_inputs=(example,))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
