"""What a user says about kernels holds, whatever is faster: rules, styles, depths, caps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import collage
from collage._errors import UsageError
from collage.fusion import (
    Found,
    FusionOptions,
    FusionRule,
    FusionStyle,
    OpPredicateFusionRule,
    RegionFusionRule,
    UnionFusionRule,
)
from collage.graph import IndexSet, SubGraph
from collage.target import Target
from collage.toolchains import Registry, Support
from collage.transform import PassContext
from tests.e2e.conftest import LENT
from tests.e2e.test_one_path import chain, two_halves
from tests.figures import figures
from tests.fixed_time_toolchain import DeclaredToolchain

LONE = OpPredicateFusionRule(lambda node: Support(True), "lone")


class Pairs(FusionRule):
    """Every two neighbours."""

    name = "pairs"

    def find(self, graph, report):
        for i in range(len(graph) - 1):
            yield Found(SubGraph(graph, IndexSet.of(i, i + 1)), (self.name,))


def one_toolchain() -> Registry:
    """The more operators in a kernel, the better: whatever does not hold would join all."""
    toolchains = Registry()
    toolchains.add(DeclaredToolchain(seconds={"": 1e-3, "Relu": 1e-4, "Neg": 1e-4}, name="left"))
    return toolchains


def ruled(rule: Any, text: str = "llvm -compiler=left") -> Target:
    return dataclasses.replace(Target.parse(text), fusion_spec=rule)


def sizes(executable: collage.Executable, only: str = "left") -> list[int]:
    return [len(kernel["nodes"]) for kernel in executable.report["kernels"] if only in kernel["target"]]


def compiled(folder: Path, targets: Any, toolchains: Registry | None = None, operators: int = 6, **options: Any):
    return collage.compile(
        chain(["Relu"] * operators),
        targets,
        toolchains=toolchains or one_toolchain(),
        workers=LENT,
        options=collage.CompileOptions(**{"finals": False, "baseline": "none", "db": str(folder / "db"), **options}),
    )


@pytest.mark.parametrize("finals", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_target_has_no_kernels_but_those_of_its_rule(tmp_path: Path, finals: bool) -> None:
    assert sizes(compiled(tmp_path, ["left"], finals=finals)) == [6]
    bound = compiled(tmp_path, [ruled(LONE)], finals=finals)
    assert sizes(bound) == [1] * 6
    (single,) = figures(bound.report)["singles"]
    assert single["target"] == "llvm -compiler=left (rule lone)"
    assert single["unbound_us"]["median"] < 2e3 < 6 * 1e3
    assert sizes(compiled(tmp_path, [ruled(UnionFusionRule((LONE, Pairs())))], finals=finals)) == [2] * 3
    assert sizes(compiled(tmp_path, ["left"], finals=finals)) == [6], "no rule, and what was learned under rules"


def test_two_targets_that_differ_in_their_rules_are_two(tmp_path: Path) -> None:
    odd = UnionFusionRule((OpPredicateFusionRule(lambda node: Support(node.op_type == "Relu")),), "relus")
    both = compiled(tmp_path, [ruled(LONE), ruled(odd), "left"], finals=False)
    assert both.report["menu"] == [
        "llvm -compiler=left (rule lone)",
        "llvm -compiler=left (rule relus)",
        "llvm -compiler=left",
    ]
    assert ruled(LONE) != Target.parse("llvm -compiler=left") == ruled(None)
    assert ruled(LONE) == ruled(LONE)
    with pytest.raises(UsageError, match="different names"):
        compiled(tmp_path, [ruled(LONE), ruled(dataclasses.replace(odd, name="lone"))])


def test_what_a_rule_leaves_goes_to_others_or_to_the_host(tmp_path: Path) -> None:
    middle = RegionFusionRule(lambda node: Support(node.name in ("n2", "n3")), name="middle")
    executable = compiled(tmp_path, [ruled(middle), "llvm -compiler=right"], two_halves(Relu=1e-3))
    by_left = {node for k in executable.report["kernels"] if "left" in k["target"] for node in k["nodes"]}
    assert by_left <= {"n2", "n3"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("fusion", "largest"),
    [
        ({"styles": {"left": FusionStyle.NONE}}, 1),
        ({"styles": {"left": "none"}}, 1),
        ({"max_depth": 2}, 2),
        ({"max_depth": 3, "styles": {"left": "classic"}}, 3),
        ({"max_depth": 0}, 6),
        ({"native_max_depth": 1}, 6),
    ],
)
def test_styles_and_depths_hold(tmp_path: Path, fusion: dict[str, Any], largest: int) -> None:
    assert max(sizes(compiled(tmp_path, ["left"], fusion=FusionOptions(**fusion)))) == largest


def test_the_configuration_of_passes_says_it_too(tmp_path: Path) -> None:
    with PassContext(config={"collage.byoc_max_depth": 2}):
        assert max(sizes(compiled(tmp_path, ["left"]))) == 2


def test_a_cap_holds_and_is_told(tmp_path: Path) -> None:
    report = compiled(tmp_path, ["left"], fusion=FusionOptions(max_candidates=3), operators=9).report
    assert report["search"]["candidates"] <= 9 + 3
    assert report["search"]["caps"]
    assert any("stopped at 3" in note for note in report["search"]["notes"])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fusion": FusionOptions(styles={"lefft": FusionStyle.NONE})}, "did you mean 'left'"),
        ({"launch_penalties_s": {"lefft": 1.0}}, "did you mean 'left'"),
    ],
)
def test_unknown_names_are_refused(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        compiled(tmp_path, ["left"], **options)


def test_values_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="one of none, classic"):
        FusionOptions(styles={"left": "greedy"})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="max_depth -1"):
        FusionOptions(max_depth=-1)
