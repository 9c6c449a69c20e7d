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
    assert (plan.to_json()["schema"], PLAN.to_json()["schema"]) == (2, 1)


def test_bodies_without_end_are_refused(tmp_path: Path) -> None:
    kernel = PlanFileKernel("llvm", ("n",))
    for _ in range(100):
        kernel = PlanFileKernel("llvm", ("n",), bodies=((kernel,),))
    PlanFile((kernel,)).save(tmp_path / "plan.json")
    with pytest.raises(UsageError, match="nested too deeply"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 3}, "schema 3"),
        ({"schema": True}, "schema True"),
        ({"kernels": {}}, "'kernels' of the plan is not a list"),
        ({"kernel": []}, "'kernel', which is not known"),
        ({"model": 3}, "'model' of the plan is not a text"),
        ({"kernels": [{"target": "llvm"}]}, "kernel 1 of the plan has no 'nodes'"),
        ({"kernels": [{"target": "llvm", "nodes": []}]}, "'nodes' of kernel 1"),
        ({"kernels": [{"target": "llvm", "nodes": [3]}]}, "'nodes' of kernel 1"),
        ({"kernels": [{"target": 1, "nodes": ["a"]}]}, "'target' of kernel 1"),
        ({"kernels": [{"target": "llvm", "nodes": ["a"], "tragte": 1}]}, "'tragte'"),
        ({"kernels": [{"target": "llvm", "nodes": ["a"], "parts": [{"label": "x"}]}]}, "a part of kernel 1"),
        ({"kernels": [{"target": "llvm", "nodes": ["a"], "device": 1}]}, "'device' of kernel 1"),
        ({"kernels": [3]}, "kernel 1 of the plan is not a JSON object"),
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


def test_parts_in_parts_without_end_are_refused() -> None:
    part: dict[str, Any] = {"label": "x", "nodes": ["a"]}
    for _ in range(50):
        part = {"label": "x", "nodes": ["a"], "parts": [part]}
    with pytest.raises(UsageError, match="nested too deeply"):
        PlanFile.from_json({"schema": 1, "kernels": [{"target": "llvm", "nodes": ["a"], "parts": [part]}]})


def test_a_file_that_is_not_there_or_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot write"):
        PLAN.save(tmp_path / "none" / "plan.json")
