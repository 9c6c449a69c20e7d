"""Options as fields, as texts, as keywords and as a dict."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import collage
from collage._errors import UsageError
from collage.options import CompileOptions, command_options, compile_options

SAME: list[tuple[str, Any, Any]] = [
    ("max_drop", "0.5%", 0.005),
    ("max_drop", "0.005", 0.005),
    ("max_drop", "50%", 0.5),
    ("accuracy_budget", "1%", 0.01),
    ("time_budget_s", "2m", 120.0),
    ("tune_s", "90", 90.0),
    ("dims", "seq=32:3,512:1", {"seq": {32: 3.0, 512: 1.0}}),
    ("fixed", ["batch=1", "seq=8"], {"batch": 1, "seq": 8}),
    ("percentile", "90", 90),
    ("launch_penalties_s", ("openvino=20",), {"openvino": pytest.approx(20e-6)}),
    ("baseline", "ort", "onnxruntime"),
    ("force", "/Resize:llvm", ("/Resize:llvm",)),
]


@pytest.mark.parametrize(("name", "text", "value"), SAME)
def test_texts_mean_what_values_mean(name: str, text: Any, value: Any) -> None:
    options = compile_options({name: text})
    assert getattr(options, name) == value
    assert getattr(dataclasses.replace(options), name) == value  # Reading twice changes nothing.


def test_keywords_count_more_than_options_and_all_forms_are_taken() -> None:
    assert compile_options() == CompileOptions()
    assert compile_options({"threads": 2}, {"threads": 3}).threads == 3
    assert compile_options(CompileOptions(threads=2), {"seed": 1}) == CompileOptions(threads=2, seed=1)
    for given in (["threads"], 3, "threads"):
        with pytest.raises(UsageError, match="or a dict"):
            compile_options(given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did you mean 'time_budget_s'"):
        collage.compile("m.onnx", ["onnxruntime"], time_budget=60)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="did you mean 'threads'"):
        collage.compile("m.onnx", ["onnxruntime"], options={"thread": 2})
    with pytest.raises(UsageError, match="there is no such file"):
        collage.compile("gone.onnx", ["onnxruntime"], options={"threads": 2}, time_budget_s="2m")


def test_flags_are_distinct_and_defaults_survive_the_command_line() -> None:
    flags = [each.flag for each in command_options().values()]
    assert len(flags) == len(set(flags))
    assert compile_options({}, {}) == CompileOptions()


def test_int8_means_a_drop_that_is_stated() -> None:
    assert CompileOptions(precision="int8", data="x").max_drop == 0.01
    assert CompileOptions(precision="INT8", data="x", max_drop="0.2%").max_drop == 0.002  # type: ignore[arg-type]
    assert CompileOptions(precision="int8", accuracy_budget=0.02).max_drop is None
