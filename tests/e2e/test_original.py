"""What an executable computes is what the model computes as the user gave it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper

import collage
from collage.runtime import Executable
from collage.testing import FakeToolchain
from collage.toolchains import Registry, registry
from collage.transform import AlterOpLayout, EliminateIdentity, FunctionPass, PassContext
from tests.e2e.conftest import LENT, model_of
from tests.figures import figures

F = T.FLOAT


def compiled(model: Any, folder: Path, *targets: str, fake: str = "", **options: Any) -> Executable:
    toolchains = Registry()
    for toolchain in registry():
        toolchains.add(toolchain)
    toolchains.add(FakeToolchain(fake))
    chosen = collage.CompileOptions(db=str(folder / "t.sqlite"), finals=False, allow_host=True, **options)
    return collage.compile(model, targets or ["onnxruntime"], options=chosen, toolchains=toolchains, workers=LENT)


def original(model: onnx.ModelProto, feeds: dict[str, Any]) -> Sequence[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: Sequence[Any] = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    return found


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def logarithm(epsilon: float) -> onnx.ModelProto:
    nodes = [node("Add", "x e", "a"), node("Log", "a", "y")]
    return model_of(nodes, {"x": (F, [4])}, {"y": (F, [4])}, {"e": np.float32(epsilon)})


def layer_norm(epsilon: float, width: int = 8) -> onnx.ModelProto:
    nodes = [
        node("ReduceMean", "x", "mean", axes=[-1]),
        node("Sub", "x mean", "d"),
        node("Mul", "d d", "dd"),
        node("ReduceMean", "dd", "variance", axes=[-1]),
        node("Add", "variance e", "s"),
        node("Sqrt", "s", "r"),
        node("Div", "d r", "y"),
    ]
    shape = (F, [3, width])
    return model_of(nodes, {"x": shape}, {"y": shape}, {"e": np.float32(epsilon)})


@pytest.mark.parametrize(
    ("make", "epsilon"),
    [
        (logarithm, 1e-9),
        (logarithm, 1e-30),
        (layer_norm, 1e-12),
        *(pytest.param(logarithm, epsilon, marks=pytest.mark.slow) for epsilon in (1e-12, 1e-6)),
        *(pytest.param(layer_norm, epsilon, marks=pytest.mark.slow) for epsilon in (1e-9, 1e-30, 1e-6)),
    ],
)
def test_small_constants_are_part_of_the_model(make: Any, epsilon: float, tmp_path: Path) -> None:
    model = make(epsilon)
    executable = compiled(model, tmp_path)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    for x in (np.zeros(shape, np.float32), np.full(shape, 0.5, np.float32), np.eye(*shape[-2:], dtype=np.float32)):
        feeds = {"x": np.broadcast_to(x, shape) if x.ndim == len(shape) else x[0]}
        (wanted,) = original(model, feeds)
        np.testing.assert_allclose(executable.run(feeds)["y"], wanted, 1e-4, 1e-5)
    numerics = executable.report["numerics"]
    assert numerics["ok"] and numerics["reference"]["model"] == "original"


@pytest.mark.parametrize(
    ("guilty", "passes"), [(EliminateIdentity, "prepare"), (AlterOpLayout, "prepare,AlterOpLayout")]
)
def test_a_pass_that_changes_what_the_model_computes_is_left_out(
    guilty: type[FunctionPass], passes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def negate(self: FunctionPass, graph: ir.Graph, model: ir.Model, context: PassContext) -> ir.Graph:
        """Make a Neg of every Relu."""
        for one in list(graph):
            if one.op_type == "Relu":
                one.op_type = "Neg"
        return graph

    monkeypatch.setattr(guilty, "transform_function", negate)
    model = model_of([node("Relu", "x", "h"), node("Exp", "h", "y")], {"x": (F, [5])}, {"y": (F, [5])}, {})
    executable = compiled(model, tmp_path, passes=passes)
    feeds = {"x": np.linspace(-2, 2, 5, dtype=np.float32)}
    np.testing.assert_allclose(executable.run(feeds)["y"], original(model, feeds)[0], 1e-5)
    assert executable.report["numerics"]["reference"]["left_out"] == [guilty.__name__]
    assert any(f"without {guilty.__name__}" in warning for warning in executable.report["warnings"])
    again = compiled(model, tmp_path, passes=passes)
    assert again.report["numerics"]["reference"]["left_out"] == [guilty.__name__]


def test_a_kernel_that_is_wrong_on_a_black_image_alone_is_wrong(tmp_path: Path) -> None:
    model = model_of([node("Softplus", "x", "y")], {"x": (F, [2, 3])}, {"y": (F, [2, 3])}, {})
    (single,) = figures(compiled(model, tmp_path, "fake", fake="run:black").report)["singles"]
    assert single["status"] == "wrong"
    assert "on zeros" in single["reason"]


def test_what_rounding_errors_decide_is_not_held_against_a_kernel(tmp_path: Path) -> None:
    # Rows of equal numbers: their normalisation is a rounding error divided by its own size.
    model = layer_norm(1e-14, width=7)
    executable = compiled(model, tmp_path, "llvm", "onnxruntime", "openvino")
    assert [single["status"] for single in figures(executable.report)["singles"]] == ["ok"] * 3, figures(
        executable.report
    )["singles"]
    assert "constant rows" in executable.report["numerics"]["reference"]["probes"]


def test_drawn_noise_is_not_compared_and_the_rest_is(tmp_path: Path) -> None:
    nodes = [node("RandomNormalLike", "x", "n"), node("Add", "x n", "noisy"), node("Relu", "x", "clean")]
    model = model_of(nodes, {"x": (F, [2, 3])}, {"noisy": (F, [2, 3]), "clean": (F, [2, 3])}, {})
    executable = compiled(model, tmp_path)
    assert executable.report["numerics"]["reference"]["random"] == ["noisy"]
    x = np.ones((2, 3), np.float32)
    assert not np.array_equal(executable.run({"x": x})["noisy"], executable.run({"x": x})["noisy"])
    (single,) = figures(compiled(model, tmp_path, "fake", fake="run:wrong").report)["singles"]
    assert (single["status"] == "wrong" and "clean" in str(single["reason"])) or "differs" in str(single["reason"])


@pytest.mark.parametrize("numbers", ["ids", pytest.param("halves", marks=pytest.mark.slow)])
def test_integers_beyond_32_bits_are_met_before_a_user_meets_them(numbers: str, tmp_path: Path) -> None:
    nodes = [node("Mul", "ids p", "m"), node("Mod", "m b", "slot"), node("Gather", "table slot", "y")]
    constants = {
        "p": np.int64(1_000_003),
        "b": np.int64(97),
        "table": np.random.default_rng(0).standard_normal((97, 4)).astype(np.float32),
    }
    model = model_of(nodes, {"ids": (T.INT64, [6])}, {"y": (F, [6, 4])}, constants)
    executable = compiled(model, tmp_path, "openvino", "onnxruntime")
    ids = np.arange(6) * 40_000_003 + (2**34 if numbers == "ids" else 1)
    np.testing.assert_allclose(executable.run({"ids": ids})["y"], original(model, {"ids": ids})[0], 1e-6)
