"""How refusals are worded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.compiler.refusals import in_short, nothing_to_choose, told_once
from collage.target import Target
from collage.toolchains import NOT_INSTALLED, Availability


def test_a_shared_reason_is_said_once() -> None:
    reasons = {
        "cuda": ["no driver", "no torch"],
        "tensorrt": ["not installed", "no driver", "no torch"],
        "iree": ["no"],
    }
    assert told_once(reasons) == "cuda, tensorrt: no driver, no torch; tensorrt: not installed; iree: no"


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from(["R1", "R2", "R3"]), min_size=1), min_size=1))
def test_every_reason_is_said_just_once_of_all_that_it_holds_for(reasons: dict[str, list[str]]) -> None:
    told = [part.split(": ") for part in told_once(reasons).split("; ")]
    said = [(name, reason) for names, texts in told for name in names.split(", ") for reason in texts.split(", ")]
    assert sorted(said) == sorted({(name, reason) for name, texts in reasons.items() for reason in texts})
    assert len([reason for _, texts in told for reason in texts.split(", ")]) == len(
        {r for t in reasons.values() for r in t}
    )


def test_messages_lose_folders_and_places_in_sources() -> None:
    workspace = Path("/tmp/collage_scratch_q")
    text = "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/collage_scratch_q/k.onnx failed:\n  no op"
    assert in_short(text, workspace) == "Load model from k.onnx failed: no op"
    text = (
        "onnxruntime 1.31: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Reshape "
        "node. Name:'rs' Status Message: /onnxruntime_src/core/helper.h:45 void onnxruntime::ReshapeHelper(const T&, int) "
        "The input tensor cannot be reshaped to the requested shape"
    )
    assert (
        in_short(text, workspace) == "node 'rs' (Reshape): The input tensor cannot be reshaped to the requested shape"
    )


def menu(**reasons: str | None) -> dict[Target, Availability]:
    """Targets by the name of their toolchain; None if it can be used."""
    return {
        Target.parse(f"llvm -compiler={name}"): Availability(reason is None, reason=reason)
        for name, reason in reasons.items()
    }


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (menu(a=None, b=None, c=NOT_INSTALLED), None),
        (menu(a=None), None),
        (menu(a=None, b="no compiler"), None),
        (menu(a="no compiler", b=NOT_INSTALLED), None),
        (menu(a=None, b=NOT_INSTALLED), "a is the only toolchain .*brings b$"),
        (menu(a=None, b=NOT_INSTALLED, c="no compiler", d=NOT_INSTALLED), "a is the only toolchain .* brings b, d$"),
        (menu(a=NOT_INSTALLED, b=NOT_INSTALLED), "no toolchain is installed, .*: pip install '.*cpu.'"),
    ],
)
def test_one_sentence_says_that_there_is_nothing_to_choose_from(
    found: dict[Target, Availability], told: str | None
) -> None:
    said = nothing_to_choose(found)
    assert said is None if told is None else re.match(told, str(said))
    assert said is None or "nothing to choose from" in said


def test_variants_of_one_toolchain_are_no_choice() -> None:
    plain, one_thread = (Target.parse(f"llvm -compiler=a{option}") for option in ("", " -threads=1"))
    there = Availability(True)
    found = {plain: there, one_thread: there, **menu(b=NOT_INSTALLED)}
    assert "nothing to choose" in str(nothing_to_choose(found))
