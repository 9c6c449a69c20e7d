"""What one compilation may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from collage.compiler.budget import SearchBudget
from collage.compiler.session import CompileSession
from collage.database.database import Database
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, SubGraph
from collage.measure.comparison import ComparisonPlan
from collage.options import CompileOptions
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry


def chain(length: int) -> ir.Model:
    """Of operators that all differ."""
    nodes = [helper.make_node("LeakyRelu", [f"v{i}"], [f"v{i + 1}"], alpha=0.01 * i) for i in range(length)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v0", f"v{length}")]
    return ir.serde.deserialize_model(helper.make_model(helper.make_graph(nodes, "chain", ports[:1], ports[1:])))


@pytest.mark.parametrize(("length", "keys", "allowed"), [(0, 0, 80), (4, 10, 14), (20, 210, 23), (60, 1830, 80)])
def test_a_search_may_ask_for_a_ninth_of_all_kernels(length: int, keys: int, allowed: int, tmp_path: Path) -> None:
    target = Target.parse("llvm -compiler=fake")
    toolchains = Registry(())
    toolchains.add(FakeToolchain())
    spec: Any = None
    with Database(str(tmp_path / "t.sqlite")) as database:

        def session(options: CompileOptions) -> CompileSession:
            return CompileSession(chain(max(1, length)), [target], toolchains, database, tmp_path, options=options)

        unasked, asked = session(CompileOptions()), session(CompileOptions(measure_budget=3))
        for each in (unasked, asked):
            candidates = [
                CandidateKernel(SubGraph(each.graph, IndexSet.range(first, end)), target, spec, ("all",))
                for end in range(length + 1)
                for first in range(end)
            ]
            assert len({each.key_of(c.sub_graph, c.target) for c in candidates}) == keys
            each.introduce([*candidates, *candidates])
        assert unasked.kernels_left == allowed
        assert asked.kernels_left == 3


@pytest.mark.parametrize("search", ["proof", "exhaustive"])
def test_one_that_is_to_prove_something_may_ask_for_all(search: str) -> None:
    plan = ComparisonPlan.of_model(0, 1 << 30)
    budget = SearchBudget(CompileOptions(search=search), plan)
    assert budget.kernels(100_000) >= 100_000
    assert budget.seconds_left([]) == float("inf")
    held = SearchBudget(CompileOptions(search=search, measure_budget=7, time_budget_s=60.0), plan)
    assert held.kernels(100_000) == 7
    assert 0 < held.seconds_left([]) <= 60.0
