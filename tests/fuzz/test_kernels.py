"""Random models, and what becomes of them as unchecked kernels."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnx.checker

from tests.fuzz.draft import Sample, sample
from tests.fuzz.kernels import on_toolchain
from tests.fuzz.kinds import KINDS
from tests.fuzz.session import Session
from tests.fuzz.shrink import shrunk

SEEDS = range(60)


def test_models_are_valid_and_of_many_operators() -> None:
    kinds: set[str] = set()
    opsets: set[int] = set()
    for seed in SEEDS:
        made = sample(seed)
        onnx.checker.check_model(made.model, full_check=True)
        assert list(made.feeds) == [value.name for value in made.model.graph.input]
        assert 3 <= len(made.model.graph.node) <= 12
        kinds |= {node.op_type for node in made.model.graph.node}
        opsets.add(made.model.opset_import[0].version)
    assert len(kinds) >= 90
    assert min(opsets) == 13 and max(opsets) >= 24


def test_wide_models_have_lengths_that_fill_vectors() -> None:
    longest = []
    for seed in range(12):
        made = sample(seed, wide=True)
        onnx.checker.check_model(made.model, full_check=True)
        longest += [max(np.shape(x), default=1) for x in made.feeds.values()]
    assert sum(length > 16 for length in longest) > len(longest) / 4
    assert max(longest) <= 96 * 96


def test_most_models_can_be_judged_and_host_is_right_of_them() -> None:
    found = [on_toolchain(seed, sample(seed), "host") for seed in range(20)]
    assert {verdict.how for verdict in found} <= {"right", "skipped"}
    assert sum(verdict.how == "right" for verdict in found) >= 12


def test_at_other_lengths_models_are_judged_on_several_sets_of_inputs() -> None:
    found = [on_toolchain(seed, sample(seed), "host", symbolic=True) for seed in range(20)]
    assert {verdict.how for verdict in found} <= {"right", "skipped"}
    judged = [verdict for verdict in found if verdict.how == "right"]
    assert len(judged) >= 5
    assert all(verdict.cases > 1 for verdict in judged)


def test_every_toolchain_of_the_menu_is_judged(tmp_path: Path) -> None:
    found = KINDS["kernels"].judge(1, sample(1), Session(["onnxruntime", "openvino", "onednn"], tmp_path))
    assert [verdict.target for verdict in found] == ["onnxruntime", "openvino", "onednn"]


def test_a_seed_makes_the_same_model_every_time() -> None:
    for kind in ("random", "single-op", "old-opsets", "adversarial-constants"):
        for seed in (3, 14, 15):
            first, second = KINDS[kind].draw(seed), KINDS[kind].draw(seed)
            assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(
                deterministic=True
            )
            assert all(
                np.array_equal(x, second.feeds[name], equal_nan=x.dtype.kind == "f") for name, x in first.feeds.items()
            )


def test_a_bad_model_is_shrunk_to_what_is_bad() -> None:
    given = sample(0)
    culprit = given.model.graph.node[1].op_type

    def is_as_bad(candidate: Sample) -> bool:
        return any(node.op_type == culprit for node in candidate.model.graph.node)

    smallest = shrunk(given, is_as_bad, time.monotonic() + 60)
    assert [node.op_type for node in smallest.model.graph.node] == [culprit]
    onnx.checker.check_model(smallest.model)
    assert shrunk(given, is_as_bad, time.monotonic() - 1) is given
