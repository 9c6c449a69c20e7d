"""The cost table of a problem whose kernels nothing has measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from collage.compiler import cost_table
from collage.compiler.cost_table import CostTable
from collage.compiler.opening import measure_session
from collage.compiler.preparation import Verdict
from collage.compiler.problem import Problem
from collage.compiler.survey import Reference, Survey
from collage.cost.cost import Cost
from collage.cost.outcome import Outcome
from collage.cost.statistics import summarise
from collage.database.database import Database
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, SubGraph
from collage.measure.baselines import TargetBaseline
from collage.measure.check_inputs import CheckingSets
from collage.measure.overheads import Overheads
from collage.measure.roofline import Peak
from collage.options import CompileOptions
from collage.status import Status
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Availability, Registry


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
        for options, expected in ((CompileOptions(), allowed), (CompileOptions(measure_budget=3), 3)):
            problem = Problem.of(chain(max(1, length)), [target], toolchains, options)
            survey = Survey(problem, Reference(CheckingSets(), None, Verdict()), {})
            with measure_session(toolchains, database, tmp_path, options) as session:
                costs = CostTable(survey, session)
            candidates = [
                CandidateKernel(SubGraph(problem.graph, IndexSet.range(first, end)), target, spec, ("all",))
                for end in range(length + 1)
                for first in range(end)
            ]
            assert len({problem.key_of(c) for c in candidates}) == keys
            costs.introduce([*candidates, *candidates])
            assert costs.kernels_left == expected
            assert all(costs.known_cost(candidate) is None for candidate in candidates)
            for candidate in candidates[:1]:
                costs.reject(candidate)
                assert costs.known_cost(candidate) == Cost.INVALID
                assert costs.rejections == 1


def test_variants_take_the_whole_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are profiled as all targets are, but no kernel of them is expected to cost anything."""
    target = Target.parse("llvm -compiler=fake")
    variant = target.with_options(exempt="2")
    toolchains = Registry(())
    toolchains.add(FakeToolchain())
    monkeypatch.setattr(cost_table, "measure_overheads", lambda *_: Overheads(1e-6, 1e-6))
    monkeypatch.setattr(cost_table, "measure_peak", lambda _: Peak(1e9, 1e9))
    options = CompileOptions()
    with Database(str(tmp_path / "t.sqlite")) as database:
        problem = Problem.of(chain(2), [target], toolchains, options)
        problem = replace(problem, menu=(target, variant))
        whole = Outcome(Status.OK, time=summarise([2e-3]))
        baselines = {
            each: TargetBaseline(each, Availability(True), {}, (0b11,), (whole,), {0: 1e-3, 1: 1e-3})
            for each in (target, variant)
        }
        survey = Survey(problem, Reference(CheckingSets(), None, Verdict()), baselines)
        with measure_session(toolchains, database, tmp_path, options) as session:
            costs = CostTable(survey, session)
            costs.learn()
        assert variant not in costs.overheads
        assert target in costs.overheads


@pytest.mark.parametrize(
    ("budget", "call_s", "asked"),
    [
        (80, 1e-6, {"one": 6, "two": 6}),
        (12, 1e-6, {"one": 3, "two": 3}),
        (10, 1e-6, {"one": 2, "two": 3}),
        (2, 1e-6, {}),
        (80, 1e-3, {"one": 2, "two": 2}),  # Half of the model takes less than five calls.
        (80, 2e-3, {}),
    ],
)
def test_targets_without_a_profile_share_half_of_the_kernels_that_tell_where_the_time_goes(
    budget: int, call_s: float, asked: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_types = ("Exp", "Log", "Neg", "Abs", "Tanh", "Relu")
    nodes = [helper.make_node(op_type, [f"v{i}"], [f"v{i + 1}"]) for i, op_type in enumerate(op_types)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v0", "v6")]
    model = ir.serde.deserialize_model(helper.make_model(helper.make_graph(nodes, "chain", ports[:1], ports[1:])))
    menu = [Target.parse(f"llvm -compiler={name}") for name in ("one", "two")]
    toolchains = Registry(())
    for name in ("one", "two"):
        toolchains.add(FakeToolchain(name=name))
    part, whole = (Outcome(Status.OK, time=summarise([seconds])) for seconds in (1e-3, 6e-3))
    counts: Counter[str] = Counter()

    def measure(_: object, kernels: Sequence[tuple[object, Target]], *_more: object) -> list[Outcome]:
        counts.update(target.toolchain for _, target in kernels)
        return [part for _ in kernels]

    monkeypatch.setattr(cost_table.MeasuringCostEstimator, "measure", measure)
    monkeypatch.setattr(cost_table, "measure_overheads", lambda *_: Overheads(call_s / 2, call_s / 2))
    monkeypatch.setattr(cost_table, "measure_peak", lambda _: Peak(1e9, 1e9))
    options = CompileOptions(measure_budget=budget)
    with Database(str(tmp_path / "t.sqlite")) as database:
        problem = Problem.of(model, menu, toolchains, options)
        baselines = {
            target: TargetBaseline(target, Availability(True), {}, ((1 << 6) - 1,), (whole,), {}) for target in menu
        }
        survey = Survey(problem, Reference(CheckingSets(), None, Verdict()), baselines)
        with measure_session(toolchains, database, tmp_path, options) as session:
            costs = CostTable(survey, session)
            costs.learn()
    assert counts == asked
    assert costs.kernels_left == budget - sum(asked.values())
