"""Which loops TVM computes row by row, and how: a rule that does not fit is passed over silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.target import Target
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

WEIGHTS = {
    "scale": np.ones(320, "f"),
    "w": np.ones((96, 160), "f"),
    "turned": np.ones((160, 96), "f"),
    "filter": np.ones((16, 320, 3, 3), "f"),
    "middle": np.array([1]),
    "last": np.array([-1]),
}
ROWS = {
    "softmax": "(float[12,64,96] x) => (float[12,64,96] y) {y = Softmax (x)}",
    "groups": "(float[1,320,8,8] x) => (float[1,320,8,8] y) {y = GroupNormalization <num_groups = 32> (x, scale, scale)}",
    "layer": "(float[40,320] x) => (float[40,320] y) {y = LayerNormalization (x, scale, scale)}",
    "any_rows": "(float[N,320] x) => (float[N,320] y) {y = LayerNormalization (x, scale, scale)}",
    "largest": "(float[40,320] x) => (float[40,1] y) {y = ReduceMax (x, last)}",
    "one": "(float[1,4096] x) => (float[1,4096] y) {y = LogSoftmax (x)}",
    "odd": "(float[400,97] x) => (float[400,1] y) {y = ReduceSum (x, last)}",
}
OTHERS = {
    "product": "(float[40,96] x) => (float[40,160] y) {y = MatMul (x, w)}",
    "turned": "(float[40,96] x) => (float[40,160] y) {y = Gemm <transB = 1> (x, turned)}",
    "vector": "(float[1,96] x) => (float[1,160] y) {y = MatMul (x, w)}",
    "convolution": "(float[1,320,8,8] x) => (float[1,16,6,6] y) {y = Conv (x, filter)}",
    "middle": "(float[8,96,32] x) => (float[8,1,32] y) {y = ReduceSum (x, middle)}",
    "elementwise": "(float[40,320] x) => (float[40,320] y) {y = Mul (x, scale)}",
}


def scheduled(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The schedules that the rule made while a kernel was compiled, as text."""
    from collage.toolchains.tvm.row_schedules import Rows

    apply, made = Rows.apply, list[str]()

    def noted(*arguments: Any) -> Any:
        schedule = apply(*arguments)
        made.extend([] if schedule is None else [schedule.mod.script()])
        return schedule

    monkeypatch.setattr(Rows, "apply", noted)
    model = parsed_kernel(
        "k", text, {name: array for name, array in WEIGHTS.items() if f"{name}" in text.split("{")[1]}
    )
    TvmToolchain().compile(model, Target.parse("llvm"), folder)
    return made


@pytest.mark.parametrize("name", ROWS)
def test_what_reduces_neighbours_is_computed_row_by_row(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = scheduled(ROWS[name], tmp_path, monkeypatch)
    assert script.count("T.parallel(") == (name != "one")
    in_vectors = name not in ("odd", "largest")
    assert ("_rf_update" in script) == in_vectors
    assert script.count("T.vectorized(") >= 2 * in_vectors


def test_nothing_is_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = scheduled(ROWS["softmax"], tmp_path, monkeypatch)
    assert script.count("T.exp(") == 1


def test_a_group_of_channels_is_added_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = scheduled(ROWS["groups"], tmp_path, monkeypatch)
    assert "T.parallel(T.int64(32))" in script


@pytest.mark.parametrize("name", OTHERS)
def test_what_needs_tiles_is_left_to_the_next_rule(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not scheduled(OTHERS[name], tmp_path, monkeypatch)
