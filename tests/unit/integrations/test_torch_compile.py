from __future__ import annotations

import warnings

import pytest
import torch

from collage.cost.worker import Worker
from collage.options import CompileOptions

WORKERS: dict[str, Worker] = {}
OPTIONS = {
    "targets": ["onnxruntime"],
    "options": CompileOptions(db="sqlite:///:memory:", finals=False),
    "workers": WORKERS,
}


@pytest.fixture(scope="module", autouse=True)
def workers_end():
    yield
    for worker in WORKERS.values():
        worker.kill()


class Block(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4 * 36, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.norm(self.convolution(x)))
        return self.linear(features.flatten(1)), features


@pytest.fixture
def no_fall_back():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="collage leaves")
        yield


@pytest.mark.usefixtures("no_fall_back")
def test_modules_of_the_same_code_keep_their_own_weights() -> None:
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        for seed in (1, 2):
            block = Block(seed).eval()
            compiled = torch.compile(block, backend="collage", options=OPTIONS, dynamic=False)
            for actual, expected in zip(compiled(x), block(x), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        block.linear.bias.add_(1.0)
        torch.testing.assert_close(compiled(x)[0], block(x)[0], rtol=1e-4, atol=1e-5)


def test_where_gradients_are_asked_for_pytorch_runs_and_says_so() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(3, 2)
    compiled = torch.compile(layer, backend="collage", options=OPTIONS, dynamic=False)
    with pytest.warns(RuntimeWarning, match="gradients"):
        compiled(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad is not None


def test_what_cannot_be_exported_is_left_to_pytorch_and_said() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.linalg.eigvals(x).real, backend="collage", options=OPTIONS, dynamic=False)
    with pytest.warns(RuntimeWarning, match="collage leaves a graph to PyTorch"):
        torch.testing.assert_close(compiled(torch.eye(3)), torch.ones(3))
