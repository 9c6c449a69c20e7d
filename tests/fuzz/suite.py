"""Cases of ONNX's own backend suite as models to compile."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from collage.testing.onnx_suite import Case, cases
from tests.fuzz.draft import Sample


@functools.cache
def found() -> Sequence[Case]:
    """Return all cases, by name."""
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    return sorted(cases(), key=lambda case: case.name)


def count() -> int:
    """Return how many cases there are."""
    return len(found())


def draw(number: int) -> Sample:
    """Return a case with its first inputs."""
    case = found()[number]
    inputs = case.data[0][0] if case.data else ()
    given = {tensor.name for tensor in case.model.graph.initializer}
    names = [value.name for value in case.model.graph.input if value.name not in given]
    return Sample(case.model, dict(zip(names, inputs, strict=len(names) == len(inputs))))
