"""Is a toolchain slower through Collage than by itself? Whole models of the zoo, against the vendor's own interface.

::

    python benchmarks/hobbled.py [--models resnet50,bert] [--toolchain openvino] [--threads 2] [--rounds 30] [--fresh]

For each model that a toolchain takes as a whole: the model as one kernel through Collage (prepared, compiled, loaded to be
alone in its process), the vendor's own interface on the model's own file with the vendor's defaults at the same number of
threads and in float32, and the vendor's once more, which shows how much the machine itself differs from itself. Each has a
process of its own; within a round they take turns in random order. Prints medians, and the ratio Collage / vendor with its
95 % interval: ``within`` 3 %, ``SLOWER`` if the whole interval lies above, else ``unsure``. Exit code 1 if any is slower.

PyTorch reads no ONNX: its own interface is the module that the zoo's model was exported from, eagerly and as a frozen
trace (``onednn``), and through ``torch.compile`` (``inductor``). Models that are no module are left out there.

Finished rows are kept (``--state``): the same command again measures what is missing. A quiet machine is a must.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # The zoo is no part of the installed package.

from benchmarks.zoo import CATALOGUE, build, find  # noqa: E402
from benchmarks.zoo.building import make_sample  # noqa: E402

from collage.cost.statistics import ratio_of_medians  # noqa: E402

BAR = 1.03
SAMPLES = 3
"""Runs of one turn; one more before them brings caches and threads back."""
QUIET_S = 0.005
PAIR_S = 40.0
"""How long a model is measured on a toolchain, once it has its fewest rounds."""
FEWEST_ROUNDS = 8
BUILD_TIMEOUT_S = 900.0
RUN_TIMEOUT_S = 120.0
TOOLCHAINS = ("onnxruntime", "openvino", "tvm", "onednn", "inductor")

Inputs = Mapping[str, np.ndarray]
Call = Callable[[], Any]


def through_collage(name: str, folder: Path, inputs: Inputs, threads: int) -> Call:
    """The model as one kernel."""
    from collage.frontend import place_weights, read_model
    from collage.toolchains import LoadOptions, registry
    from collage.transform import prepare

    target = registry().parse_target(registry().get(name).targets[0])
    toolchain = registry().for_target(target)
    workspace = Path(tempfile.mkdtemp(prefix="collage_hobbled."))
    kernel = place_weights(prepare(read_model(folder / "model.onnx")), workspace)
    kernel.graph.name = "whole"
    compiled = toolchain.compile(kernel, target, workspace)
    run = toolchain.load(compiled, target, workspace, LoadOptions(threads, exclusive=True))
    arrays = [inputs[each] for each in compiled.inputs]
    return lambda: run(arrays)


def onnxruntime_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(inputs))


def openvino_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(folder / "model.onnx", "CPU", config).create_infer_request()
    return lambda: request.infer(dict(inputs), share_inputs=True, share_outputs=True)


def tvm_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": threads})
    module = from_onnx(onnx.load(folder / "model.onnx"))
    main = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(x) for x in inputs.values()]
    return lambda: main(*tensors)


def _torch_module(folder: Path, inputs: Inputs, threads: int) -> tuple[Any, tuple[Any, ...]]:
    import torch

    torch.set_num_threads(threads)
    (entry,) = find([folder.name])
    module = make_sample(entry).model
    if not isinstance(module, torch.nn.Module):
        raise TypeError("the zoo's model is no torch module")
    return module.eval(), tuple(torch.from_numpy(x) for x in inputs.values())


def torch_eager(folder: Path, inputs: Inputs, threads: int) -> Call:
    module, tensors = _torch_module(folder, inputs, threads)
    return _without_gradients(module, tensors)


def torch_frozen(folder: Path, inputs: Inputs, threads: int) -> Call:
    import torch

    module, tensors = _torch_module(folder, inputs, threads)
    with torch.no_grad():
        traced = torch.jit.trace(module, tensors, strict=False, check_trace=False)
        return _without_gradients(torch.jit.optimize_for_inference(torch.jit.freeze(traced)), tensors)


def torch_compiled(folder: Path, inputs: Inputs, threads: int) -> Call:
    import torch

    module, tensors = _torch_module(folder, inputs, threads)
    return _without_gradients(torch.compile(module), tensors)


def _without_gradients(module: Any, tensors: tuple[Any, ...]) -> Call:
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return call


VENDORS: Mapping[str, Mapping[str, Callable[[Path, Inputs, int], Call]]] = {
    "onnxruntime": {"InferenceSession": onnxruntime_itself},
    "openvino": {"compile_model": openvino_itself},
    "tvm": {"tvm.compile": tvm_itself},
    "onednn": {"torch eager": torch_eager, "torch frozen": torch_frozen},
    "inductor": {"torch.compile": torch_compiled},
}


def serve(
    name: str, vendor: str | None, folder: Path, threads: int, pipe: multiprocessing.connection.Connection
) -> None:
    """A process that has one model in one form, and runs it when asked."""
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        with np.load(folder / "inputs.npz") as stored:
            inputs = {key: np.ascontiguousarray(stored[key]) for key in stored.files}
        if vendor is None:
            call = through_collage(name, folder, inputs, threads)
        else:
            call = VENDORS[name][vendor](folder, inputs, threads)
        for _ in range(3):
            call()
        pipe.send(None)
    except Exception as error:
        pipe.send(" ".join(f"{type(error).__name__}: {error}".split())[:160])
        return
    while pipe.recv():
        samples = []
        call()
        for _ in range(SAMPLES):
            began = time.perf_counter()
            call()
            samples.append(time.perf_counter() - began)
        pipe.send(samples)


class Runner:
    """The parent's side of such a process. ``problem`` says why it does not run."""

    def __init__(self, *what: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(*what, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.problem: str | None = self._answer(BUILD_TIMEOUT_S)

    def turn(self) -> Any:
        """Seconds of a few runs, or a sentence about what came instead."""
        self._pipe.send(True)
        return self._answer(RUN_TIMEOUT_S)

    def _answer(self, timeout_s: float) -> Any:
        try:
            return self._pipe.recv() if self._pipe.poll(timeout_s) else f"took more than {timeout_s:g} s"
        except (EOFError, OSError):
            return "died"

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def compare(name: str, vendor: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """One row: the model through Collage against one of the vendor's own interfaces, in JSON values."""
    runners: dict[str, Runner] = {}
    row: dict[str, Any] = {"toolchain": name, "vendor": vendor, "model": folder.name}
    try:
        for label, form in (("collage", None), ("vendor", vendor), ("again", vendor)):
            runners[label] = Runner(name, form, folder, threads)
            if runners[label].problem is not None:
                return row | {"problem": f"{label}: {runners[label].problem}"}
        return row | measured(runners, rounds)
    finally:
        for runner in runners.values():
            runner.close()


def measured(runners: Mapping[str, Runner], rounds: int) -> dict[str, Any]:
    """Interleaved rounds of all three, and what they say."""
    samples: dict[str, list[list[float]]] = {label: [] for label in runners}
    chance = np.random.default_rng(0)
    began = time.monotonic()
    for done in range(rounds):
        if done >= FEWEST_ROUNDS and time.monotonic() - began > PAIR_S:
            break
        for label in chance.permutation(sorted(runners)):
            time.sleep(QUIET_S)
            turn = runners[label].turn()
            if isinstance(turn, str):
                return {"problem": f"{label}: {turn}"}
            samples[label].append(turn)
    ratio, interval = ratio_of_medians(samples["collage"], samples["vendor"])
    noise, _ = ratio_of_medians(samples["again"], samples["vendor"])
    return {
        "collage_ms": 1e3 * float(np.median(samples["collage"])),
        "vendor_ms": 1e3 * float(np.median(samples["vendor"])),
        "ratio": ratio,
        "interval": interval.as_list(),
        "noise": noise,
        "verdict": "within" if ratio <= BAR else "SLOWER" if interval.low > BAR else "unsure",
    }


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    head = f"{row['toolchain']:<13}{row['vendor']:<18}{row['model']:<18}"
    if "problem" in row:
        return f"{head}{row['problem']}"
    low, high = row["interval"]
    figures = f"{row['vendor_ms']:>10.2f}{row['collage_ms']:>10.2f}{row['ratio']:>8.3f} [{low:.3f}, {high:.3f}]"
    return f"{head}{figures}{row['noise']:>8.3f}  {row['verdict']}"


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Each toolchain through Collage against itself.")
    parser.add_argument("--models", help="some of the zoo, separated by commas; all without it")
    parser.add_argument("--toolchain", action="append", choices=TOOLCHAINS, help="all of them without it")
    parser.add_argument("--zoo", type=Path, default=ROOT / ".cache" / "zoo", help="folder of the zoo")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "collage_hobbled.jsonl")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are kept")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    if options.fresh:
        options.state.unlink(missing_ok=True)
    kept = kept_rows(options.state, options.threads)
    rows = []
    print(f"{'toolchain':<13}{'vendor':<18}{'model':<18}{'vendor ms':>10}{'ours ms':>10}   ratio {'':<15}   noise")
    for entry in find(options.models.split(",")) if options.models else CATALOGUE:
        build(entry, options.zoo)
        for name in options.toolchain or TOOLCHAINS:
            for vendor in VENDORS[name]:
                key = (name, vendor, entry.name)
                if key not in kept:
                    kept[key] = compare(name, vendor, options.zoo / entry.name, options.threads, options.rounds)
                    with options.state.open("a") as file:
                        file.write(json.dumps(kept[key] | {"threads": options.threads}) + "\n")
                rows.append(kept[key])
                print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    counts = {verdict: sum(row.get("verdict") == verdict for row in rows) for verdict in ("within", "unsure", "SLOWER")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit(counts["SLOWER"] > 0)


def kept_rows(path: Path, threads: int) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Rows of an earlier run at the same number of threads."""
    if not path.exists():
        return {}
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    return {(row["toolchain"], row["vendor"], row["model"]): row for row in rows if row["threads"] == threads}


if __name__ == "__main__":
    main()
