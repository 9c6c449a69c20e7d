"""Second moments of the inputs of a model's products, and their weights rounded by these. Runs in the child."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.calibration._runs_worker import RunsService
from collage.calibration.gptq import inverse_factor, rounded

__all__ = ["GptqService"]


class GptqService(RunsService):
    """Serve one model file, run by ONNX Runtime without graph optimisations.

    Args:
        model: The ONNX file, its weights beside it.
    """

    def __init__(self, model: str) -> None:
        super().__init__(model, watches=False)
        self._weights = ir.load(model).graph.initializers
        self._moments: dict[str, Any] = {}

    def add(self, values: str, names: Sequence[str]) -> int:
        """Run the model on the inputs in a store, and add to the second moments of these values [..., K].

        Returns:
            The smallest number of rows of a value.
        """
        feeds, made = self._run(values, [name for name in names if name not in self._model.inputs])
        known = {**feeds, **made}
        rows = {name: np.asarray(known[name], np.float32).reshape(-1, known[name].shape[-1]) for name in names}
        for name, x in rows.items():
            self._moments[name] = self._moments.get(name, 0.0) + (x.T @ x).astype(np.float64)
        return min(map(len, rows.values()))

    def round(self, value: str, weights: Sequence[tuple[str, bool, int]], into: str) -> list[str]:
        """Round the weights of products of one value, and write them to a file as they lie in the model.

        Args:
            value: The products' input. Its moments are forgotten.
            weights: Names of weights, True for those [N, K] that are transposed, and their places in the file, in bytes.
            into: The file.

        Returns:
            The names of the weights that are written; none if moments are not finite.
        """
        moments = self._moments.pop(value)
        if not np.isfinite(moments).all():
            return []
        factor = inverse_factor(moments)
        with Path(into).open("r+b") as file:
            for name, is_transposed, offset in weights:
                tensor = self._weights[name].const_value
                assert tensor is not None
                made = rounded(tensor.numpy().T if is_transposed else tensor.numpy(), factor)
                file.seek(offset)
                file.write(np.ascontiguousarray(made.T if is_transposed else made).tobytes())
        return [name for name, _, _ in weights]
