"""Tuned kernels are made from records, and bad records are errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.toolchain.tvm_cases import PAD, convolution, plain, product

from collage.target import Target
from collage.testing._toolchain_kernels import KernelCase
from collage.toolchains import TUNED, CompileError, LoadOptions, Tuner, TuningSession, Unsupported
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


def test_tuning_names_equal_loops_alike_and_only_those_that_reduce(tmp_path: Path) -> None:
    toolchain = TvmToolchain()

    def names(case: KernelCase) -> Sequence[str]:
        return toolchain.tuning_workloads(case.model(), TARGET, tmp_path)

    assert isinstance(toolchain, Tuner)
    first, other = product((6, 96), (96, 128), "y = Add (c, bias)"), product((6, 96), (96, 64), "y = Add (c, bias)")
    renamed = KernelCase(
        "renamed", first.text.replace("(c,", "(k,").replace("{c =", "{k ="), first.inputs, first.weights
    )
    assert len(names(first)) == 1
    assert names(first) == names(renamed)
    assert set(names(first)).isdisjoint(names(other))
    assert names(plain((64, 257), 2, "a = Exp (x) y = Add (a, one)")) == ()


def test_tuned_kernels_are_made_from_their_records_and_no_slower(tmp_path: Path) -> None:
    toolchain, case = TvmToolchain(), product((6, 64), (64, 192), "a = Add (c, bias) y = Gelu (a)")
    target = Target.parse("llvm -trials=6 -seed=3")
    with pytest.raises(Unsupported, match="not tuned"):
        toolchain.compile(case.model(), target, tmp_path)
    slots: list[str] = []

    @contextmanager
    def slot(name: str) -> Iterator[None]:
        slots.append(name)
        yield
        slots.append(f"/{name}")

    session = TuningSession(60.0, building=lambda: slot("build"), measuring=lambda: slot("time"))
    records = toolchain.tune(case.model(), target, tmp_path, session)
    assert set(records) == set(toolchain.tuning_workloads(case.model(), target, tmp_path))
    assert slots == ["build", "/build"] + ["build", "/build", "time", "/time"] * 6
    known = TuningSession(0.0, known=records, measuring=lambda: pytest.fail("known already"))
    assert toolchain.tune(case.model(), target, tmp_path, known) == records

    tuned = case.model()
    tuned.metadata_props[TUNED] = json.dumps(dict(records))
    loaded = toolchain.load(toolchain.compile(tuned, target, tmp_path), target, tmp_path, LoadOptions(threads=2))
    usual = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions(threads=2))
    np.testing.assert_allclose(loaded(case.inputs)[0], usual(case.inputs)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}'])
def test_records_that_are_none_are_an_error_and_no_crash(text: str, tmp_path: Path) -> None:
    model = product((4, 8), (8, 16), "y = Identity (c)").model()
    model.metadata_props[TUNED] = text
    with pytest.raises(CompileError, match="tuning records"):
        TvmToolchain().compile(model, Target.parse("llvm -trials=6 -seed=3"), tmp_path)


def test_a_record_of_nonsense_is_an_error_and_no_crash(tmp_path: Path) -> None:
    toolchain, model = TvmToolchain(), product((4, 8), (8, 16), "y = Identity (c)").model()
    model.metadata_props[TUNED] = json.dumps({"another": "[]"})
    with pytest.raises(CompileError, match="another kernel"):
        toolchain.compile(model, Target.parse("llvm -trials=6 -seed=3"), tmp_path)
    for text in ("null", "[]", '[[["Nonsense", [], {}, []], []], [1.0], {"kind": "llvm"}, []]'):
        names = toolchain.tuning_workloads(model, TARGET, tmp_path)
        model.metadata_props[TUNED] = json.dumps(dict.fromkeys(names, text))
        with pytest.raises(CompileError):
            toolchain.compile(model, Target.parse("llvm -trials=6 -seed=3"), tmp_path)


@pytest.mark.slow
def test_tuning_a_convolution_finds_what_is_at_least_as_fast(tmp_path: Path) -> None:
    toolchain, case = TvmToolchain(), convolution(28, 128, 128, 3, 1, PAD, "y = Relu (c)")
    target, model = Target.parse("llvm -trials=16 -seed=1"), case.model()
    model.metadata_props[TUNED] = json.dumps(
        dict(toolchain.tune(model, target, tmp_path, TuningSession(120.0, threads=1)))
    )
    options, seconds = LoadOptions(threads=1), []
    for goal, kernel in ((TARGET, case.model()), (target, model)):
        loaded, times = toolchain.load(toolchain.compile(kernel, goal, tmp_path), goal, tmp_path, options), []
        for _ in range(15):
            began = time.process_time()
            loaded(case.inputs)
            times.append(time.process_time() - began)
        seconds.append(min(times))
    assert seconds[1] < 1.25 * seconds[0]
