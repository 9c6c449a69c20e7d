"""An artefact behind Triton's Python backend. The artefact lies beside this file, as ``model.collage``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

import collage

ARTEFACT = Path(__file__).parent / "model.collage"
TYPES = {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}


class TritonPythonModel:
    """One instance of the model: Triton makes it, and calls ``execute`` with what clients sent."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Tell Triton the artefact's inputs and outputs."""
        executable = collage.load(ARTEFACT, lazy=True, trusted=True)
        for port in executable.inputs:
            auto_complete_model_config.add_input(described(port))
        for port in executable.outputs:
            auto_complete_model_config.add_output(described(port))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the kernels: Triton reports the model as ready after that."""
        self.executable = collage.load(ARTEFACT, trusted=True)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request, an error included."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        tensors = {port.name: pb_utils.get_input_tensor_by_name(request, port.name) for port in self.executable.inputs}
        feeds = {name: decoded(tensor.as_numpy()) for name, tensor in tensors.items() if tensor is not None}
        for port in self.executable.inputs:
            if port.shape == () and port.name in feeds and feeds[port.name].size == 1:
                feeds[port.name] = feeds[port.name].reshape(())
        try:
            outputs = self.executable.run(feeds)
        except collage.CollageError as error:
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.atleast_1d(value)) for name, value in outputs.items()]
        )

    def finalize(self) -> None:
        """Let the kernels go."""
        del self.executable


def described(port: Any) -> dict[str, Any]:
    """An input or output in Triton's words: a dimension without a fixed length is -1, and a scalar is a vector of one."""
    axes = (None,) if port.shape is None else port.shape or (1,)
    dims = [length if isinstance(length, int) else -1 for length in axes]
    kind = TYPES.get(port.dtype, str(port.dtype).upper())
    told = {"name": port.name, "data_type": f"TYPE_{kind}", "dims": dims}
    return told if port.default is None else {**told, "optional": True}


def decoded(array: np.ndarray) -> np.ndarray:
    """Texts come as bytes."""
    return np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object else array
