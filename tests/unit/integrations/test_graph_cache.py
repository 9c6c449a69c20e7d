"""Graphs of ``torch.compile`` that another process compiled."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import collage.compiler.pipeline
from collage.integrations import _compiled_graph
from collage.integrations._graph_cache import GraphCache
from collage.options import CompileOptions
from collage.testing import executable_of


class Net(torch.nn.Module):
    def __init__(self, seed: int = 0, factor: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(4, 3)
        self.factor = factor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.linear(x)) * self.factor


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How often something was compiled and exported."""
    counts = {"compiled": 0, "exported": 0}
    export = torch.export.export

    def compile(model: Any, targets: Any, *, options: CompileOptions, **_: Any) -> Any:
        counts["compiled"] += 1
        return executable_of(model, "onnxruntime")

    def exported(*arguments: Any, **options: Any) -> Any:
        counts["exported"] += 1
        return export(*arguments, **options)

    monkeypatch.setattr(collage.compiler.pipeline, "compile", compile)
    monkeypatch.setattr(torch.export, "export", exported)
    monkeypatch.setattr(_compiled_graph, "MOST_RACES", 0)  # PyTorch would win most of them.
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="collage")
        yield counts


def process(module: torch.nn.Module, *lengths: int, **options: Any) -> None:
    """Call a module as a new process would, and compare it with PyTorch."""
    torch._dynamo.reset()
    _compiled_graph._SEEN.clear()
    compiled = torch.compile(module, backend="collage", options={"targets": ["onnxruntime"], "wait": True, **options})
    with torch.no_grad():
        for n, length in enumerate(lengths):
            x = torch.randn(length, 4)
            before = module.calls.clone()
            found = compiled(x)
            assert module.calls == before + 1, n
            torch.testing.assert_close(found, torch.relu(module.linear(x)) * module.factor)


def test_a_new_process_neither_exports_nor_compiles(count: dict[str, int], own_cache: Path) -> None:
    process(Net(), 5)
    assert count["compiled"] == 1
    count.update(compiled=0, exported=0)
    process(Net(), 5)
    assert count == {"compiled": 0, "exported": 0}
    assert len(list(own_cache.glob("*.collage"))) == 1


LATER = """
import json, sys
import torch
{source}
compiled = torch.compile(Net(), backend="collage", options={{"targets": ["onnxruntime"], "wait": True, "finals": False}})
with torch.no_grad():
    compiled(torch.zeros(5, 4))
print(json.dumps(sorted(sys.modules)))
"""


def test_a_new_process_imports_neither_the_compiler_nor_libraries_for_models(count: dict[str, int]) -> None:
    process(Net(), 5, finals=False)
    done = subprocess.run(
        [sys.executable, "-W", "error:collage", "-c", LATER.format(source=inspect.getsource(Net))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    assert "collage.integrations.torch_compile" in modules
    heavy = {"onnx", "onnx_ir", "onnxscript", "sqlalchemy", "collage.compiler", "collage.frontend", "collage.measure"}
    assert heavy & set(modules) == set()


def test_lengths_that_an_earlier_process_met_need_no_export(count: dict[str, int]) -> None:
    process(Net(), 5, 6, 7)
    assert count["compiled"] == 2
    count.update(compiled=0, exported=0)
    process(Net(), 5, 7, 6)
    assert count == {"compiled": 0, "exported": 0}
    process(Net(), 5, 9)  # The cache has the conditions on lengths.
    assert count == {"compiled": 0, "exported": 0}


def test_anything_else_is_compiled(count: dict[str, int]) -> None:
    process(Net(), 5)
    others = {
        "other weights": lambda: process(Net(seed=1), 5),
        "another constant": lambda: process(Net(factor=3.0), 5),
        "another length": lambda: process(Net(), 8),
        "another option": lambda: process(Net(), 5, threads=1),
        "no cache": lambda: process(Net(), 5, cache_dir=None),
    }
    for name, other in others.items():
        count.update(compiled=0, exported=0)
        other()
        assert count["compiled"] == 1, name


def test_a_damaged_entry_is_compiled_again(count: dict[str, int], own_cache: Path) -> None:
    process(Net(), 5)
    (artefact,) = own_cache.glob("*.collage")
    (artefact / "manifest.json").write_text("{}")
    process(Net(), 5)
    assert count["compiled"] == 2
    for facts in own_cache.glob("*.json"):
        facts.write_text('{"returns": 7}')
    process(Net(), 5)
    assert count["compiled"] == 3


def test_without_a_folder_that_can_be_written_to_it_works(count: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings.filterwarnings("ignore", message="collage cannot keep")
    process(Net(), 5, cache_dir=str(tmp_path / "file" / "cache"))
    assert count["compiled"] == 1


def test_weights_that_are_conjugate_or_negative_views_have_keys_of_their_own(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path, (), CompileOptions())
    x, z = torch.ones(3), torch.complex(torch.ones(3), torch.ones(3))
    keys = {cache.variant_key("", [0], [weight]) for weight in (x, torch._neg_view(x), z, z.conj())}
    assert len(keys) == 4
    assert cache.variant_key("", [0], [z.conj()]) == cache.variant_key("", [0], [z.conj().resolve_conj()])
