"""The pass does what ``compile`` does, but for the comparison end to end, on models as exporters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import NothingCanRun, UsageError
from collage.byoc import PartitionGraph
from collage.compiler import fuse_ops_pass
from collage.compiler.opening import open_model
from collage.graph import kernels_of
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.transform import CollageFuseOps, PassContext
from tests.e2e.conftest import LENT, model_of
from tests.fixed_time_toolchain import DeclaredToolchain

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def lend_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of all tests share their processes, as compilations do."""
    monkeypatch.setattr(
        fuse_ops_pass, "open_model", lambda *given, **named: open_model(*given, **named | {"workers": LENT})
    )


def two_halves(**seconds: float) -> Registry:
    """Relu is cheap on one toolchain, Neg on the other."""
    toolchains = Registry()
    launch = {"": 1e-5}
    toolchains.add(DeclaredToolchain(seconds={**launch, "Relu": 1e-4, "Neg": 1e-2, **seconds}, name="left"))
    toolchains.add(DeclaredToolchain(seconds={**launch, "Relu": 1e-2, "Neg": 1e-4, **seconds}, name="right"))
    return toolchains


def chain(operators: list[str]) -> onnx.ModelProto:
    """A chain of operators without any types in between, and with a dead node and an Identity: nothing is prepared."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    nodes += [
        helper.make_node("Identity", [f"v{len(operators)}"], ["y"], name="same"),
        helper.make_node("Abs", ["v0"], ["unread"], name="dead"),
    ]
    return model_of(nodes, {"v0": (FLOAT, [2, 8])}, {"y": (FLOAT, [2, 8])}, {})


def fused(model: Any, targets: list[str], toolchains: Registry | None = None, **options: Any) -> ir.Model:
    wanted = collage.CompileOptions(**options)
    if isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    with PassContext(config={"collage.enable_collage": True}):
        return CollageFuseOps(targets, options=wanted, toolchains=toolchains)(model)


def kernels(model: ir.Model) -> list[tuple[str, list[str]]]:
    return [
        (call.metadata["Compiler"], [node.op_type for node in call.function if node.op_type != "Constant"])
        for call in kernels_of(model)
    ]


def test_a_model_as_an_exporter_writes_it_is_mixed(tmp_path: Path) -> None:
    mixed = fused(
        chain(["Relu"] * 3 + ["Neg"] * 3),
        ["left", "right"],
        two_halves(),
        db=str(tmp_path / "db"),
        search="exhaustive",
        finals=False,
    )
    assert kernels(mixed) == [("left", ["Relu"] * 3), ("right", ["Neg"] * 3)]
    assert not [node for node in mixed.graph if node.op_type in ("Identity", "Abs")]


@pytest.mark.parametrize("finals", [True, False])
def test_the_pass_takes_what_compile_takes(tmp_path: Path, finals: bool) -> None:
    model = chain(["Relu"] * 4 + ["Neg"] * 5 + ["Relu"] * 4)
    options: dict[str, Any] = {"db": str(tmp_path / "db"), "finals": finals}
    mixed = fused(model, ["left", "right"], two_halves(), **options)
    wanted = collage.CompileOptions(baseline="none", **options)
    executable = collage.compile(model, ["left", "right"], toolchains=two_halves(), options=wanted, workers=LENT)
    assert kernels(mixed) == [
        (kernel["target"].rpartition("=")[2], [node for node in kernel["operators"].split(", ")])
        if "…" not in kernel["operators"]
        else (kernel["target"].rpartition("=")[2], kernels(mixed)[i][1])
        for i, kernel in enumerate(executable.report["kernels"])
    ]


def test_what_the_pass_makes_gives_the_same_answers_without_being_inlined(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((8, 64)).astype(np.float32),
        "b": random.standard_normal(64).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="m"),
        helper.make_node("Add", ["m", "b"], ["a"], name="a"),
        helper.make_node("Relu", ["a"], ["r"], name="r"),
        helper.make_node("Reshape", ["r", "s"], ["y"], name="view"),
    ]
    model = model_of(nodes, {"x": (FLOAT, [4, 8])}, {"y": (FLOAT, [2, 128])}, {**weights, "s": np.array([2, 128])})
    made = fused(model, ["onnxruntime"], db=str(tmp_path / "db"), finals=False)
    assert kernels(made)
    ir.save(made, tmp_path / "made.onnx")
    onnx.checker.check_model(str(tmp_path / "made.onnx"))
    x = random.standard_normal((4, 8)).astype(np.float32)
    plain = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(ort.InferenceSession(tmp_path / "made.onnx").run(None, {"x": x})[0], plain, rtol=1e-5)
    call = next(iter(kernels_of(made)))
    assert call.metadata["cost"].endswith("µs")
    assert call.metadata["rule"]


def test_it_ends_with_a_partitioning_whenever_anything_can_run(tmp_path: Path) -> None:
    model = chain(["Relu", "Neg"] * 8)
    mixed = fused(model, ["left", "right"], two_halves(), db=str(tmp_path / "db"), measure_budget=0, finals=False)
    assert sum(len(operators) for _, operators in kernels(mixed)) == 16


def test_a_toolchain_that_fails_is_done_without(tmp_path: Path) -> None:
    toolchains = two_halves()
    toolchains.add(FakeToolchain("compile:raise", name="broken"))
    mixed = fused(chain(["Relu"] * 3), ["broken", "left"], toolchains, db=str(tmp_path / "db"), finals=False)
    assert {name for name, _ in kernels(mixed)} == {"left"}
    with pytest.raises(NothingCanRun):
        fused(chain(["Relu"] * 3), ["broken"], toolchains, db=str(tmp_path / "db"))


def test_options_that_cannot_hold_are_refused() -> None:
    for options in ({"baseline": "none"}, {"objective": "size"}, {"plan_out": "plan.json"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            CollageFuseOps(["left"], options=collage.CompileOptions(**options), toolchains=two_halves())  # type: ignore[arg-type]
    for options in (
        {"tune_s": 1.0},
        {"accuracy_budget": 1e-2},
        {"measure_budget": 3},
        {"search": "proof"},
        {"max_drop": 0.1},
    ):
        with pytest.raises(UsageError, match=next(iter(options))):
            CollageFuseOps(
                ["left"],
                lambda module, target: 1.0,  # type: ignore[arg-type]
                options=collage.CompileOptions(**options),  # type: ignore[arg-type]
                toolchains=two_halves(),
            )


def test_measured_a_model_with_kernels_is_partitioned_around_them(tmp_path: Path) -> None:
    """The second Relu is given to the toolchain on which it is slow, and stays there."""
    given = ir.from_proto(chain(["Relu", "Relu", "Neg", "Neg", "Relu", "Relu"]))
    marked = next(node for node in given.graph if node.name == "n1")
    marked.metadata_props["target"] = "llvm -compiler=right"
    by_hand = PartitionGraph()(given)
    options: dict[str, Any] = {"db": str(tmp_path / "db"), "search": "exhaustive", "finals": False}
    mixed = fused(by_hand, ["left", "right"], two_halves(), **options)
    assert kernels(mixed) == [
        ("left", ["Relu"]),
        ("right", ["Relu"]),
        ("right", ["Neg"] * 2),
        ("left", [*["Relu"] * 2, "Identity"]),
    ]
