"""The examples for servers. Triton's module is on no package index: a small one stands in, with the names that its manual has."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.unit.runtime.conftest import expected, small_model

from collage.testing import executable_of

EXAMPLES = Path(__file__).parents[2] / "examples"


class Tensor:
    """A name and an array, as Triton's is used."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class Config:
    """What the model says of itself."""

    def __init__(self) -> None:
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.add_input, self.add_output = self.inputs.append, self.outputs.append


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    triton = types.ModuleType("triton_python_backend_utils")
    triton.Tensor = Tensor  # type: ignore[attr-defined]
    triton.TritonError = RuntimeError  # type: ignore[attr-defined]
    triton.InferenceResponse = lambda output_tensors, error=None: types.SimpleNamespace(  # type: ignore[attr-defined]
        output_tensors=output_tensors, error=error
    )
    triton.get_input_tensor_by_name = lambda request, name: request.get(name)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, triton.__name__, triton)
    version = shutil.copytree(EXAMPLES / "triton_server" / "model" / "1", tmp_path / "1")
    executable_of(small_model(), "onnxruntime").save(version / "model.collage")
    spec = importlib.util.spec_from_file_location("triton_example", version / "model.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_tritons_backend_describes_the_artefact_and_answers(module: types.ModuleType) -> None:
    config = module.TritonPythonModel.auto_complete_config(Config())
    assert config.inputs == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 6]}]
    assert config.outputs == [
        {"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 200, 2]},
        {"name": "r", "data_type": "TYPE_FP32", "dims": [-1, 6]},
    ]
    model = module.TritonPythonModel()
    model.initialize({})
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    right, wrong, nothing = model.execute([{"x": Tensor("x", x)}, {"x": Tensor("x", x[:, :2])}, {}])
    for tensor in right.output_tensors:
        np.testing.assert_allclose(tensor.as_numpy(), expected(x)[tensor.name()], rtol=1e-4, atol=1e-6)
    assert right.error is None and "6" in str(wrong.error) and "'x'" in str(nothing.error)
    model.finalize()


@pytest.mark.parametrize(
    ("dtype", "named"),
    [
        ("float64", "FP64"),
        ("bfloat16", "BF16"),
        ("int64", "INT64"),
        ("uint8", "UINT8"),
        ("bool", "BOOL"),
        ("string", "STRING"),
    ],
)
def test_types_have_tritons_names(module: types.ModuleType, dtype: str, named: str) -> None:
    port = types.SimpleNamespace(name="x", dtype=dtype, shape=(2, "n", None), default="1")
    told = {"name": "x", "data_type": f"TYPE_{named}", "dims": [2, -1, -1], "optional": True}
    assert module.described(port) == told


@pytest.mark.parametrize(("shape", "dims"), [((), [1]), ((1,), [1]), (None, [-1]), ((0, "n"), [0, -1])])
def test_triton_has_no_scalars(module: types.ModuleType, shape: Any, dims: list[int]) -> None:
    port = types.SimpleNamespace(name="x", dtype="int64", shape=shape, default=None)
    assert module.described(port)["dims"] == dims


def test_scalars_are_vectors_of_one_to_triton(module: types.ModuleType, tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    module.ARTEFACT = executable_of(made, "onnxruntime").save(tmp_path / "scalar.collage")
    model = module.TritonPythonModel()
    model.initialize({})
    right, wrong = model.execute([{"x": Tensor("x", np.ones(count, np.float32))} for count in (1, 2)])
    (tensor,) = right.output_tensors
    assert tensor.as_numpy().tolist() == [-1.0]
    assert right.error is None and wrong.error is not None


def test_texts_of_triton_are_decoded(module: types.ModuleType) -> None:
    texts = np.array([b"a", "\u00e4".encode()], object)
    assert module.decoded(texts).tolist() == ["a", "\u00e4"]
