"""A toolchain that does what it is told, the bad things too: for tests of whatever has to survive toolchains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.toolchains import Availability, Compiled, Kernel, LoadOptions, ToolchainBase

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target

__all__ = ["FakeToolchain"]


class FakeToolchain(ToolchainBase):
    """Computes rightly (with ONNX's reference evaluator), and misbehaves on request.

    Args:
        misbehaviour: What goes wrong, and where, as ``WHERE:WHAT``. WHERE is ``import``, ``compile`` or ``run``. WHAT
            is ``raise``, ``refuse``, ``segfault``, ``abort``, ``exit``, ``hang``, ``children``, ``flood``,
            ``close``, ``memory``; for ``run`` also ``nan``, ``shape``, ``wrong``, ``later`` (right once, wrong later)
            and ``slow``. Empty: nothing.
        seconds: Least time of a run.
    """

    name = "fake"
    targets = ("llvm -compiler=fake",)

    def __init__(self, misbehaviour: str = "", seconds: float = 0.0) -> None:
        self._where, _, self._what = misbehaviour.partition(":")
        self._seconds = seconds
        self.worker_arguments = {"misbehaviour": misbehaviour, "seconds": seconds}
        # Only a worker dies of a bad import: the test's own process makes instances too.
        if self._where == "import" and os.environ.get("COLLAGE_FAKE_IN_PARENT") != str(os.getpid()):
            misbehave(self._what)

    def availability(self) -> Availability:
        """Always there."""
        return Availability(True, "1.0", f"fake 1.0 {self._where}:{self._what}")

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Writes the kernel as ONNX."""
        import onnx_ir as ir

        if self._where == "compile":
            misbehave(self._what)
        file = f"{kernel.graph.name}.fake.onnx"
        ir.save(kernel, workspace / file)
        return Compiled(
            self.name,
            str(target),
            (file,),
            tuple(str(value.name) for value in kernel.graph.inputs),
            tuple(str(value.name) for value in kernel.graph.outputs),
            portable=True,
        )

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """An evaluator."""
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(workspace / compiled.files[0]))
        what = self._what if self._where == "run" else ""
        return _FakeKernel(evaluator, compiled, what, self._seconds)


class _FakeKernel:
    reuses_outputs = False

    def __init__(self, evaluator: Any, compiled: Compiled, what: str, seconds: float) -> None:
        self._evaluator, self._compiled, self._what, self._seconds = evaluator, compiled, what, seconds
        self._runs = 0

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self._runs += 1
        spoiling = self._what in ("nan", "shape", "wrong", "later", "slow")
        if self._what and not spoiling:
            misbehave(self._what)
        time.sleep(self._seconds * (self._runs if self._what == "slow" else 1))
        outputs = list(self._evaluator.run(None, dict(zip(self._compiled.inputs, inputs, strict=True))))
        if self._what == "nan":
            return [np.full_like(output, np.nan) for output in outputs]
        if self._what == "shape":
            return [output[None] for output in outputs]
        if self._what == "wrong" or (self._what == "later" and self._runs > 1):
            return [output + np.ones_like(output) for output in outputs]
        return outputs


def misbehave(what: str) -> None:
    """Does one bad thing to the process that it is called in."""
    if what == "raise":
        raise CompileError("fake: told to fail")
    if what == "refuse":
        raise Unsupported("fake: told to refuse")
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "abort":
        os.abort()
    elif what == "exit":
        os._exit(3)
    elif what == "hang":
        _hang_in_c()
    elif what == "children":
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        _hang_in_c()
    elif what == "flood":
        for _ in range(20_000):
            sys.stdout.write("noise " * 10 + "\n")
        sys.stdout.flush()
    elif what == "close":
        os.closerange(0, 256)
    elif what == "memory":
        hoard = []
        while True:
            hoard.append(np.ones(1 << 27, np.uint8))


def _hang_in_c() -> None:
    """Blocks in C with the interpreter lock held, as a stuck compiler does."""
    import ctypes

    ctypes.PyDLL(None).sleep(600)
