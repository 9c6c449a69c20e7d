"""Plans as files: they come back as they were, and what is wrong with one is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collage._errors import UsageError
from collage.plan_file import LabelledPart, PlanFile, PlanFileKernel, read_plan

PART = LabelledPart("lib.conv_relu", ("conv", "relu"), (LabelledPart("lib.conv", ("conv",)),))
PLAN = PlanFile(
    (PlanFileKernel("llvm -compiler=lib", ("conv", "relu"), (PART,)), PlanFileKernel("llvm", ("a:0",), (), "cpu:1")),
    "ab",
)


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == PLAN
    assert PLAN.targets == ("llvm -compiler=lib", "llvm")


def test_a_plan_with_bodies_comes_back_as_it_was(tmp_path: Path) -> None:
    inner = PlanFileKernel("llvm", ("loop inside",), bodies=((PlanFileKernel("llvm -compiler=lib", ("add",)),),))
    holder = PlanFileKernel("llvm -compiler=host", ("if",), bodies=((PlanFileKernel("llvm", ("mul",)),), (inner,)))
    plan = PlanFile((holder,))
    plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert plan.targets == ("llvm -compiler=host", "llvm", "llvm -compiler=lib")


def test_bodies_without_end_are_refused(tmp_path: Path) -> None:
    kernel = PlanFileKernel("llvm", ("n",))
    for _ in range(100):
        kernel = PlanFileKernel("llvm", ("n",), bodies=((kernel,),))
    PlanFile((kernel,)).save(tmp_path / "plan.json")
    with pytest.raises(UsageError, match="too deep"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 3}, "schema 3"),
        ({"schema": True}, "schema True"),
        ({"kernels": {}}, "the plan.kernels is '{}'"),
        ({"kernel": []}, "'kernel', which is not known"),
        ({"kernels": [{"target": "llvm"}]}, "the plan.kernels[0] lacks 'nodes'"),
        ({"kernels": [{"target": "llvm", "nodes": []}]}, "the plan.kernels[0].nodes"),
        ({"kernels": [{"target": "llvm", "nodes": ["a"], "tragte": 1}]}, "'tragte'"),
        ({"kernels": [{"target": "llvm", "nodes": ["a"], "branch": 0}]}, "not from 1 to 64"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN.to_json(), **change}))
    with pytest.raises(UsageError) as caught:
        read_plan(tmp_path / "plan.json")
    assert said in str(caught.value) and "plan.json cannot be used" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff"])
def test_what_is_not_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match="not JSON"):
        read_plan(tmp_path / "plan.json")


def test_a_file_that_is_not_there_or_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot write"):
        PLAN.save(tmp_path / "none" / "plan.json")
