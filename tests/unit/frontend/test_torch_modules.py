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


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, 0.0)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return x + self.steps


BATCH = {"input": {0: torch.export.Dim("batch")}}


def test_what_pytorch_exported_is_a_model_with_its_symbolic_lengths() -> None:
    module, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    sources = [
        torch.export.export(module, (x,), dynamic_shapes=BATCH),
        torch.onnx.export(module, (x,), dynamo=True, verbose=False, dynamic_shapes=BATCH),
    ]
    models = [read_model(source) for source in sources]
    models.append(read_model(module, example_inputs=(x,), dynamic_shapes=BATCH))
    for model in models:
        batch, width = model.graph.inputs[0].shape
        assert (isinstance(batch, int), width) == (False, 4)
    assert str(models[1].graph.inputs[0].shape) == str(models[2].graph.inputs[0].shape) == "[batch,4]"
    for source in sources:
        with pytest.raises(UsageError, match="has its own"):
            read_model(source, example_inputs=(x,))


def test_inputs_by_keyword() -> None:
    x = torch.randn(3)
    model = read_model(Masked(), example_inputs=(x,), example_kwargs={"mask": x > 0})
    assert [port.name for port in model.graph.inputs] == ["x", "mask"]
    assert read_model(torch.nn.ReLU(), example_kwargs={"input": x}).graph.inputs[0].name == "input"


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_state_that_is_written_is_warned_of() -> None:
    with pytest.raises(RuntimeWarning, match=r"Counter writes to .*steps"):
        read_model(Counter(), example_inputs=(torch.ones(1),))
    read_model(torch.nn.BatchNorm1d(3), example_inputs=(torch.ones(2, 3),))


def test_exporting_prints_nothing(capfd) -> None:
    read_model(torch.nn.ReLU(), example_inputs=(torch.ones(1),))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("end", [".pt", ".pth", ".pt2"])
def test_files_of_pytorch_say_what_to_do(end: str, tmp_path) -> None:
    path = tmp_path / f"model{end}"
    if end == ".pt2":
        torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), path)
        said = r"torch\.export\.load"
    else:
        torch.save(torch.nn.ReLU().state_dict(), path)
        said = "PyTorch file.*example_inputs.*torch.onnx.export"
    with pytest.raises(ModelError, match=said):
        read_model(path)
