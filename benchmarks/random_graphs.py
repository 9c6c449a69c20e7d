"""Random graphs of three to eight operators through toolchains, against two references.

::

    python benchmarks/random_graphs.py --toolchain openvino --seeds 0-300 [--json random.json]
    python benchmarks/random_graphs.py --toolchain openvino --reduce 17    # the smallest graph that goes as badly
    python benchmarks/random_graphs.py --toolchain openvino --symbolic     # the same kernels at other lengths too
    python benchmarks/random_graphs.py --toolchain openvino --wide         # lengths as vectors, tiles and threads have them
    python benchmarks/random_graphs.py --seed 17 --save model.onnx         # to look at it

A seed is a model (``_random_models.py``). What it should compute is what ONNX's reference implementation computes, if ONNX
Runtime without optimisations computes the same; otherwise the seed is ``skipped``. Collage takes it as ever: through the front
door, prepared, as one kernel if the toolchain takes every operator and the whole, or else in the largest pieces that it
takes. Each kernel is run twice. ``right``: every kernel is. ``refused``: no operator is taken. ``failed``: a kernel that was not
refused could not be built or run. ``WRONG``: an output differs from the reference by ten times what Collage allows a kernel.

With ``--symbolic`` the inputs' dimensions have names, and each kernel, once built, is run at other lengths as well, on which
both references agree (``_random_lengths.py``). It may refuse these, but not be wrong there. Lengths are small, of which
kernels have no vector, tile or thread to spare; with ``--wide`` most are around those that they have (other models; a seed
takes several times as long).

Kernels are built and run in child processes: one that dies or hangs costs a seed. Exit code 1 if any seed is wrong, or if
a child died or hung.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _random_lengths as lengths
import _random_rarities  # noqa: F401  registers its recipes, and all others
import numpy as np
import onnx
import onnx.printer
from _random_models import Sample, names_read, sample, typed
from coverage import BAD, DIED, DIRECT, FAILED, HUNG, REFUSED, RIGHT, WRONG
from onnx.reference import ReferenceEvaluator

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import Toolchain

SKIPPED = "skipped"
CHUNK = 40
"""Seeds for each child process."""
SLACK = 10.0
"""How much more than one kernel's error is allowed: errors add up along a graph, and are made larger."""


@dataclass(frozen=True)
class Verdict:
    """What became of one model on one toolchain.

    Attributes:
        seed: Which one.
        how: One of the words of ``coverage.py``, or that it was skipped.
        reason: Why, where it is not right.
        taken: Operators that were part of kernels.
        operators: All operators of the prepared model.
        cases: How many sets of inputs its kernels were run on.
    """

    seed: int
    how: str
    reason: str = ""
    taken: int = 0
    operators: int = 0
    cases: int = 1


@dataclass(frozen=True)
class Case:
    """Inputs of a model, and the outputs that it should have."""

    feeds: Mapping[str, Any]
    expected: Sequence[Any]


def onnxruntime_plainly(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime computes without optimisations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """What ONNX's reference implementation computes."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, dict(feeds))]


def tolerance(model: onnx.ModelProto) -> float:
    """What outputs may differ by, relative to their largest element, given the types in a model."""
    from collage.cost.numerics import tolerance_of

    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    types |= {weight.data_type for weight in inferred.initializer}
    return SLACK * tolerance_of(onnx.helper.tensor_dtype_to_np_dtype(each).name for each in types if each)


def difference(names: Sequence[str], got: Sequence[Any], wanted: Sequence[Any], allowed: float) -> str | None:
    """How the first output that is wrong differs, or None."""
    from collage.cost.numerics import compare

    for name, y, expected in zip(names, got, wanted, strict=True):
        found = compare(y, expected, allowed)
        if not found.ok:
            return f"{name}: {found.reason} (largest difference {found.max_abs:.3g})"
    return None


class NoCase(Exception):
    """The references do not agree."""


def case(model: onnx.ModelProto, feeds: Mapping[str, Any], allowed: float) -> Case:
    """What a model should return."""
    try:
        expected, others = reference(model, feeds), onnxruntime_plainly(model, feeds)
    except Exception as error:
        raise NoCase(f"a reference fails: {one_line(error)}") from error
    if differs := difference([value.name for value in model.graph.output], others, expected, allowed / SLACK):
        raise NoCase(f"the references differ in {differs}")
    return Case(feeds, expected)


def other_cases(given: Sample, allowed: float) -> Iterator[Case]:
    """The model at other lengths, where that is a fair question: the last digits of inputs do not decide the answer."""
    names = [value.name for value in given.model.graph.output]
    for feeds in lengths.at_other_lengths(given):
        try:
            found = case(given.model, feeds, allowed)
            again = reference(given.model, lengths.shaken(feeds))
        except Exception:
            continue
        if difference(names, again, found.expected, allowed) is None:
            yield found


def cases_of(seed: int, given: Sample, allowed: float, symbolic: bool) -> tuple[Sample, list[Case]]:
    """What a model is judged on: its own inputs, and with names for its lengths those at others, as far as it takes any.

    Raises:
        NoCase: It cannot be judged.
    """
    cases = [case(given.model, given.feeds, allowed)]
    if symbolic:
        given = lengths.symbolic(given, first_only=seed % 2 == 0)
        cases += other_cases(given, allowed)
    return given, cases


def judged(seed: int, given: Sample, name: str, symbolic: bool = False) -> Verdict:
    """Runs a model through the integration of a toolchain."""
    allowed = tolerance(given.model)
    try:
        given, cases = cases_of(seed, given, allowed, symbolic)
    except NoCase as reason:
        return Verdict(seed, SKIPPED, str(reason))
    if symbolic and len(cases) == 1:
        return Verdict(seed, SKIPPED, "it takes no other lengths")
    return integrated(seed, given.model, cases, allowed, name)


def integrated(seed: int, model: onnx.ModelProto, cases: Sequence[Case], allowed: float, name: str) -> Verdict:
    """The model as Collage would have the toolchain run it, and what was wrong."""
    import onnx_ir as ir

    from collage.frontend import read_model
    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import registry
    from collage.transform import prepare

    toolchain = registry().get(name)
    target = Target.parse(toolchain.targets[0])
    prepared = prepare(read_model(model))
    outputs = [str(value.name) for value in prepared.graph.outputs]
    values = []
    for each in cases:
        found = every_value(ir.to_proto(prepared), each.feeds)
        if differs := difference(outputs, [found[n] for n in outputs], each.expected, allowed):
            return Verdict(seed, WRONG, f"the preparation, {shapes_of(each.feeds)}: {differs}")
        values.append({**found, **dict(zip(outputs, each.expected, strict=True))})
    graph = DataflowGraph(prepared)
    supports = [toolchain.supports(graph.node(i), target) for i in range(len(graph))]
    reasons = [f"{graph.node(i).op_type}: {s.reason}" for i, s in enumerate(supports) if not s.ok]
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        waiting = runs_of([s.ok for s in supports])
        while waiting:
            first, last = waiting.pop()
            kernel = piece(graph, range(first, last))
            how, reason = tried(kernel, toolchain, target, Path(folder), values, allowed)
            if how == RIGHT:
                taken += last - first
            elif how == REFUSED and last - first > 1:
                middle = (first + last) // 2
                waiting += [(first, middle), (middle, last)]
            elif how != REFUSED:
                operators = " ".join(node.op_type for node in kernel.graph)
                return Verdict(seed, how, f"[{operators}] {reason}", taken, len(graph), len(cases))
            reasons += [reason] if reason else []
    how = RIGHT if taken or not len(graph) else REFUSED
    return Verdict(seed, how, "; ".join(reasons), taken, len(graph), len(cases))


def every_value(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """All that a prepared model computes: by ONNX Runtime, or by the other where a value is of a type that it does not return."""
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    if any(value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for value in inferred):
        return values_of(Sample(model, feeds))
    known = {value.name for value in model.graph.output}
    made = [name for node in model.graph.node for name in node.output if name and name not in known]
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    names = [value.name for value in asked.graph.output]
    kept = {value.name for value in model.graph.input}
    feeds = {name: x for name, x in feeds.items() if name in kept}
    return {**feeds, **dict(zip(names, onnxruntime_plainly(asked, feeds), strict=True))}


def runs_of(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Where the flags are set: ranges of neighbours. Operators are in topological order, so that each range can be a kernel."""
    ends = [i for i, (a, b) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if a != b]
    return list(zip(ends[::2], ends[1::2], strict=True))


def piece(graph: DataflowGraph, inside: Iterable[int]) -> ir.Model:
    """Operators as a kernel."""
    from collage.graph import SubGraph, extract

    inside = list(inside)
    return extract(graph, SubGraph(graph, inside), f"k{inside[0]}_{inside[-1]}")


def tried(
    kernel: ir.Model,
    toolchain: Toolchain,
    target: Target,
    folder: Path,
    cases: Sequence[Mapping[str, Any]],
    allowed: float,
) -> tuple[str, str]:
    """How a kernel goes, and why. On the first case it has to run."""
    from collage._errors import Unsupported
    from collage.toolchains import LoadOptions

    inputs = [str(value.name) for value in kernel.graph.inputs]
    names = [str(value.name) for value in kernel.graph.outputs]
    if odd := [name for name in (*inputs, *names) if isinstance(cases[0][name], list)]:
        return REFUSED, f"{odd} are no tensors, and {kernel.graph.name} would be handed them"
    refused = ""
    for number, values in enumerate((cases[0], *cases)):
        feeds = [np.array(values[name]) for name in inputs]
        try:
            if not number:
                loaded = toolchain.load(toolchain.compile(kernel, target, folder), target, folder, LoadOptions())
            got = [np.array(y) for y in loaded(feeds)]
        except Exception as error:
            if number > 1:
                refused = refused or f"at other lengths, {[x.shape for x in feeds]}: {one_line(error)}"
                continue
            return (REFUSED, str(error)) if isinstance(error, Unsupported) else (FAILED, one_line(error))
        if differs := difference(names, got, [values[n] for n in names], allowed):
            return WRONG, f"{differs}, given {[x.shape for x in feeds]}"
    return RIGHT, refused


def shapes_of(feeds: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}{list(np.shape(x))}" for name, x in feeds.items())


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def in_children(
    jobs: Sequence[tuple[int, Sample | None]],
    judge: Callable[[int, Sample], Verdict],
    timeout_s: float,
    draw: Callable[[int], Sample] = sample,
) -> Iterator[Verdict]:
    """Verdicts in order; a child that dies or hangs is replaced, and so is one that has judged so many.

    Args:
        jobs: Seeds, with their models where these are known.
        judge: Judges a model.
        timeout_s: For each.
        draw: Makes the model of a seed.
    """
    context = multiprocessing.get_context("fork")  # nothing here has started a thread
    waiting = list(jobs)
    while waiting:
        ours, theirs = context.Pipe(duplex=False)
        part = waiting[:CHUNK]
        child = context.Process(target=serve, args=(part, judge, draw, theirs, ours), daemon=True)
        child.start()
        theirs.close()
        for seed, _ in part:
            waiting.pop(0)
            try:
                verdict = ours.recv() if ours.poll(timeout_s) else Verdict(seed, HUNG, f"not within {timeout_s:.0f} s")
            except EOFError:
                verdict = Verdict(seed, DIED, "the process died")
            yield verdict
            if verdict.how in (DIED, HUNG):
                break
        child.kill()
        child.join()


def serve(
    jobs: Sequence[tuple[int, Sample | None]],
    judge: Callable[[int, Sample], Verdict],
    draw: Callable[[int], Sample],
    pipe: Any,
    other_end: Any,
) -> None:
    """A child: judges model after model."""
    other_end.close()  # else nothing would tell it that its parent was killed
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for seed, given in jobs:
        try:
            pipe.send(judge(seed, given or draw(seed)))
        except Exception as error:
            pipe.send(Verdict(seed, FAILED, f"before the toolchain: {one_line(error)}"))
    os._exit(0)  # some toolchains crash when their threads are torn down


def without(given: Sample, dropped: Sequence[str]) -> Sample | None:
    """The model without some operators: what others read of them becomes inputs, and what only they read becomes outputs.

    None where that is no tensor.
    """
    model = onnx.ModelProto()
    model.CopyFrom(given.model)
    values = values_of(given)
    gone = [node for node in model.graph.node if node.name in dropped]
    for node in gone:
        model.graph.node.remove(node)
    read = set(names_read(model.graph.node))
    kept = {name for node in model.graph.node for name in node.output} - {value.name for value in model.graph.output}
    left = {name for node in gone for name in node.input if name in kept and name not in read}
    lost = {name for node in gone for name in node.output if name in read}
    if not left | lost <= values.keys():
        return None
    model.graph.output.extend(typed(name, values[name], fixed=True) for name in sorted(left))
    return pruned(model, values, {name for node in gone for name in node.output})


def with_output(given: Sample, name: str) -> Sample | None:
    """The model with one of its outputs only."""
    model = onnx.ModelProto()
    model.CopyFrom(given.model)
    for value in list(model.graph.output):
        if value.name != name:
            model.graph.output.remove(value)
    return pruned(model, values_of(given), set())


def pruned(model: onnx.ModelProto, values: Mapping[str, Any], gone: set[str]) -> Sample | None:
    """A model without what nothing reads, and with inputs for what is gone."""
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    for value in list(model.graph.output):
        if value.name in gone:
            model.graph.output.remove(value)
    model.graph.input.extend(typed(name, values[name], fixed=True) for name in sorted(gone & values.keys()))
    if not model.graph.output or not model.graph.node:
        return None
    model = ir.to_proto(RemoveUnusedNodesPass()(ir.from_proto(model)).model)
    read = {
        n for node in ir.from_proto(model).graph.all_nodes() for v in node.inputs if v is not None and (n := v.name)
    }
    for value in list(model.graph.input):
        if value.name not in read:
            model.graph.input.remove(value)
    return Sample(model, {value.name: values[value.name] for value in model.graph.input})


def values_of(given: Sample) -> dict[str, Any]:
    """All tensors that a model reads and computes."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ReferenceEvaluator(given.model).run(None, dict(given.feeds), intermediate=True)
    return {
        **given.feeds,
        **{name: np.asarray(x) for name, x in found.items() if isinstance(x, np.ndarray | np.generic)},
    }


def reduced(
    seed: int, name: str, timeout_s: float, symbolic: bool = False, wide: bool = False
) -> tuple[Sample, Verdict]:
    """The smallest model found that goes as badly as that of the seed: outputs and operators are dropped while it does."""
    given, judge = sample(seed, wide), functools.partial(judged, name=name, symbolic=symbolic)
    (worst,) = in_children([(seed, given)], judge, timeout_s)
    if worst.how in (RIGHT, REFUSED, SKIPPED):
        return given, worst
    smaller = True
    while smaller:
        smaller = False
        outputs = [value.name for value in given.model.graph.output]
        makes = [functools.partial(with_output, given, output) for output in outputs if len(outputs) > 1]
        makes += [functools.partial(without, given, [node.name]) for node in given.model.graph.node]
        for make in makes:
            candidate = make()
            if candidate is None:
                continue
            (verdict,) = in_children([(seed, candidate)], judge, timeout_s)
            if verdict.how == worst.how:
                given, worst, smaller = candidate, verdict, True
                break
    return given, worst


def text_of(given: Sample) -> str:
    """The model and its inputs, to read."""
    lines = [onnx.printer.to_text(given.model)]
    lines += [f"{name} = {np.array2string(np.asarray(x), threshold=60)}" for name, x in given.feeds.items()]
    return "\n".join(lines)


def seeds_of(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toolchain", action="append", choices=sorted(DIRECT), help="all CPU toolchains without it")
    parser.add_argument("--seeds", type=seeds_of, default=range(301), help="such as 0-300")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each seed")
    parser.add_argument(
        "--symbolic", action="store_true", help="name the inputs' dimensions, and run at other lengths too"
    )
    parser.add_argument("--wide", action="store_true", help="models of wide lengths")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--seed", type=int, help="print the model of one seed")
    parser.add_argument("--save", type=Path, help="with --seed or --reduce: write the model here")
    parser.add_argument("--reduce", type=int, metavar="SEED", help="print the smallest part that goes as badly")
    options = parser.parse_args()
    names = options.toolchain or list(DIRECT)
    if options.seed is not None or options.reduce is not None:
        if options.seed is not None:
            given = sample(options.seed, options.wide)
        else:
            given, verdict = reduced(options.reduce, names[0], options.timeout, options.symbolic, options.wide)
            print(f"{verdict.how}: {verdict.reason}")
        if options.save:
            onnx.save(given.model, options.save)
        print(text_of(given))
        return 0
    rows: dict[str, list[Verdict]] = {}
    print(
        "toolchain       seeds   right  refused  failed   WRONG  died, hung  skipped  operators in kernels", flush=True
    )
    for name in names:
        jobs = [(seed, None) for seed in options.seeds]
        judge = functools.partial(judged, name=name, symbolic=options.symbolic)
        draw = functools.partial(sample, wide=options.wide)
        found = rows[name] = list(in_children(jobs, judge, options.timeout, draw))
        print_row(name, found)
    if options.json:
        options.json.write_text(
            json.dumps({n: [asdict(v) for v in found] for n, found in rows.items()}, indent=1) + "\n"
        )
    return int(any(verdict.how in BAD for found in rows.values() for verdict in found))


def print_row(name: str, found: Sequence[Verdict]) -> None:
    """Counts of one toolchain, and each seed that is not as it should be."""
    counts = Counter(verdict.how for verdict in found)
    taken, operators = sum(v.taken for v in found), sum(v.operators for v in found)
    cases = sum(v.cases for v in found if v.how != SKIPPED)
    print(
        f"{name:<14}{len(found):>7}{counts[RIGHT]:>8}{counts[REFUSED]:>9}{counts[FAILED]:>8}{counts[WRONG]:>8}"
        f"{counts[DIED] + counts[HUNG]:>12}{counts[SKIPPED]:>9}{taken:>10} of {operators} on {cases} sets of inputs",
        flush=True,
    )
    for verdict in found:
        if verdict.how in (*BAD, FAILED):
            print(f"  {verdict.seed}: {'WRONG' if verdict.how == WRONG else verdict.how}: {verdict.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
