"""A module of PyTorch, with example inputs, through the front door."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from collage._errors import ModelError, UsageError
from collage.frontend import read_model
from collage.testing import executable_of


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


Pair = namedtuple("Pair", ["low", "high"])


class Keyed(torch.nn.Module):
    def forward(self, x: torch.Tensor, state: dict[str, torch.Tensor]) -> dict[str, object]:
        h = x @ state["h"]
        return {"y": h, "state": {"h": h + 1}, "pair": Pair(h - 1, [h * 2, None])}


def test_outputs_have_the_keys_under_which_they_are_returned() -> None:
    x, state = torch.randn(2, 2), {"h": torch.randn(2, 2)}
    module = Keyed()
    sources = [
        read_model(module, example_inputs=(x, state)),
        read_model(torch.export.export(module, (x, state))),
    ]
    for model in sources:
        assert [port.name for port in model.graph.inputs] == ["x", "state_h"]
        names = [str(port.name) for port in model.graph.outputs]
        assert names == ["y", "state_h_out", "pair_low", "pair_high_0"]
        outputs = executable_of(model, "onnxruntime").run([x, state["h"]])
        wanted = module(x, state)
        torch.testing.assert_close(outputs["state_h_out"], wanted["state"]["h"])
        torch.testing.assert_close(outputs["pair_high_0"], wanted["pair"].high[0])
    plain = read_model(torch.nn.Linear(2, 2), example_inputs=(x,))
    assert [port.name for port in plain.graph.outputs] == ["linear"]


class Caching(torch.nn.Module):
    """A module that takes a cache of the package ``transformers`` and returns it, one step longer."""

    def forward(self, x: torch.Tensor, cache: object = None) -> dict[str, object]:
        keys, values = cache.update(x, x + 1, 0)
        return {"y": (keys * values).sum((1, 2)), "cache": cache}


def test_caches_of_transformers_are_taken_apart() -> None:
    transformers = pytest.importorskip("transformers")

    def cache(length: int) -> object:
        made = transformers.DynamicCache()
        made.update(*torch.randn(2, 1, 2, length, 4), 0)
        return made

    past = {2: "past"}
    model = read_model(
        Caching(),
        example_inputs=(torch.randn(1, 2, 1, 4),),
        example_kwargs={"cache": cache(3)},
        dynamic_shapes={"x": None, "cache": [past, past]},
    )
    assert [port.name for port in model.graph.inputs] == ["x", "cache_0", "cache_1"]
    assert [port.name for port in model.graph.outputs] == ["y", "cache_0_out", "cache_1_out"]
    executable = executable_of(model, "onnxruntime")
    given, x = cache(7), torch.randn(1, 2, 1, 4)
    feeds = {"x": x, "cache_0": given.layers[0].keys, "cache_1": given.layers[0].values}
    outputs = executable.run(feeds)
    wanted = Caching()(x, given)
    torch.testing.assert_close(outputs["y"], wanted["y"])
    torch.testing.assert_close(outputs["cache_0_out"], wanted["cache"].layers[0].keys)
