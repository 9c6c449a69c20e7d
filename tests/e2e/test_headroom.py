"""The table of headroom, with toolchains whose times are declared, and from the command line with real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli._app import _main
from collage.compiler import headroom as headroom_module
from collage.compiler.headroom import headroom
from collage.measure.machine_rates import MachineRates
from collage.measure.overheads import Overheads
from collage.toolchains import Registry
from tests.e2e.conftest import model_of
from tests.fixed_time_toolchain import DeclaredToolchain

RATES = MachineRates(1e9, ((1 << 20, 1e9),))


@pytest.fixture
def two_convolutions() -> onnx.ModelProto:
    """Two equal convolutions with a Relu each, a view, and a product."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "m"], ["y"]),
    ]
    draw = np.random.default_rng(0).standard_normal
    shapes = {"w": (4, 4, 3, 3), "v": (4, 4, 3, 3), "m": (256, 3)}
    weights = {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
    float_ = TensorProto.FLOAT
    return model_of(nodes, {"x": (float_, [1, 4, 8, 8])}, {"y": (float_, [1, 3])}, weights)


@pytest.mark.slow
def test_rows_are_what_toolchains_declare(two_convolutions: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom_module, "measure_rates", lambda _: RATES)
    # Where kernels take no time but what they declare, an empty one is run for very long.
    monkeypatch.setattr(headroom_module, "measure_overheads", lambda *_: Overheads(0.0, 0.0))
    toolchains = Registry()
    toolchains.add(DeclaredToolchain(name="one", seconds={"Conv": 4e-3, "MatMul": 1e-3}))
    toolchains.add(DeclaredToolchain(name="two", seconds={"Conv": 8e-3, "MatMul": 5e-4}))
    menu = [f"llvm -compiler={name}" for name in ("one", "two")]
    found = headroom(two_convolutions, menu, toolchains=toolchains)
    assert found["base"] == "one" and found["is_whole"]
    assert found["time_ms"] == pytest.approx(9, rel=0.02)
    assert sum(row["time_ms"] for row in found["rows"]) == pytest.approx(found["time_ms"])
    rows = {row["operators"]: row for row in found["rows"] if row["time_ms"] > 0.01}
    assert list(rows) == ["Conv 3x3+Relu", "MatMul"], "the longest above its limit comes first"
    convolutions, product = rows.values()
    assert (convolutions["count"], convolutions["fastest"]) == (2, "one")
    assert [convolutions["time_ms"], convolutions["fastest_ms"]] == pytest.approx([8, 8], rel=0.02)
    # At 1 GFLOP/s arithmetic takes longer than memory at 1 GB/s.
    assert convolutions["limit_ms"] == pytest.approx(2 * (2 * 4 * 64 * 36) * 1e-6)
    assert convolutions["over_limit"] == pytest.approx(8 / convolutions["limit_ms"], rel=0.02)
    assert (product["fastest"], product["count"]) == ("two", 1)
    assert product["time_ms"] == pytest.approx(1, rel=0.05) and product["fastest_ms"] == pytest.approx(0.5, rel=0.05)
    assert product["limit_ms"] == pytest.approx((256 * 3 * 4 + 256 * 4 + 3 * 4) * 1e-6)


@pytest.mark.slow
def test_without_time_for_chains_the_table_has_the_whole(mixed_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inspect", str(mixed_model), "--headroom", "--threads", "1", "-t", "onnxruntime", "-t", "llvm", "--json"]
    assert _main([*words, "--time-budget", "1s"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["timed_chains"][0] == 0 and found["threads"] == 1
    assert found["time_ms"] == pytest.approx(found["targets"][0]["time_ms"])
    assert sum(row["time_ms"] for row in found["rows"]) == pytest.approx(found["time_ms"])
    assert {row["operators"] for row in found["rows"]} >= {"Conv 3+Relu", "GRU"}
