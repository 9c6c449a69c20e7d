"""Options as fields, as texts, as keywords and as a dict."""

from __future__ import annotations

import dataclasses
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from collage._errors import UsageError
from collage.options import CompileOptions, command_options, command_text, compile_options

SAME: list[tuple[str, Any, Any]] = [
    ("max_drop", "0.5%", 0.005),
    ("max_drop", "0.005", 0.005),
    ("max_drop", "50%", 0.5),
    ("accuracy_budget", "1%", 0.01),
    ("time_budget_s", "2m", 120.0),
    ("tune_s", "90", 90.0),
    ("dims", "seq=32:3,512:1", {"seq": {32: 3.0, 512: 1.0}}),
    ("fixed", ["batch=1", "seq=8"], {"batch": 1, "seq": 8}),
    ("dims", "samples=1234567", {"samples": 1234567}),
    ("fixed", ["samples=1234567"], {"samples": 1234567}),
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


def read_back(command: str) -> dict[str, Any]:
    """Return the options of a command as texts."""
    words, found = iter(shlex.split(command)), {}
    flags = {flag: (name, told) for name, told in command_options().items() for flag in told.flag.split("/")}
    for word in words:
        if word in flags:
            name, told = flags[word]
            if told.kind is bool:
                found[name] = not word.startswith("--no-")
            elif told.repeated:
                found.setdefault(name, []).append(next(words))
            else:
                found[name] = next(words)
    return {name: int(text) if command_options()[name].kind is int else text for name, text in found.items()}


@pytest.mark.parametrize("given", [{name: text} for name, text, _ in SAME] + [{}, {"use_tuned": False, "front": True}])
def test_the_command_of_a_report_has_the_same_options(given: dict[str, Any]) -> None:
    options = compile_options(given)
    command = command_text(options, "/home/me/a model.onnx", ["llvm -threads=1"])
    assert command.startswith("collage compile 'a model.onnx' -o model.collage -t 'llvm -threads=1'")
    assert compile_options(read_back(command)) == options


def test_the_command_of_a_report_tells_neither_folders_nor_passwords_nor_arrays(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    options = CompileOptions(
        db="postgresql://me:secret@host/db",
        data=str(tmp_path / "samples"),
        precision="int8",
        inputs={"x": np.zeros(3)},
        limits=("p99<=20ms",),
    )
    expected = (
        "collage compile model.onnx -o model.collage --limit 'p99<=20ms' --precision int8 --data samples --max-drop 1%"
    )
    assert command_text(options, "") == expected


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


@pytest.mark.parametrize(
    "given",
    [
        {"threads": -1},
        {"threads": 2.5},
        {"threads": None},
        {"threads": "-1"},
        {"time_budget_s": math.nan},
        {"time_budget_s": -1},
        {"tune_s": math.nan},
        {"tune_s": math.inf},
        {"measure_budget": -1},
        {"measure_budget": "x"},
        {"finalists": math.nan},
        {"min_gain": math.nan},
        {"min_gain": -1},
        {"seed": -1},
        {"percentile": "nan"},
        {"launch_penalties_s": {"tvm": math.nan}},
        {"launch_penalties_s": {"tvm": "20"}},
        {"fixed": {"n": -1}},
        {"fixed": {"n": math.nan}},
        {"fixed": {"n": "4"}},
        {"fixed": {"n": 10**30}},
        {"fixed": "n=" + "9" * 5000},
        {"dims": {"n": math.nan}},
        {"dims": {"n": 2.5}},
        {"dims": {"n": "128"}},
        {"dims": {"n": 10**30}},
        {"dims": {"n": {3: "x"}}},
        {"dims": {"n": {3: 1e308, 4: 1e308}}},
        {"dims": "n=" + "9" * 5000},
    ],
)
def test_numbers_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        compile_options(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 5) for name in ("db", "dims", "fixed", "inputs", "force", "forbid", "limits", "strategy", "baseline")],
        *[(name, 5) for name in ("passes", "fusion", "devices", "plan", "plan_out", "launch_penalties_s", "precision")],
        *[(name, None) for name in ("dims", "force", "forbid", "limits", "baseline", "passes")],
        *[(name, []) for name in ("precision", "accuracy_budget", "max_drop", "time_budget_s", "strategy", "metric")],
        ("force", (5,)),
        ("forbid", b"a:b"),
        ("limits", [5]),
        ("fixed", {5: 5}),
        ("dims", {5: 5}),
        ("launch_penalties_s", {5: 5}),
        ("launch_penalties_s", {"tvm": 1e300}),
        ("finalists", 1.5),
        ("fusion", "x"),
    ],
)
def test_values_of_other_kinds_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        compile_options({name: value})


def test_numbers_of_numpy_and_texts_are_taken() -> None:
    options = compile_options(
        {"threads": "4", "fixed": {"n": np.int64(8)}, "dims": {"m": {np.int32(3): np.float32(1)}}}
    )
    assert options.threads == 4 and options.fixed == {"n": 8}
    assert compile_options({"time_budget_s": np.float64(2)}).time_budget_s == 2
