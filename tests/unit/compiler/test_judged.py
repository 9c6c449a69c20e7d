"""Plans are judged the fastest first, and those that cannot win are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler import accuracy_budget
from collage.compiler.accuracy_budget import judge_key, judged
from collage.compiler.precision_session import Precision, Verdict
from collage.compiler.problem import with_reduced_precision
from collage.options import CompileOptions
from collage.plan import Plan
from collage.target import Target
from collage.toolchains import Availability

EXACT, ROUGH, BYTES = (
    Target.parse(f"llvm -compiler=openvino{option}") for option in ("", " -precision=bf16", " -precision=int8")
)


def plan(name: str, *targets: Target) -> Plan:
    kernels: Any = tuple(
        SimpleNamespace(sub_graph=(name, i), target=target, bodies=()) for i, target in enumerate(targets)
    )
    return Plan(name, kernels, targets[0] if len(targets) == 1 else None)


EXACT_ONE, ROUGH_ONE, BYTES_ONE = plan("exact", EXACT), plan("rough", ROUGH), plan("bytes", BYTES)
MIX, SLOW_MIX = plan("mix", ROUGH, BYTES), plan("slow mix", BYTES, ROUGH)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of plans that were judged; of these, ``bytes`` is refused."""
    found: list[str] = []

    def judge_plan(_: Any, __: Any, ___: Any, one: Plan) -> Verdict:
        found.append(one.name)
        return Verdict(reason="too far off" if one is BYTES_ONE else None)

    monkeypatch.setattr(accuracy_budget, "judge_plan", judge_plan)
    return found


def kept(seconds: dict[str, float], *plans: Plan, **options: Any) -> list[str]:
    nothing: Any = None
    problem: Any = SimpleNamespace(options=CompileOptions(**options))
    session: Any = SimpleNamespace(say=lambda _: None)
    precision = Precision(nothing, nothing, nothing, (), True)
    found = judged(problem, session, precision, plans, lambda one: seconds[one.name])
    return [one.name for one in found]


def test_a_single_is_judged_although_a_mix_is_predicted_to_be_faster(asked: list[str]) -> None:
    found = kept({"exact": 3.0, "rough": 2.0, "mix": 1.0, "slow mix": 1.9}, EXACT_ONE, ROUGH_ONE, MIX, SLOW_MIX)
    assert found == ["exact", "rough", "mix"]
    assert asked == ["mix", "rough"]


def test_threads_make_no_other_plan_to_judge() -> None:
    one, all_threads = (plan("rough", target) for target in (ROUGH.with_options(threads="1"), ROUGH))
    assert judge_key(one) == judge_key(all_threads) != judge_key(BYTES_ONE)


def test_a_refused_single_leaves_room_for_slower_ones(asked: list[str]) -> None:
    assert kept({"exact": 3.0, "rough": 2.0, "bytes": 1.0}, EXACT_ONE, ROUGH_ONE, BYTES_ONE) == ["exact", "rough"]
    assert asked == ["bytes", "rough"]


def test_what_is_far_slower_than_the_exact_one_is_not_judged(asked: list[str]) -> None:
    assert kept({"exact": 1.0, "rough": 2.6, "mix": 2.0}, EXACT_ONE, ROUGH_ONE, MIX) == ["exact"]
    assert asked == []


@pytest.mark.parametrize("options", [{"objective": "size"}, {"objective": "memory"}, {"limits": ("size<=1MB",)}])
def test_the_slowest_is_judged_where_time_does_not_decide(options: Any, asked: list[str]) -> None:
    seconds = {"exact": 1.0, "rough": 26.0, "mix": 20.0}
    assert kept(seconds, EXACT_ONE, ROUGH_ONE, MIX, **options) == ["exact", "rough", "mix"]
    assert kept(seconds, EXACT_ONE, ROUGH_ONE, MIX, limits=("p99<=9s",)) == ["exact"]
    assert asked == ["mix", "rough"]


@pytest.mark.parametrize(("objective", "expected"), [("size", {"bf16", "int8"}), ("latency", {"bf16"})])
def test_small_weights_are_on_the_menu_where_time_does_not_decide(objective: str, expected: set[str]) -> None:
    found = Availability(True, precisions=("bf16",), compact=("int8",))
    session: Any = SimpleNamespace(availability=lambda target: found)
    menu = with_reduced_precision([EXACT], session, CompileOptions(objective=objective))
    assert {target.option("precision") for target in menu} == {None, *expected}


def test_a_single_is_judged_where_times_alone_may_mislead(asked: list[str]) -> None:
    assert kept({"exact": 1.0, "rough": 2.4}, EXACT_ONE, ROUGH_ONE) == ["exact", "rough"]
    assert kept({"exact": 0.0001, "rough": 0.0014}, EXACT_ONE, ROUGH_ONE) == ["exact", "rough"]
