"""Plans that users decide: from files, by choices for single operators, and from partitioned models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import NothingCanRun, UsageError, WrongAnswer
from collage.byoc import partition_for
from collage.compiler.dry_run import dry_run
from collage.measure.one_kernel import measure
from collage.plan_file import PlanFile, PlanFileKernel, read_plan
from collage.status import Status
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.workers.worker import Worker
from tests.e2e.conftest import LENT, MENU, model_of
from tests.e2e.declared_chain import chain, compiled, declare, fakes, plan_of

WORKERS: dict[str, Worker] = {}
LEFT, RIGHT = "llvm -compiler=left", "llvm -compiler=right"


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in WORKERS.values():
        worker.kill()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return declare(monkeypatch)


def assert_right(executable: collage.Executable) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    (y,) = executable.run({"v0": x}).values()
    np.testing.assert_array_equal(y, np.maximum(x, 0))  # Four times negated.


def test_a_plan_that_was_written_is_built_again_as_it_was(measured: list[str], tmp_path: Path) -> None:
    first = compiled(tmp_path, WORKERS, plan_out=tmp_path / "plan.json")
    plan = read_plan(tmp_path / "plan.json")
    assert [(kernel.target, kernel.nodes) for kernel in plan.kernels] == [
        (RIGHT, ("n0", "n1", "n2", "n3")),
        (LEFT, ("n4", "n5", "n6", "n7")),
    ]
    again = compiled(tmp_path, WORKERS, plan=tmp_path / "plan.json")
    assert plan_of(again) == plan_of(first)
    assert_right(again)


def test_a_plan_that_was_edited_is_built_however_slow_it_is(measured: list[str], tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(8)]
    plan = PlanFile(
        (
            PlanFileKernel("right", tuple(names[6:])),
            PlanFileKernel("left", tuple(names[:1])),
            PlanFileKernel(RIGHT, tuple(names[1:6])),
        )
    )
    executable = compiled(tmp_path, WORKERS, plan=plan)
    assert plan_of(executable) == [("left", 1), ("right", 5), ("right", 2)]
    assert_right(executable)
    onnx.save(chain(), tmp_path / "m.onnx")
    options = collage.CompileOptions(finals=False, db=str(tmp_path / "db.sqlite"))
    built = collage.build(tmp_path / "m.onnx", plan, options=options, toolchains=fakes(), workers=WORKERS)
    assert plan_of(built) == plan_of(executable)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        ([("left", range(7))], "no kernel has operator 'n7'"),
        ([("left", range(8)), ("right", [3])], "'n3' is in kernels 1 and 2"),
        ([("left", [0, 0]), ("left", range(1, 8))], "'n0' is in kernels 1 and 1"),
        ([("left", [0, 2]), ("right", [1]), ("left", range(3, 8))], "a path leaves it and comes back"),
        ([("left", range(9))], "no operator 'n8'"),
        ([("lleft", range(8))], "lleft"),
        ([("openvino", range(8))], "openvino"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_the_reason(
    kernels: list[tuple[str, Any]], said: str, measured: list[str], tmp_path: Path
) -> None:
    plan = PlanFile(tuple(PlanFileKernel(target, tuple(f"n{i}" for i in nodes)) for target, nodes in kernels))
    with pytest.raises(UsageError) as caught:
        compiled(tmp_path, WORKERS, plan=plan)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "wanted"),
    [
        ({"force": ("n0:left",)}, [("left", 1), ("right", 3), ("left", 4)]),
        ({"force": ("Neg:right",)}, [("right", 8)]),
        ({"forbid": ("right:n*",)}, [("left", 8)]),
        ({"forbid": ("right:Relu",)}, [("left", 8)]),
        ({"force": tuple(f"n{i}:right" for i in range(4)), "forbid": ("right:Neg",)}, [("right", 4), ("left", 4)]),
    ],
)
def test_choices_for_operators_hold(
    choices: dict[str, Any], wanted: list[tuple[str, int]], measured: list[str], tmp_path: Path
) -> None:
    executable = compiled(tmp_path, WORKERS, search="exhaustive", **choices)
    assert plan_of(executable) == wanted
    assert_right(executable)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"force": ("n0",)}, "write NODE:TARGET"),
        ({"forbid": ("n0",)}, "write TARGET:NODE"),
        ({"force": ("m0:left",)}, "did you mean"),
        ({"force": ("n0:lft",)}, "not on the menu, which is left, right"),
        ({"forbid": ("tensorrt:n0",)}, "not on the menu"),
        ({"force": ("n*:left", "n3:right")}, "'n3' is forced twice"),
    ],
)
def test_choices_that_mean_nothing_are_refused(
    choices: dict[str, Any], said: str, measured: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        compiled(tmp_path, WORKERS, **choices)
    assert said in str(caught.value)


def test_an_operator_that_the_forced_target_refuses_is_told_with_the_reason(tmp_path: Path) -> None:
    toolchains = fakes("left")
    toolchains.add(FakeToolchain("compile:refuse", name="never"))
    onnx.save(chain(), tmp_path / "m.onnx")
    options = collage.CompileOptions(finals=False, db=str(tmp_path / "db.sqlite"), force=("n0:never",))
    with pytest.raises(NothingCanRun, match=r"'n0' \(Relu\) cannot be forced as 'n0:never' says: never: "):
        collage.compile(tmp_path / "m.onnx", ["left", "never"], toolchains=toolchains, options=options, workers=WORKERS)


def test_a_plan_and_choices_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="cannot be combined with it"):
        collage.CompileOptions(plan=PlanFile(()), force=("a:b",))


def test_a_dry_run_measures_and_builds_nothing(measured: list[str], tmp_path: Path) -> None:
    options = collage.CompileOptions(db=str(tmp_path / "db.sqlite"))
    found = dry_run(chain(), ["left", "right"], options=options, toolchains=fakes())
    assert not measured
    assert [(row["target"], row["operators"]) for row in found["targets"]] == [(LEFT, 8), (RIGHT, 8)]
    assert found["candidates"] >= found["distinct"] > found["measured_at_most"] > 0
    low, high = found["expected_minutes"]
    assert 0 < low <= high
    json.dumps(found, allow_nan=False)
    chosen = dry_run(chain(), ["left", "right"], options=collage.CompileOptions(force=("n*:left",)), toolchains=fakes())
    assert chosen["targets"][1]["candidates"] == 0


@pytest.mark.parametrize("form", ["model", "proto", "bytes", "file"])
def test_a_partitioned_model_is_built_as_it_stands(form: str, mixed_model: Path, tmp_path: Path) -> None:
    partitioned = partition_for(ir.load(mixed_model), "openvino")
    source: Any = partitioned
    if form != "model":
        ir.save(partitioned, tmp_path / "p.onnx")
        source = tmp_path / "p.onnx" if form == "file" else onnx.load(tmp_path / "p.onnx")
        source = source.SerializeToString() if form == "bytes" else source
    executable = collage.build(source, workers=LENT)
    x = {"x": np.random.default_rng(5).standard_normal((1, 8, 50)).astype(np.float32)}
    original = ort.InferenceSession(mixed_model, providers=["CPUExecutionProvider"])
    for ours, theirs in zip(executable.run(x).values(), original.run(None, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    loaded = collage.load(executable.save(tmp_path / "p.collage"))
    assert [kernel.target for kernel in loaded.recipe.kernels] == [k.target for k in executable.recipe.kernels]
    assert executable.explain().kernels


def test_what_is_in_no_kernel_is_left_to_the_host(measured: list[str]) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain(name="left"))
    partitioned = partition_for(ir.from_proto(chain()), "left", toolchains=toolchains)
    # Edited by hand: all operators after the kernel's own model are plain.
    extra = ir.Node("", "Abs", [partitioned.graph.outputs[0]], name="extra")
    extra.outputs[0].name = "absolute"
    extra.outputs[0].type, extra.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, 8])
    partitioned.graph.append(extra)
    partitioned.graph.outputs[0] = extra.outputs[0]
    executable = collage.build(partitioned, toolchains=toolchains, workers=WORKERS)
    assert [kernel.target for kernel in executable.recipe.kernels] == [LEFT, "llvm -compiler=host"]
    (y,) = executable.run({"v0": -np.ones((1, 8), np.float32)}).values()
    np.testing.assert_array_equal(y, np.zeros((1, 8)))
    told = executable.explain()
    operators = [node.op_type for node in chain().graph.node]
    assert told.record.op_types == (*operators, "Abs") and told.node("extra").chosen == told.kernels[1].chosen
    assert "?" not in str(told) and "as it was given" in str(told)


def test_a_partitioned_model_that_computes_wrongly_is_not_returned() -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("run:wrong", name="bad"))
    partitioned = partition_for(ir.from_proto(chain()), "bad", toolchains=toolchains)
    with pytest.raises(WrongAnswer, match="the partitioned model is wrong"):
        collage.build(partitioned, toolchains=toolchains, workers=WORKERS)


@pytest.mark.parametrize("finals", [True, False])
def test_a_given_plan_with_a_wrong_kernel_is_refused_even_if_its_outputs_are_right(
    finals: bool, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="n0"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="n1"),
        helper.make_node("Greater", ["b", "c"], ["g"], name="n2"),  # Everything is greater, right or wrong.
        helper.make_node("Cast", ["g"], ["y"], name="n3", to=TensorProto.FLOAT),
    ]
    ports = {"x": (TensorProto.FLOAT, [1, 8])}, {"y": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(nodes, *ports, {"c": np.full(1, -100.0, np.float32)}), tmp_path / "m.onnx")
    toolchains = fakes("left")
    toolchains.add(FakeToolchain("run:wrong", name="bad"))
    plan = PlanFile((PlanFileKernel("bad", ("n0", "n1")), PlanFileKernel("left", ("n2", "n3"))))
    options = collage.CompileOptions(finals=finals, db=str(tmp_path / "db.sqlite"), plan=plan)
    with pytest.raises(WrongAnswer, match="output 'b': differs"):
        collage.compile(tmp_path / "m.onnx", ["left", "bad"], toolchains=toolchains, options=options, workers=WORKERS)


def test_a_model_without_kernels_is_refused_with_the_way_to_get_some() -> None:
    with pytest.raises(UsageError, match=r"collage\.compile finds kernels"):
        collage.build(chain())


def test_one_kernel_is_measured_with_an_interval(tmp_path: Path) -> None:
    cost = measure(chain(), "onnxruntime", db=str(tmp_path / "db.sqlite"), workers=LENT)
    assert cost.status is Status.OK and cost.interval is not None
    assert cost.interval.low <= cost.cost.seconds <= cost.interval.high
    again = collage.measure(chain(), MENU[1], db=str(tmp_path / "db.sqlite"), workers=LENT)  # type: ignore[operator]
    assert again.is_recorded and again.cost == cost.cost


def test_a_kernel_that_is_wrong_costs_nothing_that_counts(tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("run:wrong", name="bad"))
    cost = measure(chain(), "bad", db=str(tmp_path / "db.sqlite"), toolchains=toolchains)
    assert cost.cost.is_invalid and cost.interval is None and cost.status is Status.WRONG and cost.reason
