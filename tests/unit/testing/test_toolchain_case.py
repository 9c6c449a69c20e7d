"""The contract tests of toolchains find planted faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.target import Target
from collage.testing import FakeToolchain, ToolchainTestCase
from collage.testing._toolchain_kernels import DTYPES

TARGET = Target.parse("llvm -compiler=fake")
CASE = {case.name: case for case in DTYPES}
_scratch: list[Any] = []
_turn = threading.Barrier(3)


def _case(fault: Callable[[list[Any]], list[Any]]) -> ToolchainTestCase:
    """The contract of a toolchain whose kernels return what a function makes of right outputs."""

    class Faulty(FakeToolchain):
        def load(self, *arguments: Any) -> Any:
            right = super().load(*arguments)

            class Kernel:
                reuses_outputs = False

                def __call__(self, inputs: Any) -> Any:
                    return fault(list(right(inputs)))

            return Kernel()

    class Case(ToolchainTestCase):
        toolchain = Faulty()

    return Case()


def _off_in_other_threads(outputs: list[Any]) -> list[Any]:
    return outputs if threading.current_thread() is threading.main_thread() else [y + 1 for y in outputs]


def _through_one_buffer(outputs: list[Any]) -> list[Any]:
    _scratch[:] = outputs
    _turn.wait(30.0)
    return [*_scratch]


@pytest.mark.parametrize("fault", [_off_in_other_threads, _through_one_buffer])
def test_contexts_that_meet_are_found(fault: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _case(fault).test_contexts_run_at_once(TARGET, tmp_path)


def test_contexts_that_do_not_meet_are_right(tmp_path: Path) -> None:
    _case(lambda outputs: outputs).test_contexts_run_at_once(TARGET, tmp_path)


def test_integers_that_were_summed_as_floats_are_found(tmp_path: Path) -> None:
    def as_floats(outputs: list[Any]) -> list[Any]:
        return [y.astype(np.float64).astype(y.dtype) for y in outputs]

    _case(lambda outputs: outputs).test_edges_and_types_are_right_or_refused(CASE["large_int64"], TARGET, tmp_path)
    with pytest.raises(AssertionError):
        _case(as_floats).test_edges_and_types_are_right_or_refused(CASE["large_int64"], TARGET, tmp_path)
