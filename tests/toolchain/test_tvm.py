"""TVM's native code generator keeps the contract of toolchains."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.toolchain.tvm_cases import numbers, plain

from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions, registry
from collage.toolchains.tvm.toolchain import TvmToolchain
from collage.workers.worker import Worker

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


class TestTvm(ToolchainTestCase):
    toolchain = TvmToolchain()
    differs = frozenset({"not_finite_relu", "not_finite_max"})  # it drops NaN here
    refuses = frozenset({"dynamic_expand"})


def test_inputs_are_shared_where_their_alignment_allows(tmp_path: Path) -> None:
    case = plain((4, 16), 2, "y = Neg (x)")
    toolchain = TvmToolchain()
    loaded = toolchain.load(toolchain.compile(case.model(), TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    memory = np.zeros(4 * 16 + 32, np.float32)
    start = -memory.ctypes.data % 64 // 4
    for shift in (0, 1, 3):
        x = memory[start + shift : start + shift + 64].reshape(4, 16)
        x[...] = numbers(4, 16, seed=shift)
        np.testing.assert_array_equal(loaded([x])[0], -x)
        x += 1
        np.testing.assert_array_equal(loaded([x])[0], -x)


IDLE = [
    "Add ({0}, zero)",
    "CastLike ({0}, {0})",
    "Clip ({0})",
    "Concat <axis = 0> ({0})",
    'Einsum <equation = "ij->ij"> ({0})',
    "Identity ({0})",
    "Max ({0})",
    "Mean ({0})",
    "Mul ({0}, one)",
    "Pad ({0}, nowhere)",
    "ReduceSum <noop_with_empty_axes = 1> ({0})",
    "Slice ({0}, from, to)",
    "Tile ({0}, once)",
    "Transpose <perm = [0, 1]> ({0})",
    "If (true) <then_branch = yes () => (float[4,4] b{0}) {{b{0} = Identity ({0})}}, "
    "else_branch = no () => (float[4,4] d{0}) {{d{0} = Neg ({0})}}>",
]
"""Operators in forms that leave what they are given as it is."""


@pytest.mark.parametrize("operator", IDLE)
def test_outputs_lie_in_memory_of_their_own(operator: str, tmp_path: Path) -> None:
    body = "n = Neg (x) " + " ".join(f"{y} = {operator.format(x)}" for y, x in zip("abc", "xnw", strict=True))
    text = f"(float[4,4] x) => ({', '.join(f'float[4,4] {y}' for y in 'abcn')}) {{{body}}}"
    weights = {
        "zero": np.array(0, np.float32),
        "one": np.array(1, np.float32),
        "true": np.array(True),
        "nowhere": np.zeros(4, np.int64),
        "from": np.zeros(2, np.int64),
        "to": np.array([4, 4]),
        "once": np.ones(2, np.int64),
        "w": numbers(4, 4, seed=1),
    }
    used = {name: value for name, value in weights.items() if name in re.findall(r"\w+", text)}
    block = np.empty(128, np.uint8)
    x = block[-block.ctypes.data % 64 :][:64].view(np.float32).reshape(4, 4)  # read where it lies
    x[...] = numbers(4, 4)
    toolchain = TvmToolchain()
    compiled = toolchain.compile(parsed_kernel("k", text, used), TARGET, tmp_path)
    loaded = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())
    for _ in range(2):
        outputs = loaded([x])
        for y, expected in zip(outputs, (x, -x, weights["w"], -x), strict=True):
            np.testing.assert_array_equal(y, expected)
        assert not any(np.shares_memory(y, z) for y, z in itertools.combinations([*outputs, x], 2))
        for y in outputs:
            y[...] = 7  # as callers may, and the next kernel in a buffer that is used again


def test_where_artefacts_are_loaded_torch_is_never_hidden() -> None:
    # Another thread of the user's may import it just then, and other kernels may be torch's own.
    pytest.importorskip("torch")
    program = (
        "import sys\n"
        "from collage.toolchains import importing_here, registry\n"
        "with importing_here():\n"
        "    assert registry().get('tvm').availability().available\n"
        "assert 'tvm' in sys.modules and sys.modules.get('torch')\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_a_worker_does_not_import_torch() -> None:
    pytest.importorskip("torch")
    factory, arguments = registry().factory("tvm")
    told = {"factory": factory, "arguments": arguments}
    with Worker(
        "tests.toolchain._witness:Witness", told, environment={"PYTHONPATH": os.pathsep.join(sys.path)}
    ) as worker:
        assert worker.call("availability", 60.0, target="llvm")["available"]
        assert worker.call("imported", 60.0, name="tvm")
        assert worker.call("imported", 60.0, name="torch") is False
        # What is left out is not lost.
        assert worker.call("can_import", 60.0, name="torch")
