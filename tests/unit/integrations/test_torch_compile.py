from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
import torch
from tests.unit.integrations.torch_modules import Cache, Rebound

import collage.compiler.pipeline
from collage._errors import NothingCanRun, TargetError, UsageError
from collage.integrations import _compiled_graph
from collage.integrations._torch_options import torch_settings
from collage.options import CompileOptions
from collage.workers.worker import Worker

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


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("no_fall_back")
def test_state_and_lengths_that_grow_go_through_the_whole_compiler() -> None:
    plain, inner = Cache(), Cache()
    compiled = torch.compile(inner, backend="collage", options=OPTIONS)
    with torch.no_grad():
        for n in range(4):
            x, position = torch.randn(1, 1, 4), torch.tensor([n])
            torch.testing.assert_close(compiled(x, position), plain(x, position))
            torch.testing.assert_close(inner.keys, plain.keys)
        counter, other = Rebound(), Rebound()
        compiled = torch.compile(counter, backend="collage", options=OPTIONS, dynamic=True)
        for n in range(4, 8):
            x = torch.randn(n, 3)
            torch.testing.assert_close(compiled(x), other(x))
            torch.testing.assert_close(counter.total, other.total)


def test_where_gradients_are_asked_for_pytorch_runs_and_says_so() -> None:
    layer = torch.nn.Linear(3, 2)
    compiled = torch.compile(layer, backend="collage", options=OPTIONS, dynamic=False)
    with pytest.warns(RuntimeWarning, match="gradients"):
        compiled(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad is not None


def test_what_cannot_be_exported_is_left_to_pytorch_and_said() -> None:
    compiled = torch.compile(lambda x: torch.linalg.eigvals(x).real, backend="collage", options=OPTIONS, dynamic=False)
    with pytest.warns(RuntimeWarning, match="collage leaves a graph to PyTorch"):
        torch.testing.assert_close(compiled(torch.eye(3)), torch.ones(3))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"targets": ["onnxruntim"]}, TargetError, "did you mean 'onnxruntime'"),
        ({"target": ["onnxruntime"]}, UsageError, "no option 'target'; did you mean 'targets'"),
        ({"tune": 3}, UsageError, "no option 'tune'; did you mean 'tune_s'"),
        ({"qqq": 3}, UsageError, "no option 'qqq'; known: targets, "),
        ({"search": "quick"}, UsageError, "search 'quick'"),
        ({"targets": []}, TargetError, "empty"),
    ],
)
def test_wrong_options_are_raised_at_every_call(options: dict, error: type[Exception], said: str) -> None:
    compiled = torch.compile(torch.nn.ReLU(), backend="collage", options=options)
    for _ in range(2):
        with pytest.raises(error, match=said):
            compiled(torch.ones(2))


def test_an_unknown_mode_is_raised() -> None:
    compiled = torch.compile(torch.nn.ReLU(), backend="collage", mode="reduce-overhead")
    with pytest.raises(UsageError, match=r"'reduce-overhead'.*'max-autotune'"):
        compiled(torch.ones(2))


def test_modes_and_single_options_become_those_of_compile(monkeypatch) -> None:
    seen = []

    def compile(model, targets, *, options, **_):
        seen.append((targets, options))
        raise NothingCanRun("enough")

    monkeypatch.setattr(collage.compiler.pipeline, "compile", compile)
    given = {"targets": ["llvm"], "threads": 2, "tune_s": 5.0, "wait": True}
    with pytest.warns(RuntimeWarning, match="enough"):
        torch.compile(torch.nn.Tanh(), backend="collage", options=given)(torch.ones(2))
    ((targets, options),) = seen
    assert ([str(target) for target in targets], options.threads, options.tune_s) == (["llvm"], 2, 5.0)
    assert torch_settings({}, "max-autotune")["options"].tune_s > 0


@pytest.mark.parametrize("is_told", [False, True])
def test_one_line_says_that_it_takes_long(monkeypatch, capsys, is_told: bool) -> None:
    monkeypatch.setattr(_compiled_graph, "PATIENCE_S", 0.01)
    said, end = "", time.monotonic() + (0.2 if is_told else 60)
    with _compiled_graph._progress(3, is_told):
        while not said.endswith("\n") and time.monotonic() < end:
            time.sleep(0.01)
            said += capsys.readouterr().err
    monkeypatch.setattr(_compiled_graph, "PATIENCE_S", 60.0)
    with _compiled_graph._progress(3, is_told):
        pass
    line = "collage: compiling a graph of 3 operators for torch.compile, which can take minutes\n"
    assert said + capsys.readouterr().err == ("" if is_told else line)


@pytest.mark.parametrize(
    ("given", "sets", "is_at_once"),
    [
        ({}, 0, False),
        ({"specialise": 3}, 3, False),
        ({"specialise": 3, "wait": True}, 3, True),
        ({"specialise": 2, "workers": {}}, 2, True),
    ],
    ids=str,
)
def test_who_waits_gets_a_plan_for_the_first_lengths_and_others_for_frequent_ones(
    given: dict[str, object], sets: int, is_at_once: bool
) -> None:
    settings = torch_settings(given, None)
    assert (settings["specialise"], settings["options"].specialise) == (sets, is_at_once)


@pytest.mark.parametrize(
    "given", [{"specialise": -1}, {"specialise": "all"}, {"specialise": 2, "finals": False}], ids=str
)
def test_a_number_of_plans_that_makes_no_sense_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="specialise"):
        torch_settings(given, None)


def test_say_gets_the_decisions_and_is_no_option_of_the_compiler(tmp_path: Path) -> None:
    said: list[str] = []
    given = {"targets": ["onnxruntime"], "wait": True, "cache_dir": None, "finals": False, "db": str(tmp_path / "db")}
    compiled = torch.compile(torch.nn.ReLU(), backend="collage", options={**given, "say": said.append})
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    assert len(said) == 1 and "compiled in" in said[0]
