from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.checker
import pytest

SEEDS = range(60)


@pytest.fixture
def random_graphs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(import_module("benchmarks.zoo").__path__[0]).parent)
    return import_module("benchmarks.random_graphs")


def test_models_are_valid_and_of_many_operators(random_graphs: ModuleType) -> None:
    kinds: set[str] = set()
    opsets: set[int] = set()
    for seed in SEEDS:
        made = random_graphs.sample(seed)
        onnx.checker.check_model(made.model, full_check=True)
        assert list(made.feeds) == [value.name for value in made.model.graph.input]
        assert 3 <= len(made.model.graph.node) <= 12
        kinds |= {node.op_type for node in made.model.graph.node}
        opsets.add(made.model.opset_import[0].version)
    assert len(kinds) >= 90
    assert min(opsets) == 13 and max(opsets) >= 24


def test_wide_models_have_lengths_that_fill_vectors(random_graphs: ModuleType) -> None:
    longest = []
    for seed in range(12):
        made = random_graphs.sample(seed, wide=True)
        onnx.checker.check_model(made.model, full_check=True)
        longest += [max(np.shape(x), default=1) for x in made.feeds.values()]
    assert sum(length > 16 for length in longest) > len(longest) / 4
    assert max(longest) <= 96 * 96


def on_host(random_graphs: ModuleType, *, symbolic: bool = False) -> Callable[..., Any]:
    return functools.partial(random_graphs.judged, name="host", symbolic=symbolic)


def test_most_models_can_be_judged_and_host_is_right_of_them(random_graphs: ModuleType) -> None:
    found = list(random_graphs.in_children([(seed, None) for seed in range(20)], on_host(random_graphs), 60.0))
    assert {verdict.how for verdict in found} <= {"right", "skipped"}
    assert sum(verdict.how == "right" for verdict in found) >= 12


def test_at_other_lengths_models_are_judged_on_several_sets_of_inputs(random_graphs: ModuleType) -> None:
    judge = on_host(random_graphs, symbolic=True)
    found = list(random_graphs.in_children([(seed, None) for seed in range(20)], judge, 60.0))
    assert {verdict.how for verdict in found} <= {"right", "skipped"}
    judged = [verdict for verdict in found if verdict.how == "right"]
    assert len(judged) >= 5
    assert all(verdict.cases > 1 for verdict in judged)


def test_a_seed_makes_the_same_model_every_time(random_graphs: ModuleType) -> None:
    for seed in (3, 14, 15):
        first, second = random_graphs.sample(seed), random_graphs.sample(seed)
        assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
        assert all(
            np.array_equal(x, second.feeds[name], equal_nan=x.dtype.kind == "f") for name, x in first.feeds.items()
        )


def test_a_wrong_model_is_reduced_to_what_is_wrong(random_graphs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are forked: what is replaced here is replaced there."""
    given = random_graphs.sample(0)
    culprit = given.model.graph.node[1].op_type

    def judged(seed: int, given: object, name: str, symbolic: bool) -> object:
        kinds = [node.op_type for node in given.model.graph.node]  # type: ignore[attr-defined]
        return random_graphs.Verdict(seed, "wrong" if culprit in kinds else "right", culprit)

    monkeypatch.setattr(random_graphs, "judged", judged)
    smallest, verdict = random_graphs.reduced(0, "host", 60.0)
    assert verdict.how == "wrong"
    assert [node.op_type for node in smallest.model.graph.node] == [culprit]
    onnx.checker.check_model(smallest.model)
