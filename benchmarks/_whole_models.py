"""Is a toolchain slower through Collage than by itself? Whole models of the zoo, against the vendor's own interfaces.

::

    python benchmarks/hobbled.py [--models resnet50,bert] [--toolchains openvino,tvm] [--threads 2] [--minutes 20] [--fresh]

For each model that a toolchain takes as a whole: the model as one kernel through Collage (prepared and compiled in one
process, loaded in another, to be alone there), the vendor's own interfaces on the model's own file, with the vendor's
defaults, at the same number of threads and in float32, and the first of them once more, which shows how much the machine
itself differs from itself. Each has a process of its own and the same inputs, at addresses that suit vectors; within a round
they take turns in random order. Prints medians, the ratio Collage / vendor with its 95 % interval, the same ratio of processor
time, and both ratios of the vendor and itself (``noise``): ``within`` 3 %, ``SLOWER`` if the whole interval lies above, else
``unsure``. Exit code 1 if any is slower. On a busy machine processor time says more than latency only of one thread
(``--threads 1``): two spin while they wait for each other, the longer the more often one is kept from running.

ONNX Runtime is asked through ``run`` and through an IO binding that has the session allocate outputs; OpenVINO with its
latency hint, sharing memory both ways; TVM with its default pipeline; IREE with the command-line compiler for this processor
at its highest level, inputs on the device ahead of time. PyTorch reads no ONNX: its own interface is the module that the zoo's
model was exported from, eagerly and as a frozen trace (``onednn``), and through ``torch.compile`` with frozen weights
(``inductor``). Models that are no module are left out there.

Rows are kept (``--state``): the same command again goes on where the minutes were over, toolchains that build fast first. A
quiet machine is a must.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import subprocess
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
from collage.workers.idle_wait import until_quiet  # noqa: E402

BAR = 1.03
SAMPLES = 3
"""Runs of one turn; one more before them brings caches and threads back."""
QUIET_S = 0.5
"""How long a turn may take to end: threads that spin for a while after it would slow down whoever comes next."""
MEASURED_S = 8.0
"""How long a model is measured on a toolchain, once it has its fewest rounds."""
FEWEST_ROUNDS = 8
FAR = 4.0
"""A vendor's interface that takes so many times as long is not looked at twice."""
TURN_S = 0.5
"""After so long a turn ends with the run that is going on, and 3 rounds must do where these take long."""
BUILD_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 120.0
ALIGNMENT = 64
"""Bytes; where arrays begin that Collage hands from kernel to kernel."""

Inputs = Mapping[str, np.ndarray]
Call = Callable[[], Any]
Made = tuple[str, Any]
"""What a child process answers: ``ok`` and a value, or ``problem`` and a sentence."""


def compiled_by_collage(name: str, folder: Path, threads: int, workspace: Path) -> Any:
    """The model as one kernel's files in ``workspace``."""
    from collage.frontend import place_weights, read_model
    from collage.toolchains import compile_for
    from collage.transform import prepare

    toolchain, target = toolchain_of(name, threads)
    kernel = place_weights(prepare(read_model(folder / "model.onnx")), workspace)
    kernel.graph.name = "whole"
    return compile_for(toolchain, kernel, target, workspace)


def loaded_by_collage(name: str, compiled: Any, inputs: Inputs, threads: int, workspace: Path) -> Call:
    """That kernel, alone in its process."""
    from collage.toolchains import LoadOptions

    toolchain, target = toolchain_of(name, threads)
    run = toolchain.load(compiled, target, workspace, LoadOptions(threads, exclusive=True))
    arrays = [inputs[each] for each in compiled.inputs]
    return lambda: run(arrays)


def toolchain_of(name: str, threads: int) -> tuple[Any, Any]:
    """A toolchain, and its target with so many threads."""
    from collage.toolchains import registry

    toolchain = registry().get(name)
    return toolchain, registry().parse_target(f"{toolchain.targets[0]} -threads={threads}")


def onnxruntime_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(inputs))


def onnxruntime_bound(folder: Path, inputs: Inputs, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in inputs.items():
        binding.bind_cpu_input(name, x)
    for port in session.get_outputs():
        binding.bind_output(port.name)
    return lambda: session.run_with_iobinding(binding)


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
    import torch._inductor.config as inductor

    inductor.freezing = True
    module, tensors = _torch_module(folder, inputs, threads)
    return _without_gradients(torch.compile(module), tensors)


def _without_gradients(module: Any, tensors: tuple[Any, ...]) -> Call:
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return call


def iree_itself(folder: Path, inputs: Inputs, threads: int) -> Call:
    import iree.compiler
    import iree.runtime as rt

    tool = Path(iree.compiler.__file__).with_name("_mlir_libs") / "iree-compile"
    settings = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
    with tempfile.TemporaryDirectory() as made:
        imported, module = Path(made) / "model.mlir", Path(made) / "model.vmfb"
        importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(folder / "model.onnx")]
        # Its documentation asks for this version or a later one.
        subprocess.run([*importer, "--opset-version=17", "-o", str(imported)], check=True, capture_output=True)
        compiler = [str(tool), str(imported), f"-o={module}", *settings]
        subprocess.run(
            [*compiler, "--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"], check=True, capture_output=True
        )
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        context = rt.SystemContext(config=rt.Config("local-task"))
        context.add_vm_module(rt.VmModule.copy_buffer(context.instance, module.read_bytes()))
    (entry,) = (each for name, each in context.modules.items() if name != "hal")
    (name,) = (name for name in entry.vm_module.function_names if "$" not in name and not name.startswith("__"))
    call = entry[name]
    given = [rt.asdevicearray(context.config.device, x) for x in inputs.values()]

    def run() -> Any:
        outputs = call(*given)
        return [y.to_host() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return run


VENDORS: Mapping[str, Mapping[str, Callable[[Path, Inputs, int], Call]]] = {
    "onnxruntime": {"InferenceSession": onnxruntime_itself, "io_binding": onnxruntime_bound},
    "openvino": {"compile_model": openvino_itself},
    "onednn": {"torch eager": torch_eager, "torch frozen": torch_frozen},
    "tvm": {"tvm.compile": tvm_itself},
    "iree": {"iree-compile": iree_itself},
    "inductor": {"torch.compile": torch_compiled},
}
"""Those that build fast first."""

AGAIN = "again"


def read_inputs(folder: Path) -> Inputs:
    """A model's inputs, each at an address that suits vectors."""
    with np.load(folder / "inputs.npz") as stored:
        return {key: aligned(stored[key]) for key in stored.files}


def aligned(x: np.ndarray) -> np.ndarray:
    """A row-major copy that begins at a multiple of ``ALIGNMENT``."""
    block = np.empty(x.nbytes + ALIGNMENT, np.uint8)
    begin = -block.ctypes.data % ALIGNMENT
    copy = block[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def child(work: Callable[..., None], pipe: multiprocessing.connection.Connection, *what: Any) -> None:
    """A process without noise, which tells what its work fails of."""
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        work(pipe, *what)
    except Exception as error:
        pipe.send(("problem", " ".join(f"{type(error).__name__}: {error}".split())[:160]))


def build_kernel(pipe: multiprocessing.connection.Connection, *what: Any) -> None:
    """A process that compiles the model through Collage, and ends."""
    pipe.send(("ok", compiled_by_collage(*what)))


def serve_collage(
    pipe: multiprocessing.connection.Connection, name: str, compiled: Any, folder: Path, threads: int, workspace: Path
) -> None:
    """A process that runs the kernel when asked."""
    serve(loaded_by_collage(name, compiled, read_inputs(folder), threads, workspace), pipe)


def serve_vendor(
    pipe: multiprocessing.connection.Connection, name: str, vendor: str, folder: Path, threads: int
) -> None:
    """A process that runs the model through an interface of the vendor's when asked."""
    serve(VENDORS[name][vendor](folder, read_inputs(folder), threads), pipe)


def serve(call: Call, pipe: multiprocessing.connection.Connection) -> None:
    """Answers each message with seconds, and seconds of processor time, of a few runs; of one where that is slow."""
    call()
    pipe.send(("ok", None))
    while pipe.recv():
        samples: list[float] = []
        call()
        cpu = time.process_time()
        while len(samples) < SAMPLES and sum(samples) < TURN_S:
            began = time.perf_counter()
            call()
            samples.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
        until_quiet(QUIET_S)
        pipe.send(("ok", (samples, cpu / len(samples))))


class Child:
    """The parent's side of such a process."""

    def __init__(self, work: Callable[..., None], *what: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=child, args=(work, theirs, *what), daemon=True)
        self._process.start()
        theirs.close()

    def turn(self) -> Made:
        """A few runs."""
        self._pipe.send(True)
        return self.answer(RUN_TIMEOUT_S)

    def answer(self, timeout_s: float = BUILD_TIMEOUT_S) -> Made:
        """What it sends next, or what came instead."""
        try:
            return self._pipe.recv() if self._pipe.poll(timeout_s) else ("problem", f"took more than {timeout_s:g} s")
        except (EOFError, OSError):
            return "problem", "died"

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def compare(name: str, folder: Path, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Rows, in JSON values: the model through Collage against each of the vendor's own interfaces."""
    vendors = list(VENDORS[name])
    head = [{"toolchain": name, "vendor": vendor, "model": folder.name, "threads": threads} for vendor in vendors]
    workspace = Path(tempfile.mkdtemp(prefix="collage_hobbled."))
    builder = Child(build_kernel, name, folder, threads, workspace)
    children = [builder]
    try:
        told, compiled = builder.answer()
        if told == "problem":
            return [row | {"problem": f"collage: {compiled}"} for row in head]
        runners = {vendor: Child(serve_vendor, name, vendor, folder, threads) for vendor in vendors}
        runners[AGAIN] = Child(serve_vendor, name, vendors[0], folder, threads)
        runners["collage"] = Child(serve_collage, name, compiled, folder, threads, workspace)
        children += runners.values()
        told_by = {label: runner.answer() for label, runner in runners.items()}
        problems = {label: why for label, (told, why) in told_by.items() if told == "problem"}
        running = {label: runner for label, runner in runners.items() if label not in problems}
        samples, broke = turns(running, rounds) if {"collage", AGAIN} <= set(running) else ({}, {})
        problems |= broke
        return [row | row_of(row["vendor"], vendors[0], samples, problems) for row in head]
    finally:
        for each in children:
            each.close()
        shutil.rmtree(workspace, ignore_errors=True)


def turns(runners: Mapping[str, Child], rounds: int) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Interleaved rounds of all; if one fails, why."""
    samples: dict[str, list[Any]] = {label: [] for label in runners}
    chance = np.random.default_rng(0)
    began = time.monotonic()
    for done in range(rounds):
        taken = time.monotonic() - began
        if taken > MEASURED_S and (done >= FEWEST_ROUNDS or (done >= 3 and taken > 3 * MEASURED_S)):
            break
        for label in chance.permutation(sorted(runners)):
            told, turn = runners[label].turn()
            if told == "problem":
                return {}, {str(label): turn}
            samples[label].append(turn)
        best = {label: min(turn[0]) for label, (turn, *_) in samples.items()}
        if FAR * best["collage"] < min(taken for label, taken in best.items() if label != "collage"):
            break  # One round tells, and may take a minute.
    return samples, {}


def row_of(vendor: str, first: str, samples: Mapping[str, list[Any]], problems: Mapping[str, str]) -> dict[str, Any]:
    """What the rounds say of one interface."""
    if vendor not in samples:
        label = vendor if vendor in problems else next(iter(problems))
        return {"problem": f"{label}: {problems[label]}"}
    seconds = {label: [taken for taken, _ in rounds] for label, rounds in samples.items()}
    cpu = {label: [[taken] for _, taken in rounds] for label, rounds in samples.items()}
    ratio, interval = ratio_of_medians(seconds["collage"], seconds[vendor])
    return {
        "collage_ms": 1e3 * float(np.median(np.concatenate(seconds["collage"]))),
        "vendor_ms": 1e3 * float(np.median(np.concatenate(seconds[vendor]))),
        "ratio": ratio,
        "interval": interval.as_list(),
        "cpu_ratio": ratio_of_medians(cpu["collage"], cpu[vendor])[0],
        "noise": ratio_of_medians(seconds[AGAIN], seconds[first])[0],
        "cpu_noise": ratio_of_medians(cpu[AGAIN], cpu[first])[0],
        "verdict": "within" if ratio <= BAR else "SLOWER" if interval.low > BAR else "unsure",
    }


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    head = f"{row['toolchain']:<13}{row['vendor']:<18}{row['model']:<18}"
    if "problem" in row:
        return f"{head}{row['problem']}"
    low, high = row["interval"]
    figures = f"{row['vendor_ms']:>10.2f}{row['collage_ms']:>10.2f}{row['ratio']:>8.3f} [{low:.3f}, {high:.3f}]"
    noise = f"{row['noise']:>8.3f}{row.get('cpu_noise', float('nan')):>8.3f}"
    return f"{head}{figures}{row['cpu_ratio']:>8.3f}{noise}  {row['verdict']}"


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Each toolchain through Collage against itself.")
    parser.add_argument("--models", help="some of the zoo, separated by commas; all without it")
    parser.add_argument("--toolchains", help=f"some of {','.join(VENDORS)}; all without it")
    parser.add_argument("--zoo", type=Path, default=ROOT / ".cache" / "zoo", help="folder of the zoo")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=20.0, help="nothing is begun after so many")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "collage_hobbled.jsonl")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are kept")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    names = options.toolchains.split(",") if options.toolchains else list(VENDORS)
    if unknown := set(names) - set(VENDORS):
        parser.error(f"no toolchain {', '.join(sorted(unknown))}")
    if options.fresh:
        options.state.unlink(missing_ok=True)
    entries = find(options.models.split(",")) if options.models else CATALOGUE
    kept = kept_rows(options.state, options.threads)
    ends = time.monotonic() + 60 * options.minutes
    rows, left = [], 0
    columns = f"{'vendor ms':>10}{'ours ms':>10}   ratio {'':<15}     cpu   noise  of cpu"
    print(f"{'toolchain':<13}{'vendor':<18}{'model':<18}{columns}")
    for name in names:
        for entry in entries:
            if (name, entry.name) not in kept:
                if time.monotonic() > ends:
                    left += 1
                    continue
                build(entry, options.zoo)
                kept[name, entry.name] = compare(name, options.zoo / entry.name, options.threads, options.rounds)
                with options.state.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in kept[name, entry.name])
            rows += kept[name, entry.name]
            print(*map(line, kept[name, entry.name]), sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    counts = {verdict: sum(row.get("verdict") == verdict for row in rows) for verdict in ("within", "unsure", "SLOWER")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if left:
        print(f"{left} models on toolchains are left: the same command again goes on with them")
    sys.exit(counts["SLOWER"] > 0)


def kept_rows(path: Path, threads: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of an earlier run at the same number of threads, by toolchain and model."""
    kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(text)
        if row["threads"] == threads:
            kept.setdefault((row["toolchain"], row["model"]), []).append(row)
    return kept


if __name__ == "__main__":
    main()
