"""XNNPACK on the operators of ``single_ops.py``: is there one that it computes in less time than ours?

::

    python -m venv /tmp/candidates                  # of its own: ExecuTorch brings much that Collage does not want
    /tmp/candidates/bin/pip install -e '.[torch,openvino,iree]'
    /tmp/candidates/bin/pip install --no-deps executorch torchao flatbuffers pytorch_tokenizers ruamel.yaml tabulate
    /tmp/candidates/bin/python benchmarks/candidates.py [--only conv]

Prints for each case the least processor time of a run in one thread, in milliseconds, of XNNPACK and of the CPU toolchains
that need no C++ compiler: the minimum over a second and a half of runs, since it is what survives a busy machine.
``WINS`` stands where XNNPACK takes less than 95 % of the best of ours. Results: ``docs/toolchains.md``.

XNNPACK comes as ExecuTorch's backend: the kernel as torch calls, exported and handed over by its own partitioner; what
that leaves behind runs on ExecuTorch's portable operators.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from _single_op_cases import CASES

from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, registry
from collage.transform import InferType

CANDIDATE = "xnnpack"
OURS = ("onnxruntime", "openvino", "onednn", "iree")
WIN = 0.95
ANSWER_TIMEOUT_S = 60.0
MEASURED_S = 1.5
FEWEST_RUNS = 5

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


def on_ours(name: str, model: ir.Model, folder: Path) -> Run:
    """One of our toolchains, with its best settings."""
    toolchain = registry().get(name)
    target = registry().parse_target(toolchain.targets[0])
    return toolchain.load(toolchain.compile(model, target, folder), target, folder, LoadOptions(1, exclusive=True))


def on_xnnpack(model: ir.Model, folder: Path) -> Run:
    """ExecuTorch's XNNPACK backend."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    from collage.toolchains.torch.ops import Program

    zeros = [torch.from_numpy(np.zeros(value.shape.numpy(), value.dtype.numpy())) for value in model.graph.inputs]
    exported = torch.export.export(Program(model), tuple(zeros), strict=False)
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    file = folder / f"{model.graph.name}.pte"
    file.write_bytes(lowered.to_executorch().buffer)
    portable_lib._unsafe_reset_threadpool(1)
    program = Runtime.get().load_program(file)
    method = program.load_method("forward")
    return lambda inputs, kept=program: [y.numpy() for y in method.execute([torch.from_numpy(x) for x in inputs])]


def serve(name: str, pipe: multiprocessing.connection.Connection) -> None:
    """A child: builds and runs the cases that it is asked for; answers with milliseconds and an output, or with why not."""
    with tempfile.TemporaryDirectory() as folder:
        while True:
            case = CASES[pipe.recv()]
            try:
                model = InferType()(kernel(f"case{CASES.index(case)}", case.text, case.weights))
                run = on_xnnpack(model, Path(folder)) if name == CANDIDATE else on_ours(name, model, Path(folder))
                pipe.send((least_ms(run, case.inputs), np.array(run(case.inputs)[0])))
            except Exception as error:
                pipe.send(f"{type(error).__name__}: {error}"[:100])


def least_ms(run: Run, inputs: Sequence[np.ndarray]) -> float:
    """The least processor time of a run."""
    run(inputs)
    least, runs, ends = float("inf"), 0, time.perf_counter() + MEASURED_S
    while runs < FEWEST_RUNS or time.perf_counter() < ends:
        began = time.process_time()
        run(inputs)
        least, runs = min(least, time.process_time() - began), runs + 1
    return 1e3 * least


class Server:
    """The parent's side of a child, which is replaced when it dies or hangs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._child: Any = None

    def ask(self, index: int) -> Any:
        """What the child says of a case, or what became of it."""
        if self._child is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=serve, args=(self.name, theirs), daemon=True)
            self._child.start()
            theirs.close()
        self._pipe.send(index)
        try:
            if self._pipe.poll(ANSWER_TIMEOUT_S):
                return self._pipe.recv()
            why = f"took more than {ANSWER_TIMEOUT_S:g} s"
        except EOFError:
            why = "died"
        self.close()
        return why

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child = None


def line(name: str, told_by: Mapping[str, Any]) -> str:
    """A case as text: milliseconds, wrong answers, winners, and why there are none."""
    answers = {each: told for each, told in told_by.items() if not isinstance(told, str)}
    ours = {each: told for each, told in answers.items() if each in OURS}
    best = min((ms for ms, _ in ours.values()), default=float("inf"))
    expected = next((y for _, y in ours.values()), None)
    cells, notes = "", []
    for each, told in told_by.items():
        if isinstance(told, str):
            cells += f"{'-':>12}"
            notes.append(f"\n    {each}: {' '.join(told.split())}")
            continue
        ms, y = told
        is_right = expected is None or np.allclose(y, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
        cells += f"{ms:>12.3f}" if is_right else f"{'wrong':>12}"
        if each == CANDIDATE and is_right and ms < WIN * best:
            notes.append(f"  {each} WINS")
    return f"{name:<42}{cells}{''.join(notes)}"


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="XNNPACK, which is not ours, on single operators.")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    servers = [Server(name) for name in (*OURS, CANDIDATE)]
    print(f"{'least processor time, ms, one thread':<42}{''.join(f'{server.name:>12}' for server in servers)}")
    for index, case in enumerate(CASES):
        if options.only in case.name:
            print(line(case.name, {server.name: server.ask(index) for server in servers}), flush=True)
    for server in servers:
        server.close()


if __name__ == "__main__":
    main()
