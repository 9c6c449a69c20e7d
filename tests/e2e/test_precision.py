"""Precision chosen by measurement: samples that calibrate, choose and judge, and what the report says of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage._errors import InputError, UsageError, WrongAnswer
from collage.calibration import ranges, split_samples
from collage.compiler import precision_session
from collage.plan_file import PlanFile, PlanFileKernel
from collage.system.machine import this_machine
from collage.toolchains import Registry, registry
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_rough_toolchain import ERRORS, RoughToolchain

INT8 = pytest.mark.skipif(not this_machine().multiplies_bytes_at_once, reason="8-bit products are no faster here")
BUDGET = 0.1


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions that are large enough to be faster in 8 bits, and a classifier."""
    random = np.random.default_rng(0)
    channels = (8, 64, 64, 64)
    nodes, weights = [], {}
    for i, (into, out) in enumerate(itertools.pairwise(channels)):
        weights[f"w{i}"] = (random.standard_normal((out, into, 3, 3)) * (2 / (9 * into)) ** 0.5).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"r{i}", f"w{i}"], [f"c{i}"], name=f"conv_{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i + 1}"], name=f"relu_{i}"))
    last = len(channels) - 1
    weights["up"] = (random.standard_normal((64, 64, 1, 1)) / 8).astype(np.float32)
    weights["head"] = random.standard_normal((64, 10)).astype(np.float32)
    nodes += [
        helper.make_node("ConvTranspose", [f"r{last}", "up"], ["u"], name="up"),
        helper.make_node("GlobalAveragePool", ["u"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "head"], ["y"], name="head"),
    ]
    ports = {"r0": (TensorProto.FLOAT, [1, 8, 24, 24])}, {"y": (TensorProto.FLOAT, [1, 10])}
    path = tmp_path_factory.mktemp("convolutions") / "model.onnx"
    onnx.save(model_of(nodes, *ports, weights), path)
    return path


def images(count: int, seed: int = 1) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [{"r0": random.standard_normal((1, 8, 24, 24)).astype(np.float32)} for _ in range(count)]


def error(actual: Any, expected: Any) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


MENU = ["onnxruntime -precision=int8"]


@pytest.fixture(scope="module")
def calibrated(convolutions: Path) -> tuple[collage.Executable, int, list[str]]:
    """A compilation after one that was interrupted while it calibrated, the samples that it still ran, and what both told."""
    told: list[str] = []
    collect, fed = ranges.collect_ranges, list[int]()

    def interrupted(worker: Any, samples: Any, *more: Any) -> Any:
        def some() -> Any:
            yield from itertools.islice(samples, 3)
            raise KeyboardInterrupt

        return collect(worker, some(), *more)

    def counted(worker: Any, samples: Any, *more: Any) -> Any:
        return collect(worker, (fed.append(1) or sample for sample in samples), *more)

    options = collage.CompileOptions(accuracy_budget=BUDGET, metric="top1", finals=False)
    arguments: dict[str, Any] = {"options": options, "workers": LENT, "progress": lambda event: told.append(event.text)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_session, "collect_ranges", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collage.compile(convolutions, MENU, data=images(40), **arguments)
        patch.setattr(precision_session, "collect_ranges", counted)
        return collage.compile(convolutions, MENU, data=images(40), **arguments), len(fed), told


@INT8
def test_eight_bits_are_calibrated_judged_and_told_of(
    convolutions: Path, calibrated: tuple[collage.Executable, int, list[str]]
) -> None:
    executable = calibrated[0]
    report = executable.report
    precision = report["precision"]
    assert "int8" in report["kernels"][0]["target"]
    assert precision["data"] == {
        "origin": "the samples given",
        "is_made_up": False,
        "calibrating": 8,
        "choosing": 8,
        "judging": 24,
        "is_independent": True,
    }
    assert precision["operators"] == {"Conv": {"int8": 3}, "ConvTranspose": {"f32": 1}, "Gemm": {"int8": 1}}
    assert precision["not_in_int8"] == [{"precision": "f32", "why": "toolchain", "names": ["up"]}]
    assert [name for kernel in precision["kernels"] for name in kernel["in_float"]] == ["up"]
    assert 0 < precision["metrics"]["max-error"]["interval"][1] <= BUDGET
    assert precision["metrics"]["top1"]["samples"] == 24
    assert 0 <= precision["outside"] < 0.01
    assert 0 < precision["kernels"][0]["own_error"] < BUDGET
    exact = onnxruntime.InferenceSession(convolutions)
    for fed in images(20, seed=2):
        assert error(executable.run(fed)["y"], exact.run(None, fed)[0]) <= BUDGET


@INT8
def test_an_interrupted_calibration_goes_on_where_it_ended(
    calibrated: tuple[collage.Executable, int, list[str]],
) -> None:
    _, fed, told = calibrated
    assert any("3 of 8 calibrating samples are kept" in line for line in told)
    assert fed == 5


@INT8
def test_made_up_samples_keep_the_budget_on_fresh_ones_and_the_report_wants_real_ones(convolutions: Path) -> None:
    options = collage.CompileOptions(accuracy_budget=BUDGET, finals=False)
    executable = collage.compile(convolutions, MENU, options=options, workers=LENT)
    precision = executable.report["precision"]
    assert precision["data"]["is_made_up"]
    assert any("--data" in line for line in precision["summary"])
    assert "int8" in executable.report["kernels"][0]["target"]
    exact = onnxruntime.InferenceSession(convolutions)
    for fed in images(20, seed=3):
        assert error(executable.run(fed)["y"], exact.run(None, fed)[0]) <= BUDGET


@INT8
@pytest.mark.parametrize("swapped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_plan_of_8_bits_on_one_toolchain_and_bf16_on_another_is_right(convolutions: Path, swapped: bool) -> None:
    if not {"int8", "bf16"} <= set(registry().get("openvino").availability().precisions):
        pytest.skip("OpenVINO has no bf16 here")
    names = [node.name for node in onnx.load(convolutions).graph.node]
    targets = ["openvino -precision=bf16", "onnxruntime -precision=int8"]
    first, second = targets if swapped else targets[::-1]
    plan = PlanFile((PlanFileKernel(first, tuple(names[:4])), PlanFileKernel(second, tuple(names[4:]))))
    options = collage.CompileOptions(accuracy_budget=BUDGET, plan=plan, finals=False, baseline="none")
    executable = collage.compile(convolutions, options=options, data=images(40), workers=LENT)
    precision = executable.report["precision"]
    assert [kernel["precision"] for kernel in precision["kernels"]] == (
        ["bf16", "int8"] if swapped else ["int8", "bf16"]
    )
    own = [kernel["own_error"] for kernel in precision["kernels"]]
    judged = precision["metrics"]["max-error"]
    assert 0 < judged["drop"] <= judged["interval"][1] <= BUDGET
    assert all(0 < error < BUDGET for error in own)
    with pytest.raises(WrongAnswer, match=r"--accuracy-budget allows 0\.0001"):
        options = replace(options, accuracy_budget=1e-4)
        collage.compile(convolutions, options=options, data=images(40), workers=LENT)
    exact = onnxruntime.InferenceSession(convolutions)
    for fed in images(20, seed=5):
        assert 0 < error(executable.run(fed)["y"], exact.run(None, fed)[0]) <= BUDGET


@INT8
def test_a_sample_that_the_model_does_not_run_on_is_named(tmp_path: Path) -> None:
    weights = {"table": np.ones((16, 8), np.float32), "w": np.ones((8, 4), np.float32)}
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["r"], name="rows"),
        helper.make_node("MatMul", ["r", "w"], ["y"], name="product"),
    ]
    ports = {"i": (TensorProto.INT64, [2])}, {"y": (TensorProto.FLOAT, [2, 4])}
    onnx.save(model_of(nodes, *ports, weights), tmp_path / "model.onnx")
    samples = [{"i": np.array([3, 5])} for _ in range(10)]
    bad = split_samples(10).calibrate[1]
    samples[bad] = {"i": np.array([3, 16])}
    options = collage.CompileOptions(accuracy_budget=BUDGET)
    menu = ["onnxruntime -precision=int8"]
    with pytest.raises(UsageError, match=f"cannot be run on sample {bad}: .*"):
        collage.compile(tmp_path / "model.onnx", menu, options=options, data=samples, workers=LENT)


@INT8
def test_lengths_of_outputs_may_depend_on_the_precision(convolutions: Path, tmp_path: Path) -> None:
    """A detector returns as many boxes as pass a threshold."""
    model = onnx.load(convolutions)
    model.graph.node.extend(
        [
            helper.make_node("Greater", ["y", "zero"], ["is_high"], name="compare"),
            helper.make_node("Reshape", ["is_high", "flat"], ["flat_is_high"], name="flatten_high"),
            helper.make_node("Compress", ["y", "flat_is_high"], ["chosen"], name="choose"),
        ]
    )
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.int64([-1]), "flat")]
    )
    model.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [None]))
    onnx.save(model, tmp_path / "detector.onnx")
    options = collage.CompileOptions(accuracy_budget=0.02, metric="snr", max_drop=0.02, finals=False)
    executable = collage.compile(tmp_path / "detector.onnx", MENU, options=options, data=images(24, 8), workers=LENT)
    assert "int8" in executable.report["kernels"][0]["target"]
    exact = onnxruntime.InferenceSession(tmp_path / "detector.onnx")
    for fed in images(5, seed=9):
        wanted = exact.run(None, fed)
        assert error(executable.run(fed)["y"], wanted[0]) <= 0.05


@INT8
def test_the_metric_alone_decides_on_samples_of_the_user(tmp_path: Path) -> None:
    """A sharp classifier of many rows: a few of them flip in 8 bits, and on probing inputs nearly all."""
    random, size = np.random.default_rng(0), 512
    weights = {
        f"w{i}": (random.standard_normal((size, size)) * scale).astype(np.float32)
        for i, scale in enumerate((1 / 16, 1 / 16, 0.5))
    }
    nodes = []
    for i in range(3):
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"], name=f"product_{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"x{i + 1}"], name=f"relu_{i}"))
    nodes.append(helper.make_node("Softmax", ["x3"], ["y"], name="softmax"))
    ports = {"x0": (TensorProto.FLOAT, [128, size])}, {"y": (TensorProto.FLOAT, [128, size])}
    onnx.save(model_of(nodes, *ports, weights), tmp_path / "sharp.onnx")
    data = [{"x0": random.standard_normal((128, size)).astype(np.float32)} for _ in range(12)]
    dynamic = "llvm -compiler=onnxruntime -precision=int8-dynamic"
    options = collage.CompileOptions(metric="top1", max_drop=0.2, finals=False)
    report = collage.compile(tmp_path / "sharp.onnx", [dynamic], options=options, data=data, workers=LENT).report
    assert not [line for line in report["warnings"] if "wrong" in line]
    assert all("int8" in kernel["target"] for kernel in report["kernels"][:1])
    assert report["precision"]["metrics"]["top1"]["interval"][1] <= 0.2


@INT8
@pytest.mark.slow
def test_what_hurts_most_is_exempt_where_another_metric_than_the_error_is_missed(convolutions: Path) -> None:
    def compiled(max_drop: float) -> Any:
        options = collage.CompileOptions(metric="snr", max_drop=max_drop)
        menu = ["onnxruntime -precision=int8"]
        return collage.compile(convolutions, menu, options=options, data=images(60, seed=6), workers=LENT).report

    whole = compiled(0.2)
    assert "exempt" not in whole["kernels"][0]["target"]
    drop = whole["precision"]["metrics"]["snr"]["drop"]
    partly = compiled(0.8 * drop)
    assert "exempt" in partly["kernels"][0]["target"]
    assert partly["precision"]["metrics"]["snr"]["interval"][1] <= 0.8 * drop
    assert "sensitive" in {each["why"] for each in partly["precision"]["not_in_int8"]}


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    operators = ["Relu", "Neg", "Tanh", "Abs"]
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"{op.lower()}_{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 64])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 64])}
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    onnx.save(model_of(nodes, *ports, {}), path)
    return path


@pytest.fixture
def rough() -> Registry:
    found = Registry()
    found.add(RoughToolchain())
    return found


def rows(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [{"v0": random.standard_normal((1, 64)).astype(np.float32)} for _ in range(count)]


@pytest.mark.slow
def test_a_largest_drop_grants_reduced_targets(chain: Path, rough: Registry) -> None:
    options = collage.CompileOptions(metric="snr", max_drop=0.1)
    report = collage.compile(chain, "rough", options=options, data=rows(10), toolchains=rough, workers=LENT).report
    assert all("bf16" in kernel["target"] for kernel in report["kernels"])
    assert 0 < report["precision"]["metrics"]["snr"]["drop"] <= 0.1
    options = collage.CompileOptions(metric="snr", max_drop=1e-6)
    report = collage.compile(chain, "rough", options=options, data=rows(10), toolchains=rough, workers=LENT).report
    assert not any("bf16" in kernel["target"] for kernel in report["kernels"])
    assert any("own precision" in line for line in report["precision"]["summary"])


@pytest.mark.slow
def test_one_sample_is_taken_and_the_report_says_that_it_is_too_few(chain: Path, rough: Registry) -> None:
    options = collage.CompileOptions(accuracy_budget=0.1)
    report = collage.compile(chain, "rough", options=options, data=rows(1), toolchains=rough, workers=LENT).report
    assert not report["precision"]["data"]["is_independent"]
    assert any("too few samples" in line for line in report["precision"]["summary"])


@pytest.mark.slow
def test_a_front_is_time_against_error(chain: Path, rough: Registry) -> None:
    options = collage.CompileOptions(front=True, accuracy_budget=0.1)
    report = collage.compile(chain, "rough", options=options, toolchains=rough, workers=LENT).report
    front = report["front"]["points"]
    assert [point["budget"] for point in front] == sorted(point["budget"] for point in front)
    assert front[0]["error"] == 0
    assert front[-1]["time_ms"] < 0.6 * front[0]["time_ms"]
    for point in front:
        assert point["error"] <= point["error_interval"][1] <= point["budget"]


@pytest.mark.parametrize(
    ("arguments", "error_type", "words"),
    [
        ({"data": []}, UsageError, "empty"),
        ({"data": [{"x": np.ones((1, 64), np.float32)}]}, InputError, "unknown input"),
        ({"data": [{"v0": np.ones((1, 63), np.float32)}]}, InputError, r"\[1, 63\]"),
        ({"data": "/nowhere"}, UsageError, "does not exist"),
    ],
)
def test_data_that_does_not_fit_is_a_sentence(
    chain: Path, rough: Registry, arguments: dict[str, Any], error_type: type[Exception], words: str
) -> None:
    options = collage.CompileOptions(accuracy_budget=0.1)
    with pytest.raises(error_type, match=words):
        collage.compile(chain, "rough", options=options, toolchains=rough, workers=LENT, **arguments)


def test_a_metric_that_is_not_there_is_a_sentence(chain: Path, rough: Registry) -> None:
    with pytest.raises(UsageError, match="metric"):
        collage.CompileOptions(metric="nonsense")
    options = collage.CompileOptions(metric="python:nowhere_at_all:f", max_drop=0.1)
    with pytest.raises(UsageError, match="cannot be imported"):
        collage.compile(chain, "rough", options=options, data=rows(5), toolchains=rough, workers=LENT)
    with pytest.raises(UsageError, match="needs a metric"):
        options = collage.CompileOptions(max_drop=0.1)
        collage.compile(chain, "rough", options=options, data=rows(5), toolchains=rough, workers=LENT)


@pytest.mark.slow
def test_a_budget_between_none_and_all_is_used_up_to_one_border(tmp_path: Path, rough: Registry) -> None:
    """Errors are spread evenly, so that every kernel is worth the same price."""
    operators = ["Neg", "Abs"] * 4
    count = len(operators)
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"{op}_{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 64])}, {f"v{count}": (TensorProto.FLOAT, [1, 64])}
    onnx.save(model_of(nodes, *ports, {}), tmp_path / "model.onnx")
    budget = 5.5 * ERRORS["Neg"]
    options = collage.CompileOptions(accuracy_budget=budget, measure_budget=0)
    report = collage.compile(
        tmp_path / "model.onnx", "rough", options=options, data=rows(40), toolchains=rough, workers=LENT
    ).report
    assert report["precision"]["metrics"]["max-error"]["interval"][1] <= budget
    nodes_in = {"bf16" in kernel["target"]: len(kernel["nodes"]) for kernel in report["kernels"]}
    assert len(report["kernels"]) == 2
    assert sum(nodes_in.values()) == count
    assert nodes_in[True] in (4, 5)
