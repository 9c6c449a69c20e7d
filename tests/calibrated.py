"""Models whose values carry the ranges that they have on given inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.graph import set_value_range
from collage.toolchains.onnxruntime.unoptimised import UnoptimisedModel
from collage.transform import InferType, PassContext


def calibrated(model: ir.Model, feeds: Sequence[Mapping[str, Any]], folder: Path) -> ir.Model:
    """Return the model with types, and with ranges of all floats that vary, as ONNX Runtime computes them."""
    with PassContext(opt_level=0):
        model = InferType()(model)
    file = folder / "uncalibrated.onnx"
    ir.save(model, file, external_data="uncalibrated.data")
    values = [value for node in model.graph for value in node.outputs] + list(model.graph.inputs)
    values = [value for value in values if value.dtype == ir.DataType.FLOAT]
    runner = UnoptimisedModel(file)
    ranges: dict[str, tuple[float, float]] = {}
    for feed in feeds:
        found = {**feed, **runner.run(feed, [str(v.name) for v in values if not v.is_graph_input()])}
        for value in values:
            array = np.asarray(found[str(value.name)])
            if array.size:
                low, high = ranges.get(str(value.name), (np.inf, -np.inf))
                ranges[str(value.name)] = min(low, float(array.min())), max(high, float(array.max()))
    for value in values:
        if str(value.name) in ranges:
            set_value_range(value, *ranges[str(value.name)])
    for path in folder.glob("uncalibrated.*"):
        path.unlink()
    return model
