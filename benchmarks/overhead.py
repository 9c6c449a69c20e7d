"""Measure what Collage costs on top of a vendor's own Python interface, at one of three levels.

::

    python -m benchmarks.overhead --level toolchain [--models resnet50,bert] [--toolchains openvino,tvm] [--minutes 20]
    python -m benchmarks.overhead --level contract [--models resnet50]
    python -m benchmarks.overhead --level runtime [--models resnet50] [--kernels N]

``toolchain``: whole models of the zoo through each toolchain against the vendor's own interfaces, each in a process of its own
(``_whole_models.py``). Prints medians, the ratio Collage / vendor with its 95 % interval, the same ratio of processor time, and
both ratios of the vendor and itself (``noise``): ``within`` 3 %, ``SLOWER`` if the whole interval lies above, else ``unsure``.
Exit code 1 if any is slower. On a busy machine processor time says more than latency only of one thread (``--threads 1``): two
spin while they wait for each other, the longer the more often one is kept from running. ONNX Runtime is asked through ``run``
and through an IO binding that has the session allocate outputs; OpenVINO with its latency hint, sharing memory both ways; TVM
with its default pipeline; IREE with the command-line compiler for this processor at its highest level, inputs on the device
ahead of time. PyTorch reads no ONNX: its own interface is the module that the zoo's model was exported from, eagerly and as a
frozen trace (``onednn``), and through ``torch.compile`` with frozen weights (``inductor``). Models that are no module are left
out there. Rows are kept (``--state``): the same command again goes on where the minutes were over. A quiet machine is a must.

``contract``: one model as a kernel through the contract of toolchains against the vendor's interface, in turns in one process,
and the vendor's interface against itself as a measure of noise.

``runtime``: models of many tiny kernels as an executable, against the same kernels called one after the other (at most 5 µs for
each kernel); and whole models as one kernel against that kernel called directly and the vendor's interface (at most 2 % or
3 µs), each 20 times in a row, in turns. Exit code 1 beyond that.

It also times kernels that take indices against the same kernels without Collage's checks (at most 2 % or 3 µs).

``--threads`` and ``--json`` are of the level ``toolchain``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from benchmarks._arguments import chosen_models, make_parser
from benchmarks._vendors import KERNEL, WHOLE_MODEL
from benchmarks._whole_models import compare
from onnx import TensorProto, helper

from collage._errors import TargetError, Unsupported
from collage.frontend import make_inputs, read_model
from collage.target import Target
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, compile_for, load_for, registry
from collage.transform import prepare

TARGETS = ("onnxruntime", "openvino", "llvm")
LIMIT_US = 5.0
MODEL_LIMIT_US = 3.0
CALLS = 20
"""Calls in a row of a whole model: as in a race, and as those of a caller who has nothing else to do."""


def small_models() -> list[ir.Model]:
    """Return a single Relu, two layers of a free length and two outputs, and convolutional networks of about 0.3 to 4 ms."""
    random = np.random.default_rng(0)
    models = [kernel("relu", "(float[1,16] x) => (float[1,16] y) {y = Relu (x)}")]
    layers = {name: random.standard_normal((64, 64)).astype(np.float32) / 10 for name in "vw"}
    free = "(float[n,64] x) => (float[n,64] z, float[n,64] y) {h = MatMul (x, w) y = Relu (h) g = MatMul (y, v) z = Tanh (g)}"
    models.append(kernel("free", free, layers))
    for side in (14, 28, 56):
        body, weights, last = "", {}, "x"
        for layer, (inner, outer) in enumerate(((3, 32), (32, 64), (64, 64), (64, 64))):
            weights[f"w{layer}"] = random.standard_normal((outer, inner, 3, 3)).astype(np.float32) / 10
            body += f"c{layer} = Conv <pads = [1,1,1,1]> ({last}, w{layer}) r{layer} = Relu (c{layer})\n"
            last = f"r{layer}"
        network = f"(float[1,3,{side},{side}] x) => (float[1,64,{side},{side}] {last}) {{{body}}}"
        models.append(kernel(f"convs_{side}", network, weights))
    return models


def models_of(options: argparse.Namespace) -> list[ir.Model]:
    """Return the models of ``--models``, called as they are in the zoo, or else small ones."""
    if not options.models:
        return small_models()
    models = []
    for chosen in chosen_models(options):
        model = read_model(chosen.path)
        model.graph.name = chosen.name
        models.append(model)
    return models


def medians(calls: list[Callable[[], object]], rounds: int, block: int = 1) -> list[float]:
    """Median seconds of each call; the calls take turns in a random order, as each leaves its threads spinning.

    Args:
        calls: The calls.
        rounds: Number of turns of each.
        block: Number of calls in a row in each turn; the median of a turn counts.
    """
    random = np.random.default_rng(0)
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(10):
        for call in calls:
            call()
    for _ in range(rounds):
        for i in random.permutation(len(calls)):
            turn = []
            for _ in range(block):
                began = time.perf_counter()
                calls[i]()
                turn.append(time.perf_counter() - began)
            seconds[i].append(statistics.median(turn))
    return [statistics.median(each) for each in seconds]


def chain(length: int) -> onnx.ModelProto:
    """Operators of one microsecond, one after the other."""
    ops = ("Relu", "Neg", "Abs", "Sigmoid")
    nodes = [helper.make_node(ops[i % 4], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)]
    first, last = (helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [1, 16]) for i in (0, length))
    graph = helper.make_graph(nodes, "chain", [first], [last])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def one_after_the_other(exe: Any, x: np.ndarray) -> Callable[[], object]:
    """The kernels of an executable, loaded a second time and called in a plain loop."""
    kernels = []
    for record in exe.recipe.kernels:
        toolchain = registry().get(record.compiled.toolchain)
        options = LoadOptions(exclusive=False)
        kernels.append(toolchain.load(record.compiled, Target.parse(record.target), exe.workspace, options))

    def call() -> object:
        values: Sequence[np.ndarray] = [x]
        for each in kernels:
            values = each([values[0]])
        return values

    return call


def tiny_kernels(length: int, rounds: int) -> bool:
    """Time executables of many kernels beside their kernels alone."""
    print(f"{'tiny kernels':<28}{'kernels us':>12}{'run us':>12}{'us/kernel on top':>18}")
    x = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    mixes = {**{target: [target] for target in TARGETS}, "in turns": list(TARGETS)}
    fine = True
    for name, targets in mixes.items():
        exe = executable_of(chain(length), [([i], targets[i % len(targets)]) for i in range(length)])
        alone, ours = medians([one_after_the_other(exe, x), lambda exe=exe: exe.run([x])], rounds)
        extra_us = (ours - alone) * 1e6 / length
        fine = fine and extra_us < LIMIT_US
        print(f"{length} x {name:<22}{alone * 1e6:>12.1f}{ours * 1e6:>12.1f}{extra_us:>18.2f}")
    return fine


def only_kernel(exe: Any, feeds: Mapping[str, np.ndarray]) -> Callable[[], object]:
    """A call of the very kernel that an executable of one kernel calls: another instance has its memory elsewhere."""
    context = exe._contexts.hold()
    exe._contexts.release(context)
    ((called, *_),) = context._steps
    (record,) = exe.recipe.kernels
    values = [feeds[name] for name in record.compiled.inputs]
    return lambda: called(values)


def whole_models(models: Sequence[ir.Model], names: Sequence[str], rounds: int) -> bool:
    """Time executables of one kernel beside that kernel, and beside the vendor's own interface if it is here.

    The ratio of two rows of the same kernel, or of two instances of the vendor's interface, is the noise.
    """
    head = f"{'beside':>10}{'its us':>12}{'run us':>12}{'on top us':>12}{'ratio':>8}{'noise':>8}"
    print(f"\n{'whole model':<28}{head}")
    fine = True
    for name, model in itertools.product(names, models):
        try:
            exe = executable_of(model, registry().get(name).targets[0])
        except (TargetError, Unsupported) as error:
            print(f"{name:<28}{error}")
            continue
        feeds = make_inputs(model)
        kernel_alone = only_kernel(exe, feeds)
        sides = {"run": partial(exe.run, feeds), "kernel": kernel_alone, "kernel again": kernel_alone}
        if itself := KERNEL.get(name):
            path = exe.workspace / "as_it_is.onnx"
            ir.save(model, path)
            sides |= {each: itself(path, list(feeds.values())) for each in ("vendor", "vendor again")}
        found = dict(zip(sides, medians(list(sides.values()), rounds, CALLS), strict=True))
        for beside in ("kernel", "vendor") if itself else ("kernel",):
            its_s, run_s, noise = found[beside], found["run"], found[f"{beside} again"] / found[beside]
            extra_us, ratio = (run_s - its_s) * 1e6, run_s / its_s
            is_fine = extra_us <= MODEL_LIMIT_US or ratio <= max(1.02, noise, 1 / noise)
            fine = fine and is_fine
            figures = f"{its_s * 1e6:>12.1f}{run_s * 1e6:>12.1f}{extra_us:>12.1f}{ratio:>8.3f}{noise:>8.3f}"
            row = f"{name + ' ' + str(model.graph.name)[:15]:<28}{beside:>10}{figures}"
            print(row + ("" if is_fine else "  BEYOND"), flush=True)
    return fine


def lookups() -> list[ir.Model]:
    """Return a text classifier and a generator of pictures of a class; of the first also one that computes its indices."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32) / 10

    layers = "{made} e = Gather (table, {of}) h = MatMul (e, w) r = Relu (h) y = MatMul (r, v)"
    text = f"(int64[1,32] ids) => (float[1,32,64] y) {{{layers}}}"
    weights = {"table": normal(1000, 64), "w": normal(64, 256), "v": normal(256, 64)}
    body = "g = Gather (table, label) s = Reshape (g, plane) c = Conv <pads = [1,1,1,1]> (x, w) a = Add (c, s) r = Relu (a)"
    picture = (
        f"(float[1,3,48,48] x, int64[1] label) => (float[1,3,48,48] y) {{{body} y = Conv <pads = [1,1,1,1]> (r, v)}}"
    )
    return [
        kernel("embedding", text.replace("{made}", "").replace("{of}", "ids"), weights),
        kernel(
            "shifted",
            text.replace("{made}", "i = Add (ids, two)").replace("{of}", "i"),
            {**weights, "two": np.array(2, np.int64)},
        ),
        kernel(
            "generator",
            picture,
            {
                "table": normal(10, 64),
                "plane": np.array([1, 64, 1, 1]),
                "w": normal(64, 3, 3, 3),
                "v": normal(3, 64, 3, 3),
            },
        ),
    ]


def index_checks(names: Sequence[str], rounds: int) -> bool:
    """Time kernels that check indices beside the same kernels as the toolchain compiles them by itself."""
    print(f"\n{'index checks':<28}{'without us':>12}{'with us':>12}{'on top us':>12}{'ratio':>8}{'noise':>8}")
    fine = True
    for name, model in itertools.product(names, map(prepare, lookups())):
        toolchain = registry().get(name)
        target, options = registry().parse_target(toolchain.targets[0]), LoadOptions(exclusive=True)
        feeds = {key: np.ones_like(value) for key, value in make_inputs(model).items()}
        with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as checked:
            compiled = toolchain.compile(model, target, Path(plain))
            ours = compile_for(toolchain, model, target, Path(checked))
            calls = [
                *(toolchain.load(compiled, target, Path(plain), options) for _ in range(2)),
                load_for(toolchain, ours, target, Path(checked), options),
            ]
            given = [feeds[each] for each in ours.inputs]
            without, again, with_checks = medians([partial(call, given) for call in calls], rounds)
        extra_us, ratio, noise = (with_checks - without) * 1e6, with_checks / without, again / without
        is_fine = extra_us <= MODEL_LIMIT_US or ratio <= max(1.02, noise, 1 / noise)
        fine = fine and is_fine
        figures = f"{without * 1e6:>12.1f}{with_checks * 1e6:>12.1f}{extra_us:>12.1f}{ratio:>8.3f}{noise:>8.3f}"
        print(f"{name + ' ' + str(model.graph.name):<28}{figures}" + ("" if is_fine else "  BEYOND"), flush=True)
    return fine


def contract_level(options: argparse.Namespace) -> bool:
    """Time kernels through the contract beside the vendors' own interfaces."""
    print(f"{'toolchain':<14}{'model':<20}{'vendor API us':>14}{'kernel us':>12}{'ratio':>8}{'noise':>8}")
    for name, itself in KERNEL.items():
        toolchain = registry().get(name)
        for model in models_of(options):
            with tempfile.TemporaryDirectory() as folder:
                workspace, target = Path(folder), Target.parse(toolchain.targets[0])
                compiled = toolchain.compile(model, target, workspace)
                loaded = toolchain.load(compiled, target, workspace, LoadOptions(exclusive=True))
                inputs = list(make_inputs(model).values())
                calls = [itself(workspace / compiled.files[0], inputs) for _ in range(2)]
                direct, again, ours = medians([*calls, lambda k=loaded, x=inputs: k(x)], options.rounds or 200)
            figures = f"{direct * 1e6:>14.1f}{ours * 1e6:>12.1f}{ours / direct:>8.3f}{again / direct:>8.3f}"
            print(f"{name:<14}{str(model.graph.name)[:18]:<20}{figures}", flush=True)
    return True


def runtime_level(options: argparse.Namespace) -> bool:
    """Time executables beside their kernels alone, and beside the vendors' own interfaces."""
    rounds = options.rounds or 200
    fine = not options.kernels or tiny_kernels(options.kernels, rounds)
    named = set(options.toolchains) & set(registry().names())
    fine = whole_models(models_of(options), sorted(named), rounds) and fine
    fine = index_checks(sorted(named - {"onnxruntime"}), rounds) and fine
    print(f"\n{'within' if fine else 'BEYOND'} 5 us per kernel, and 2 % or 3 us per model")
    return fine


def toolchain_level(options: argparse.Namespace) -> bool:
    """Time whole models on each toolchain, beside the vendors' own interfaces."""
    if options.fresh:
        options.state.unlink(missing_ok=True)
    kept = kept_rows(options.state, options.threads)
    ends = time.monotonic() + 60 * options.minutes
    rows: list[dict[str, Any]] = []
    left = 0
    columns = f"{'vendor ms':>10}{'ours ms':>10}   ratio {'':<15}     cpu   noise  of cpu"
    print(f"{'toolchain':<13}{'vendor':<18}{'model':<18}{columns}")
    for name in options.toolchains:
        for model in chosen_models(options):
            if (name, model.name) not in kept:
                if time.monotonic() > ends:
                    left += 1
                    continue
                found = compare(name, model.path.parent, options.threads, options.rounds or 30)
                kept[name, model.name] = found
                with options.state.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
            rows += kept[name, model.name]
            print(*map(whole_model_line, kept[name, model.name]), sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    counts = {verdict: sum(row.get("verdict") == verdict for row in rows) for verdict in ("within", "unsure", "SLOWER")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if left:
        print(f"{left} models on toolchains are left: the same command again goes on with them")
    return counts["SLOWER"] == 0


def whole_model_line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    head = f"{row['toolchain']:<13}{row['vendor']:<18}{row['model']:<18}"
    if "problem" in row:
        return f"{head}{row['problem']}"
    low, high = row["interval"]
    figures = f"{row['vendor_ms']:>10.2f}{row['collage_ms']:>10.2f}{row['ratio']:>8.3f} [{low:.3f}, {high:.3f}]"
    noise = f"{row['noise']:>8.3f}{row.get('cpu_noise', float('nan')):>8.3f}"
    return f"{head}{figures}{row['cpu_ratio']:>8.3f}{noise}  {row['verdict']}"


def kept_rows(path: Path, threads: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of an earlier run at the same number of threads, by toolchain and model."""
    kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(text)
        if row["threads"] == threads:
            kept.setdefault((row["toolchain"], row["model"]), []).append(row)
    return kept


LEVELS: Mapping[str, Callable[[argparse.Namespace], bool]] = {
    "toolchain": toolchain_level,
    "contract": contract_level,
    "runtime": runtime_level,
}


def main() -> int:
    """Run the script."""
    without = "all of the zoo at the level toolchain, else a Relu and a small convolutional network"
    parser = make_parser(__doc__, models="", without_models=without, threads=0, json=True)
    parser.add_argument("--level", choices=LEVELS, required=True)
    parser.add_argument("--rounds", type=int, help="default: 30 at the level toolchain, else 200")
    parser.add_argument("--toolchains", metavar="A,B", help=f"some of {','.join(WHOLE_MODEL)}; all without it")
    parser.add_argument("--minutes", type=float, default=20.0, help="level toolchain: nothing is begun after so many")
    state = Path(tempfile.gettempdir()) / "collage_overhead.jsonl"
    parser.add_argument("--state", type=Path, default=state, help="level toolchain: file of the rows that are kept")
    parser.add_argument("--fresh", action="store_true", help="level toolchain: forget the rows that are kept")
    parser.add_argument(
        "--kernels", type=int, default=100, help="level runtime: length of the chains; 0 leaves them out"
    )
    options = parser.parse_args()
    options.toolchains = options.toolchains.split(",") if options.toolchains else list(WHOLE_MODEL)
    if unknown := set(options.toolchains) - set(WHOLE_MODEL):
        parser.error(f"no toolchain {', '.join(sorted(unknown))}")
    if options.level == "toolchain" and ".onnx" in options.models:
        parser.error("the level toolchain needs models of the zoo")
    return int(not LEVELS[options.level](options))


if __name__ == "__main__":
    sys.exit(main())
