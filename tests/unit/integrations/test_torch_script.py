from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from collage.integrations import _torch_script
from collage.integrations._compiled_graph import CompiledGraph
from collage.integrations._torch_script import TopModules

OPTIONS = {"targets": ["onnxruntime"], "wait": True}
SCRIPT = """
import sys
import torch

class Inner(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.inner = torch.nn.Linear(4, 3), Inner()

    def forward(self, x):
        return self.inner(self.linear(x)) + 1

torch.manual_seed(0)
outer, x = Outer().eval(), torch.ones(2, 4)
with torch.inference_mode():
    for _ in range(500):
        y = outer(x)
print(sys.argv[1:], [round(each, 4) for each in y.flatten().tolist()], __name__)
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "COLLAGE_DB": str(tmp_path / "db")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )


def share(profile: str, part: str) -> float:
    line = next(line for line in profile.splitlines() if f"collage: {part}" in line)
    return float(line.partition(part)[2].split()[0])


def test_a_script_prints_what_it_prints_without(tmp_path: Path) -> None:
    plain = run(tmp_path, "script.py", "--a", "b")
    ours = run(tmp_path, "-m", "collage.torch", "--wait", "--profile", "-t", "onnxruntime", "script.py", "--a", "b")
    assert ours.stdout == plain.stdout
    assert "__main__" in plain.stdout
    assert share(ours.stderr, "in compiled graphs") + share(ours.stderr, "in graphs left to PyTorch") > 0
    whole = share(ours.stderr, "the whole script")
    parts = ("in first calls of graphs", "in compiled graphs", "in graphs left to PyTorch")
    parts += ("in modules, outside of graphs", "outside of modules")
    assert sum(share(ours.stderr, part) for part in parts) == pytest.approx(whole, abs=0.01)


def test_a_module_of_a_package_is_run(tmp_path: Path) -> None:
    ours = run(tmp_path, "-m", "collage.torch", "-t", "onnxruntime", "-m", "script", "c")
    assert ours.stdout.startswith("['c'] [")


def test_a_script_that_ends_early_says_how_to_wait(tmp_path: Path) -> None:
    ours = run(tmp_path, "-m", "collage.torch", "-t", "onnxruntime", "script.py")
    assert ours.stderr.splitlines() == ["collage: the script ended before 1 of 1 graphs were compiled: --wait waits"]


@pytest.mark.parametrize("wrong", [["no.py"], ["-m", "no.such"], ["-m", "nothing"], ["-t", "nonsense", "script.py"]])
def test_what_cannot_be_run_is_named_without_a_traceback(tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(tmp_path, "-m", "collage.torch", *wrong)
    assert caught.value.returncode == 2
    assert "error: " in caught.value.stderr
    assert wrong[-1 if wrong[0] != "-t" else 1] in caught.value.stderr
    assert "Traceback" not in caught.value.stderr


@pytest.fixture
def linear() -> torch.nn.Linear:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def test_training_and_gradients_are_left_alone(linear: torch.nn.Linear) -> None:
    plain, modules = torch.nn.Module.__call__, TopModules(OPTIONS)
    x = torch.ones(2, 4)
    with modules.compiled():
        linear.eval()(x).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            linear.train()(x)
    assert linear._compiled_call_impl is None
    assert linear.weight.grad is not None
    assert torch.nn.Module.__call__ is plain


class Relu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Left(CompiledGraph):
    """A graph that is left to PyTorch."""

    def run_compiled(self, arguments: Sequence[Any]) -> None:
        return None


def test_only_top_modules_are_compiled(linear: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_script, "collage_backend", lambda graph, _, options: Left(graph, options, None))
    both, x = torch.nn.Sequential(linear, torch.nn.Tanh()).eval(), torch.ones(2, 4)
    modules = TopModules(OPTIONS)
    with torch.inference_mode():
        expected = both(x)
        with modules.compiled():
            for _ in range(3):
                torch.testing.assert_close(both(x), expected)
    assert both._compiled_call_impl is not None
    assert linear._compiled_call_impl is None
    assert modules._spent_s["in graphs left to PyTorch"] > 0 == modules._spent_s["in compiled graphs"]


def test_an_error_of_the_module_is_its_own(linear: torch.nn.Linear) -> None:
    with torch.inference_mode(), TopModules(OPTIONS).compiled(), pytest.raises(RuntimeError, match="shapes cannot"):
        linear.eval()(torch.ones(2, 5))


def test_a_compiled_module_can_be_traced(linear: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_script, "collage_backend", lambda graph, _, options: Left(graph, options, None))
    linear.eval()
    both, x = torch.nn.Sequential(linear, torch.nn.Tanh()).eval(), torch.ones(2, 4)
    with torch.no_grad(), TopModules(OPTIONS).compiled():
        for module in (linear, both):
            for _ in range(2):
                traced = [torch.jit.trace(module, x)(x), make_fx(module)(x)(x)]  # type: ignore[no-untyped-call]
                torch.testing.assert_close(traced, [module(x)] * 2)


def test_a_class_may_have_a_method_of_this_name(linear: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Sequential):
        def compile(self, optimizer: str) -> None: ...

    monkeypatch.setattr(_torch_script, "collage_backend", lambda graph, _, options: Left(graph, options, None))
    model, x = Model(linear).eval(), torch.ones(2, 4)
    with torch.inference_mode(), TopModules(OPTIONS).compiled():
        torch.testing.assert_close(model(x), x @ linear.weight.T + linear.bias)
    assert model._compiled_call_impl is not None


def test_training_runs_what_the_script_itself_compiled(linear: torch.nn.Linear) -> None:
    def backend(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    graphs: list[torch.fx.GraphModule] = []
    model = Relu()
    model.compile(backend=backend)
    with TopModules(OPTIONS).compiled():
        model(torch.ones(2, 4))
    assert graphs


def test_training_runs_nothing_that_was_compiled_here(linear: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_script, "collage_backend", lambda graph, _, options: Left(graph, options, None))
    inner, modules = Relu().eval(), TopModules(OPTIONS)
    both, x = torch.nn.Sequential(linear, inner), torch.ones(2, 4)
    with modules.compiled():
        with torch.no_grad():
            inner(x)
        both(x)
    assert len(modules._graphs) == 1
