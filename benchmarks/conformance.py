"""Run ONNX's backend test suite case by case, twice: through Collage, and without it.

::

    python -m benchmarks.conformance --via backend --sample 100 --seed 1
    python -m benchmarks.conformance --via backend --state suite.jsonl    # the same command again continues where it stopped
    python -m benchmarks.conformance --via toolchain [--toolchains openvino] [--sample 200] [--only conv] [--json FILE]
    python -m benchmarks.conformance --via toolchain --toolchains openvino --symbolic      # at lengths unknown ahead
    python -m benchmarks.conformance --via toolchain --toolchains inductor --together 16 --state verdicts.jsonl

``backend``: through ``collage.backend``, against ONNX Runtime alone. A regression is a case that ONNX Runtime passes and Collage
does not; there must be none. Prints each, and with ``--exclusions`` every case that ONNX Runtime fails. Timings decide which
kernels run and nothing else here, so that a busy machine is not waited for.

``toolchain``: how much of what a toolchain can do its integration lets through. For each toolchain, the cases that it passes
when it is *used directly*, within the suite's tolerances; and of those, the share that its integration takes (``supports``
on every operator, ``compile``, ``load``, run) and gets right: at least 95 %. ``wrong`` counts what the integration gets
wrong and the toolchain does not: there must be none. ``inherited`` are answers that the toolchain itself gives wrong (random
numbers and last digits among them); no integration hides them, and in a compilation the check against the reference throws
such kernels out.

"Directly" is the vendor's own Python interface on the case's own file: an ``InferenceSession``; ``compile_model``, told to
stay in float32; TVM's importer, ``tvm.compile`` and a virtual machine; IREE's importer, compiler and runtime. The host stands
for ONNX Runtime and ONNX's reference implementation, ``extern`` for TVM, whose code calls libraries where it can. PyTorch
reads no ONNX, so there the nearest thing is the table of operators itself on the prepared case, called one by one
(``onednn``) or through PyTorch's compiler (``inductor``: ``torch.compile`` of what ``torch.export`` makes of it, or else as
one graph), without the integration's checks, fusion and packing. As that says nothing about operators that the table lacks,
the share of the whole suite is printed too.

Inputs that say *how* (a shape, axes, a number of elements) stay inputs for every toolchain but ``inductor``: its code is for
the shapes that it was compiled with, and directly it refuses them too, so that those cases would drop out of the comparison.
For it they are constants, as in the models that people have, both directly and in the integration.

With ``--symbolic`` the lengths of each case's first input have names, both directly and in the integration: what pads, cuts
or broadcasts by lengths has to do so when it runs. ``wrong`` is what counts there: a length that has a name, and must be that
of another input all the same, may be refused, and toolchains for fixed shapes refuse all of it.

Each toolchain works in child processes: one that dies or hangs costs a case. Cases are tried in turns of operators, so that
the first of many parts holds each operator once. With ``--state`` a run is continued where it was stopped, by this command or
by another part of it. With ``--together`` cases that the toolchain says it takes are compiled side by side in one model, both
directly and in the integration (``_batched_cases.py``). Exit code 1 if a share is below the bar, or an answer wrong.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.numpy_helper
from benchmarks._arguments import make_parser
from benchmarks._batched_cases import grouped, joined
from benchmarks._vendors import SUITE_CASE

from collage.testing import with_named_lengths
from collage.testing.onnx_suite import Case, Runner, cases, difference, failure, same, with_onnxruntime

if TYPE_CHECKING:
    import onnx_ir as ir

BAR = 0.95
RIGHT, WRONG, REFUSED, FAILED, DIED, HUNG = "right", "wrong", "refused", "failed", "died", "hung"
BAD = (WRONG, DIED, HUNG)

FOR_FIXED_SHAPES = ("inductor",)


@dataclass(frozen=True)
class Verdict:
    """What became of one case on one toolchain.

    Attributes:
        toolchain: Name.
        case: Name.
        direct: How it went directly: one of the words above.
        ours: How it went through the integration.
        reason: Why, where it was not right.
    """

    toolchain: str
    case: str
    direct: str
    ours: str
    reason: str = ""


def integrated(model: onnx.ModelProto, name: str, workspace: Path) -> Runner:
    """The case as one kernel, the way Collage offers it: through the front door, prepared, asked operator by operator."""
    from collage.target import Target
    from collage.toolchains import LoadOptions, compile_for, registry

    toolchain = registry().get(name)
    target = Target.parse(toolchain.targets[0])
    kernel = supported(model, name)
    kernel.graph.name = f"case{len(list(workspace.iterdir()))}"
    loaded = toolchain.load(compile_for(toolchain, kernel, target, workspace), target, workspace, LoadOptions())
    return lambda inputs: loaded(list(inputs))


def supported(model: onnx.ModelProto, name: str) -> ir.Model:
    """The model as it is prepared for a toolchain that takes each of its operators."""
    from collage._errors import Unsupported
    from collage.frontend import read_model
    from collage.target import Target
    from collage.toolchains import registry
    from collage.transform import prepare

    toolchain = registry().get(name)
    target = Target.parse(toolchain.targets[0])
    kernel = prepare(read_model(model))
    for node in kernel.graph:
        support = toolchain.supports(node, target)
        if not support.ok:
            raise Unsupported(f"{node.op_type}: {support.reason}")
    return kernel


def taken(name: str, chosen: Sequence[Case]) -> set[str]:
    """The cases that a toolchain says it takes; asked in a child, since threads of its libraries would not outlive a fork."""

    def takes(case: Case) -> bool:
        try:
            kernel = supported(case.model, name)
            return name not in FOR_FIXED_SHAPES or not computes_shapes(kernel)
        except Exception:
            return False

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send({case.name for case in chosen if takes(case)}), daemon=True)
    child.start()
    theirs.close()
    names: set[str] = ours.recv()
    child.join()
    return names


def computes_shapes(kernel: ir.Model) -> bool:
    """Whether the table of torch calls would compute a shape from what is in an input."""
    from collage_torch.ops import Program

    return Program(kernel).reads_values_on_host


def with_constants(case: Case) -> Case:
    """The case with what says how as constants: what the table of torch calls reads before it computes."""
    from collage_torch.ops import OPS

    given = [value.name for value in case.model.graph.input]
    says_how = {
        node.input[i]
        for node in case.model.graph.node
        if node.op_type in OPS
        for i in OPS[node.op_type].host
        if i < len(node.input)
    }
    first, others = case.data[0][0], [inputs for inputs, _ in case.data[1:]]
    told = [
        i
        for i, name in enumerate(given)
        if name in says_how and all(np.array_equal(first[i], inputs[i]) for inputs in others)
    ]
    if not told or len(told) == len(given):  # nothing would be left to compute
        return case
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for i in reversed(told):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(first[i]), given[i]))
        del model.graph.input[i]
    kept = [i for i in range(len(given)) if i not in told]
    return replace(case, model=model, data=[([inputs[i] for i in kept], outputs) for inputs, outputs in case.data])


def with_symbols(case: Case) -> Case:
    """The case with names for the lengths of its first input, equal ones the same name, and outputs of unknown lengths."""
    # Under another name, so that verdicts that are kept are not taken for those on fixed lengths.
    return replace(case, name=f"{case.name}, symbolic", model=with_named_lengths(case.model, inputs=1))


def attempts(makes: Sequence[Callable[[onnx.ModelProto], Runner]], group: Sequence[Case]) -> list[tuple[str, str]]:
    """How each case goes, and why, in the first way that gets it right: all of a group in one model, or else its halves."""
    for make in makes:
        found = attempt(make, group)
        hows = {how for how, _ in found}
        if hows == {RIGHT} or (hows == {WRONG} and len(group) == 1):
            return found
    if len(group) == 1:
        return found
    half = len(group) // 2
    return attempts(makes, group[:half]) + attempts(makes, group[half:])


def attempt(make: Callable[[onnx.ModelProto], Runner], group: Sequence[Case]) -> list[tuple[str, str]]:
    """Builds cases as one model and runs it on all of their data: how each went, and why."""
    from collage._errors import Unsupported

    found = [(RIGHT, "")] * len(group)
    try:
        run = make(joined(group))
        for data in zip(*(case.data for case in group), strict=True):
            inputs = [np.asarray(x) if isinstance(x, np.generic) else x for inputs, _ in data for x in inputs]
            got = list(run(inputs))
            for i, (case, (_, outputs)) in enumerate(zip(group, data, strict=True)):
                mine, got = (got[: len(outputs)], got[len(outputs) :]) if len(group) > 1 else (got, [])
                if found[i][0] == RIGHT and not same(mine, list(outputs), case.rtol, case.atol):
                    found[i] = WRONG, difference(mine, outputs)
    except Unsupported as refusal:
        return [(REFUSED, str(refusal))] * len(group)
    except Exception as error:
        return [(FAILED, f"{type(error).__name__}: {error}"[:300])] * len(group)
    return found


def serve(
    name: str,
    groups: Sequence[Sequence[Case]],
    workspace: Path,
    pipe: multiprocessing.connection.Connection,
    other_end: multiprocessing.connection.Connection,
) -> None:
    """A child: tries group after group, and says what it begins before it begins."""
    other_end.close()  # else nothing would tell it that its parent was killed
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for group in groups:
        pipe.send("directly")
        direct = [how for how, _ in attempts(SUITE_CASE[name], group)]
        pipe.send(direct)
        ours = attempts([functools.partial(integrated, name=name, workspace=workspace)], group)
        pipe.send(
            [
                Verdict(name, case.name, how, our, " ".join(reason.split()))
                for case, how, (our, reason) in zip(group, direct, ours, strict=True)
            ]
        )
    os._exit(0)  # some toolchains crash when their threads are torn down


def tried(name: str, groups: Iterable[Sequence[Case]], chunk: int, timeout_s: float) -> Iterator[Verdict]:
    """Verdicts in order; a child that dies or hangs is replaced, and so is one that has done its ``chunk`` of groups.

    Of a group in which a child dies, every case is tried alone.
    """
    context = multiprocessing.get_context("fork")  # the suite is loaded once; nothing here has started a thread
    waiting = deque(groups)
    while waiting:
        ours, theirs = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory() as folder:
            part = list(itertools.islice(waiting, chunk))
            child = context.Process(target=serve, args=(name, part, Path(folder), theirs, ours), daemon=True)
            child.start()
            theirs.close()
            for group in part:
                waiting.popleft()
                verdicts = verdicts_on(name, group, ours, timeout_s * len(group))
                died = any({verdict.direct, verdict.ours} & {DIED, HUNG} for verdict in verdicts)
                if died and len(group) > 1:
                    waiting.extendleft([case] for case in reversed(group))
                else:
                    yield from verdicts
                if died:
                    break
            child.kill()
            child.join()


def verdicts_on(
    name: str, group: Sequence[Case], pipe: multiprocessing.connection.Connection, timeout_s: float
) -> list[Verdict]:
    """Waits for one group; what the child said last tells where it died or hung."""
    direct: list[str] = []
    while True:
        try:
            message = pipe.recv() if pipe.poll(timeout_s) else HUNG
        except EOFError:
            message = DIED
        if message in (DIED, HUNG):
            ours = message if direct else REFUSED
            hows = direct or [message] * len(group)
            return [Verdict(name, case.name, how, ours, message) for case, how in zip(group, hows, strict=True)]
        if message != "directly" and isinstance(message[0], Verdict):
            return list(message)
        if message != "directly":
            direct = message


def summary(name: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Counts of one toolchain, and whether it keeps the bar."""
    able = [v for v in verdicts if v.direct == RIGHT]
    right = sum(v.ours == RIGHT for v in able)
    wrong = sum(v.ours in BAD and v.direct not in BAD for v in verdicts)
    share = right / len(able) if able else 0.0
    return {
        "toolchain": name,
        "cases": len(verdicts),
        "directly": len(able),
        "integrated": right,
        "share": share,
        "of_suite": sum(v.ours == RIGHT for v in verdicts) / max(len(verdicts), 1),
        "wrong": wrong,
        "inherited": sum(v.ours in BAD and v.direct in BAD for v in verdicts),
        "kept": share >= BAR and wrong == 0,
    }


def missed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Cases that the toolchain passes directly and not through us, and all that we get wrong."""
    return [v for v in verdicts if (v.direct == RIGHT and v.ours != RIGHT) or v.ours in BAD]


def print_missed(verdicts: Sequence[Verdict]) -> None:
    inherited = [v.case for v in verdicts if v.ours in BAD and v.direct in BAD]
    for v in missed(verdicts):
        if v.case not in inherited:
            print(f"  {v.case}: {v.ours}: {v.reason}")
    if inherited:
        print(f"  inherited: {', '.join(inherited)}")


def via_toolchain(chosen: Sequence[Case], options: argparse.Namespace) -> bool:
    """Try cases on each toolchain, directly and through its integration, and print what is missed."""
    if options.symbolic:
        chosen = [with_symbols(case) for case in chosen]
    rows: list[dict[str, Any]] = []
    found: list[Verdict] = []
    print("toolchain       cases  directly  integrated   share  of suite  wrong  inherited")
    for name in options.toolchains.split(",") if options.toolchains else SUITE_CASE:
        verdicts = resumed(name, chosen, options)
        row = summary(name, verdicts)
        print(
            f"{name:<14}{row['cases']:>7}{row['directly']:>10}{row['integrated']:>12}{row['share']:>8.1%}"
            f"{row['of_suite']:>10.1%}{row['wrong']:>7}{row['inherited']:>11}  {'' if row['kept'] else 'BELOW THE BAR'}",
            flush=True,
        )
        print_missed(verdicts)
        rows.append(row)
        found += verdicts
    if options.json:
        report = {"bar": BAR, "toolchains": rows, "missed": [asdict(v) for v in missed(found)]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("reasons:", dict(Counter(v.ours for v in missed(found))))
    return all(row["kept"] for row in rows)


def via_backend(chosen: Sequence[Case], options: argparse.Namespace) -> bool:
    """Try cases through ``collage.backend`` where ONNX Runtime passes, and print regressions."""
    earlier = {row["case"]: row for row in kept_rows(options.state)}
    rows = []
    for case in chosen:
        row = earlier.get(case.name)
        if row is None:
            row = judge(case)
            keep_row(options.state, row)
        rows.append(row)
        if row["ours"] is not None:
            print(f"REGRESSION {row['case']}: {row['ours']}", flush=True)
        elif row["alone"] is not None and options.exclusions:
            print(f"excluded {row['case']}: ONNX Runtime alone: {row['alone']}", flush=True)
    alone = sum(row["alone"] is None for row in rows)
    passed = sum(row["alone"] is None and row["ours"] is None for row in rows)
    print(f"{len(rows)} cases; ONNX Runtime passes {alone}, Collage {passed} of them")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return passed == alone


def judge(case: Case) -> dict[str, Any]:
    """Return the reasons why ONNX Runtime and Collage fail a case; Collage is tried only where ONNX Runtime passes."""
    from collage import backend

    alone = failure(case, with_onnxruntime)
    ours = None if alone is not None else failure(case, lambda model: backend.prepare(model).run)
    return {"case": case.name, "alone": alone, "ours": ours}


VIA: Mapping[str, Callable[[Sequence[Case], argparse.Namespace], bool]] = {
    "toolchain": via_toolchain,
    "backend": via_backend,
}


def main() -> int:
    """Run the script."""
    parser = make_parser(__doc__, json=True)
    parser.add_argument("--via", choices=VIA, required=True)
    parser.add_argument("--part", default="1/1", help="such as 2/4: the second quarter of the cases")
    parser.add_argument("--sample", type=int, help="so many cases drawn at random; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--state", type=Path, help="file that keeps what came of each case, to continue from")
    parser.add_argument(
        "--exclusions", action="store_true", help="via backend: print every case that ONNX Runtime fails"
    )
    parser.add_argument("--toolchains", metavar="A,B", help=f"via toolchain: some of {','.join(SUITE_CASE)}")
    parser.add_argument("--symbolic", action="store_true", help="via toolchain: name the lengths of first inputs")
    parser.add_argument("--together", type=int, default=1, help="via toolchain: cases that are compiled as one model")
    parser.add_argument("--chunk", type=int, default=300, help="via toolchain: groups of cases for each child process")
    parser.add_argument(
        "--timeout", type=float, default=180.0, help="via toolchain: seconds for each attempt at a case"
    )
    options = parser.parse_args()
    if options.toolchains and (unknown := set(options.toolchains.split(",")) - set(SUITE_CASE)):
        parser.error(f"no toolchain {', '.join(sorted(unknown))}")
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    part, parts = map(int, options.part.split("/"))
    found_cases = in_turns([case for case in cases() if options.only in case.name])
    chosen = found_cases[(part - 1) * len(found_cases) // parts : part * len(found_cases) // parts]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    return int(not VIA[options.via](chosen, options))


def in_turns(chosen: Sequence[Case]) -> list[Case]:
    """One case of each set of operators, then another of each, and so on."""
    seen: Counter[frozenset[str]] = Counter()
    turns = []
    for case in chosen:
        operators = frozenset(node.op_type for node in case.model.graph.node)
        turns.append(seen[operators])
        seen[operators] += 1
    return [chosen[i] for i in sorted(range(len(chosen)), key=turns.__getitem__)]


def resumed(name: str, chosen: Sequence[Case], options: argparse.Namespace) -> Sequence[Verdict]:
    """Verdicts on all chosen cases: those kept from before, and the rest tried now."""
    known = (Verdict(**row) for row in kept_rows(options.state))
    kept = {verdict.case: verdict for verdict in known if verdict.toolchain == name}
    left = [with_constants(c) if name in FOR_FIXED_SHAPES else c for c in chosen if c.name not in kept]
    groups = grouped(left, options.together, taken(name, left) if options.together > 1 else ())
    for verdict in tried(name, groups, options.chunk, options.timeout):
        kept[verdict.case] = verdict
        keep_row(options.state, asdict(verdict))
    return [kept[case.name] for case in chosen]


def kept_rows(state: Path | None) -> list[dict[str, Any]]:
    """Return the rows of an earlier run, if any."""
    return [json.loads(row) for row in state.read_text().splitlines()] if state is not None and state.exists() else []


def keep_row(state: Path | None, row: Mapping[str, Any]) -> None:
    """Append a row to the state, if there is one."""
    if state is not None:
        with state.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main())
