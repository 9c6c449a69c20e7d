"""A toolchain that computes rightly or fails on request, for tests of code that must survive faulty toolchains."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.toolchains import Availability, Compiled, Kernel, LoadOptions, ToolchainBase

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target

__all__ = ["FakeToolchain"]

_SLOWER_S = 1e-3
_TIRED_AFTER = 3
_OF_RUNS = frozenset(
    {"nan", "shape", "wrong", "later", "tired", "spoil", "slow", "stuck", "single", "choosy", "rough", "zero", "black"}
)
_ROUGH = 3e-5


class FakeToolchain(ToolchainBase):
    """Computes rightly (with ONNX's reference evaluator), and misbehaves on request.

    Args:
        misbehaviour: The fault, and the step that shows it, as ``WHERE:WHAT``. WHERE is ``import``, ``compile`` or
            ``run``. WHAT is ``raise``, ``refuse``, ``segfault``, ``abort``, ``exit``, ``hang``, ``children``,
            ``flood``, ``close``, ``memory``, ``hoarders`` (children that take memory, none of them too much),
            ``chdir``, ``orphans`` (children that outlive their parents, in sessions of their own), ``fork`` (and return
            in both), ``group`` (signals its process group), ``spin`` (keeps a processor busy from then on, in a process
            of its own), ``delete`` (its own files); for ``run`` also ``nan``, ``shape``, ``wrong``, ``later`` (right
            once, wrong later), ``tired`` (right three times, NaN later), ``spoil`` (writes over its inputs), ``slow``
            (every run slower than the one before), ``stuck`` (wrong at other lengths than those that it meets first),
            ``choosy`` (refuses them), ``single`` (wrong where there is one of anything), ``rough`` (rounds its inputs,
            by less than kernels may err), ``zero`` (makes 0 of NaN) and ``black`` (wrong where its first input is all
            0).
            Empty: nothing.
        seconds: Least time of a run; or of every operator of a kernel by type, the others taking none, and "" of each launch.
        name: Name of the toolchain, so that several may be on one menu.
        per_element_s: Further seconds for each element of a kernel's first input.
    """

    def __init__(
        self,
        misbehaviour: str = "",
        seconds: float | Mapping[str, float] = 0.0,
        name: str = "fake",
        per_element_s: float = 0.0,
    ) -> None:
        self.name = name
        self.targets = (f"llvm -compiler={name}",)
        self._where, _, self._what = misbehaviour.partition(":")
        self._seconds = seconds
        self._per_element_s = per_element_s
        self.worker_arguments = {
            "misbehaviour": misbehaviour,
            "seconds": seconds,
            "name": name,
            "per_element_s": per_element_s,
        }
        # Only a worker dies of a bad import: the test's own process makes instances too.
        if self._where == "import" and os.environ.get("COLLAGE_FAKE_IN_PARENT") != str(os.getpid()):
            misbehave(self._what)

    def availability(self) -> Availability:
        """Always there."""
        return Availability(True, "1.0", f"{self.name} 1.0 {self._where}:{self._what}")

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the kernel as ONNX."""
        # Late, as in every toolchain: to list toolchains is not to load the libraries with which they compile.
        import onnx_ir as ir

        from collage.graph import copy_model

        if self._where == "compile":
            misbehave(self._what)
        file = f"{kernel.graph.name}.{self.name}.onnx"
        ir.save(copy_model(kernel), workspace / file)
        if (self._where, self._what) == ("compile", "delete"):
            (workspace / file).unlink()
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
        # Late, as above.
        from onnx.reference import ReferenceEvaluator

        file = workspace / compiled.files[0]
        evaluator = ReferenceEvaluator(str(file))
        seconds = self._seconds
        if not isinstance(seconds, int | float):
            seconds = sum(
                seconds.get(kind, 0.0) for kind in ["", *(node.op_type for node in evaluator.proto_.graph.node)]
            )
        what = self._what if self._where == "run" else ""
        return _FakeKernel(evaluator, compiled, what, seconds, file, self._per_element_s)


class _FakeKernel:
    reuses_outputs = False

    def __init__(
        self, evaluator: Any, compiled: Compiled, what: str, seconds: float, file: Path, per_element_s: float
    ) -> None:
        self._evaluator, self._compiled, self._what, self._seconds = evaluator, compiled, what, seconds
        self._per_element_s = per_element_s
        self._file = file
        self._runs = 0
        self._shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self._runs += 1
        if self._what == "delete":
            self._file.unlink(missing_ok=True)
        elif self._what and self._what not in _OF_RUNS:
            misbehave(self._what)
        shapes = [np.shape(x) for x in inputs]
        self._shapes = self._shapes or shapes
        is_elsewhere = shapes != self._shapes
        if self._what == "choosy" and is_elsewhere:
            raise CompileError(f"fake: not at these lengths, {shapes}")
        elements = np.size(inputs[0]) if inputs else 0
        slower_s = self._runs * _SLOWER_S if self._what == "slow" else 0.0
        time.sleep(self._seconds + self._per_element_s * elements + slower_s)
        given = [_rough(x) for x in inputs] if self._what == "rough" else inputs
        outputs = list(self._evaluator.run(None, dict(zip(self._compiled.inputs, given, strict=True))))
        if self._what == "spoil":
            for x in inputs:
                x[...] = 0
        if self._what == "nan" or (self._what == "tired" and self._runs > _TIRED_AFTER):
            return [np.full_like(output, np.nan) for output in outputs]
        if self._what == "zero":
            return [np.nan_to_num(output) for output in outputs]
        if self._what == "shape":
            return [output[None] for output in outputs]
        is_wrong = {
            "wrong": True,
            "later": self._runs > 1,
            "stuck": is_elsewhere,
            "single": any(1 in shape for shape in shapes),
            "black": bool(inputs) and not np.any(inputs[0]),
        }
        if is_wrong.get(self._what, False):
            return [output + np.ones_like(output) for output in outputs]
        return outputs


def _rough(x: Any) -> Any:
    """Floats that are off by a little, which differs from element to element."""
    if x.dtype.kind != "f":
        return x
    off = _ROUGH * np.abs(x).max(initial=0.0) * np.cos(np.arange(x.size, dtype=np.float64)).reshape(x.shape)
    return (x + off).astype(x.dtype)


def misbehave(what: str) -> None:
    """Do one bad thing to the process that it is called in."""
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
    elif what == "chdir":
        os.chdir("/")
    elif what == "orphans":
        # The one between them ends at once, and nobody is left who knows them.
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        starter = f"import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", starter], start_new_session=True, check=True)
    elif what == "fork":
        os.fork()
    elif what == "group":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        os.kill(0, signal.SIGKILL)
    elif what == "spin":
        _keep_busy()
    elif what == "memory":
        hoard = []
        while True:
            hoard.append(np.ones(1 << 27, np.uint8))
    elif what == "hoarders":
        for _ in range(8):
            subprocess.Popen([sys.executable, "-c", "import time; hoard = b'x' * (1 << 29); time.sleep(600)"])
        _hang_in_c()


@functools.cache
def _keep_busy() -> None:
    """Start a process that takes all of a processor; the first time only."""
    subprocess.Popen([sys.executable, "-c", "import time; end = time.time() + 600\nwhile time.time() < end: pass"])


def _hang_in_c() -> None:
    """Block in C with the interpreter lock held, as a stuck compiler does."""
    import ctypes

    ctypes.PyDLL(None).sleep(600)
