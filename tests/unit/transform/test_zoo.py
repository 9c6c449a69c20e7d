"""Every shipped pass, random sequences of them and the default preparation keep the outputs of the benchmark's models."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.transform.graphs import generic_passes, run

from collage.frontend import read_model
from collage.transform import Pass, PassContext, Repeat, Sequential, default_passes, get_pass
from collage.transform._fingerprint import fingerprint

ZOO = Path(__file__).parents[3] / ".cache" / "zoo"
MODELS = sorted(path.parent.name for path in ZOO.glob("*/model.onnx"))
SHIPPED = generic_passes()
TOLERANCE = {"llama_f16": 3e-2}
SEQUENCES, LENGTH = 3, 8


def converges(passes: Sequential) -> bool:
    (repeat,) = [member for member in passes.passes if isinstance(member, Repeat)]
    return repeat.converged and repeat.rounds <= 5


class Checker:
    """Runs passes on one model and compares outputs wherever something changed."""

    def __init__(self, name: str) -> None:
        self.model = read_model(ZOO / name / "model.onnx")
        ir.external_data.load_to_model(self.model)
        with np.load(ZOO / name / "inputs.npz") as arrays:
            self.inputs = dict(arrays)
        self.expected = run(self.model, self.inputs)
        self.tolerance = TOLERANCE.get(name, 1e-3)
        self.seen = {fingerprint(self.model)}

    def check(self, make: Callable[[], Pass], label: str) -> str | None:
        """What is wrong after the pass; None if nothing is."""
        with PassContext(opt_level=3):
            result = make()(self.model)
        state = fingerprint(result)
        if state in self.seen:
            return None
        self.seen.add(state)
        outputs = run(result, self.inputs)
        for value, before, after in zip(result.graph.outputs, self.expected, outputs, strict=True):
            allowed = self.tolerance * max(float(np.abs(before.astype(np.float64)).max(initial=0.0)), 1e-6)
            distance = np.abs(before.astype(np.float64) - after.astype(np.float64)).max(initial=0.0)
            if before.dtype != after.dtype or before.shape != after.shape or not distance <= allowed:
                return f"{label}: output {value.name!r} is off by {distance:.3g}, {allowed:.3g} allowed"
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_outputs_stay(name):
    checker = Checker(name)
    prepared = default_passes()
    wrong = [checker.check(lambda: prepared, "default preparation")]
    assert converges(prepared)
    wrong += [checker.check(lambda label=label: get_pass(label), label) for label in SHIPPED]
    chosen = random.Random(name)
    for _ in range(SEQUENCES):
        names = [chosen.choice(SHIPPED) for _ in range(LENGTH)]
        wrong.append(checker.check(lambda names=names: Sequential(map(get_pass, names)), " > ".join(names)))
    assert [message for message in wrong if message] == []
