"""Samples that are made up beside inputs that are given: these may be lists of tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser

from collage.compiler import precision_session
from collage.frontend import read_model
from collage.options import CompileOptions


def test_lists_of_tensors_of_several_shapes_are_samples_that_differ() -> None:
    text = "g (seq(float[N]) s) => (float[M] y) { y = ConcatFromSequence <axis=0> (s) }"
    model = read_model(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))

    def digest(*items: list[float]) -> str:
        options = CompileOptions(inputs={"s": [np.array(item, np.float32) for item in items]})
        problem: Any = SimpleNamespace(model=model, options=options)
        made: Any = SimpleNamespace(floats="usual")
        return precision_session._made_up(problem, made)[0].digest

    assert digest([1], [2, 3]) == digest([1], [2, 3]) != digest([1], [2, 4])
