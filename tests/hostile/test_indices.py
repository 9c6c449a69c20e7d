"""Indices beyond a tensor: an error or the answer of ONNX Runtime, on every toolchain and on mixes; never other memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from collage.toolchains import registry
from tests.hostile.index_graphs import MIX

_CASES = 12


@pytest.mark.parametrize("target", ["llvm", "openvino", "onednn", MIX])
def test_indices_anywhere_are_errors_or_right(target: str) -> None:
    if target != MIX and not registry().for_target(registry().parse_target(target)).availability().available:
        pytest.skip(f"{target} is not installed")
    command = [sys.executable, "-m", "tests.hostile.index_graphs", target, "1000", str(_CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-1000:]}"
