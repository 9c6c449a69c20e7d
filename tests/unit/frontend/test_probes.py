"""Probing inputs: of the right shapes and types, and of the kind that they are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper

from collage.frontend import PROBES, Probe, make_inputs, probe_inputs, read_model
from collage.transform import prepare


def model_with(inputs: dict[str, tuple[int, list[int]]], nodes: list[Any], output: str) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(output, T.FLOAT, None)],
        [helper.make_tensor("table", T.FLOAT, [9, 2], [0.0] * 18)],
    )
    return prepare(read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)))


IMAGE = model_with({"x": (T.FLOAT, [1, 3, 4, 5])}, [helper.make_node("Relu", ["x"], ["y"])], "y")
TOKENS = model_with({"ids": (T.INT64, [2, 6])}, [helper.make_node("Gather", ["table", "ids"], ["y"])], "y")
HASHES = model_with({"ids": (T.INT64, [2, 6])}, [helper.make_node("Cast", ["ids"], ["y"], to=T.FLOAT)], "y")


@pytest.mark.parametrize("kind", PROBES)
@pytest.mark.parametrize("model", [IMAGE, TOKENS, HASHES])
def test_shapes_and_types_stay(kind: Probe, model: ir.Model) -> None:
    inputs = make_inputs(model)
    made = probe_inputs(model, kind, inputs)
    for name, array in (made or {}).items():
        assert (array.shape, array.dtype) == (inputs[name].shape, inputs[name].dtype)
    again = probe_inputs(model, kind, inputs)
    assert (made is None) == (again is None)
    assert made is None or all(np.array_equal(again[name], made[name]) for name in made)  # type: ignore[index]


def test_a_black_image_and_constant_planes() -> None:
    inputs = make_inputs(IMAGE)
    zeros, planes = (probe_inputs(IMAGE, kind, inputs) for kind in ("zeros", "constant rows"))  # type: ignore[arg-type]
    assert zeros is not None and not zeros["x"].any()
    assert planes is not None
    assert (planes["x"] == planes["x"][..., :1, :1]).all()
    assert len(np.unique(planes["x"])) == 3


def test_tiny_and_large_numbers_occur_together() -> None:
    made = probe_inputs(IMAGE, "tiny and large", make_inputs(IMAGE))
    assert made is not None
    sizes = np.abs(made["x"])
    assert sizes.min() < 1e-4 and sizes.max() > 1.0


def test_indices_go_to_their_bounds_and_never_beyond() -> None:
    inputs = make_inputs(TOKENS)
    made = {kind: probe_inputs(TOKENS, kind, inputs) for kind in PROBES}
    assert {int(array["ids"].max()) for array in made.values() if array is not None} == {0, 8}
    assert all(array["ids"].min() >= 0 and array["ids"].max() <= 8 for array in made.values() if array is not None)


def test_free_integers_reach_beyond_32_bits() -> None:
    made = probe_inputs(HASHES, "wide integers", make_inputs(HASHES))
    assert made is not None and np.abs(made["ids"]).max() > 2**32


def test_integers_that_were_given_stay() -> None:
    assert probe_inputs(HASHES, "wide integers", make_inputs(HASHES), given=["ids"]) is None
