"""Random graphs as artefacts of several toolchains, with odd names, against two references.

::

    python benchmarks/random_mixes.py [--toolchains tvm,openvino] --seeds 0-300 [--symbolic] [--wide] [--json mixes.json]

A seed is a model (see ``random_graphs.py``) and a way to run it. Its values, operators and graphs get names that nobody thinks of
(``_odd_names.py``). Its operators are cut into ranges, each of which goes to one of the toolchains that takes it, or to the
host. The executable runs it; so does the artefact that it is saved as, a folder, a zip or a recipe in turn, once it is
loaded. Each runs it twice, and may not change its inputs. With ``--symbolic`` the inputs' dimensions have names, and it is run
at other lengths as well: there the host stands in for kernels that refuse them.

``right``: everything is; ``WRONG``: an output differs from the reference, or inputs changed; ``failed``: it could not be built,
saved, loaded or run. Models are judged in child processes; one that dies or hangs costs a seed. Exit code 1 if anything is wrong
or failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from _odd_names import oddly_named
from _random_models import Sample, sample
from coverage import BAD, FAILED, RIGHT, WRONG
from forced import Part, executable
from random_graphs import (
    SKIPPED,
    Case,
    NoCase,
    Verdict,
    cases_of,
    difference,
    in_children,
    one_line,
    piece,
    print_row,
    seeds_of,
    shapes_of,
    tolerance,
)

if TYPE_CHECKING:
    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import Toolchain

TOOLCHAINS = "tvm,onnxruntime,openvino,onednn"
HOST = "llvm -compiler=host"
SAVED_AS = ("m.collage", "m.zip", "recipe.collage")
LONGEST = 4
"""Operators of a range."""


def judged(seed: int, given: Sample, toolchains: Sequence[str], symbolic: bool) -> Verdict:
    """Runs a model as an executable of several toolchains, and as what that is saved as."""
    given, allowed = oddly_named(given, seed), tolerance(given.model)
    try:
        given, cases = cases_of(seed, given, allowed, symbolic)
    except NoCase as reason:
        return Verdict(seed, SKIPPED, str(reason))
    with tempfile.TemporaryDirectory() as folder:
        parts, size = chosen(given.model, toolchains, random.Random(seed), Path(folder))
        kernels = ", ".join(f"{target} {[*inside]}" for inside, target in parts)
        taken = sum(len([*inside]) for inside, target in parts if target != HOST)
        try:
            for what, run in runners(given.model, parts, Path(folder) / SAVED_AS[seed % len(SAVED_AS)]):
                if wrong := why_wrong(run, given.model, cases, allowed):
                    return Verdict(seed, WRONG, f"{what} of {kernels}: {wrong}", taken, size, len(cases))
        except Exception as error:
            return Verdict(seed, FAILED, f"{kernels}: {one_line(error)}", taken, size, len(cases))
    return Verdict(seed, RIGHT, kernels, taken, size, len(cases))


def chosen(model: onnx.ModelProto, names: Sequence[str], rng: random.Random, folder: Path) -> tuple[list[Part], int]:
    """Ranges of operators with targets, and how many operators there are."""
    from collage.frontend import read_model
    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import registry
    from collage.transform import prepare

    graph = DataflowGraph(prepare(read_model(model)))
    parts: list[Part] = []
    start = 0
    while start < len(graph):
        inside = range(start, min(len(graph), start + rng.randint(1, LONGEST)))
        found = [registry().get(name) for name in rng.sample(names, len(names))]
        takers = ((toolchain, Target.parse(toolchain.targets[0])) for toolchain in found)
        taker = next((target for toolchain, target in takers if takes(toolchain, target, graph, inside, folder)), None)
        parts.append((inside, HOST if taker is None else str(taker)))
        start = inside.stop
    return parts, len(graph)


def takes(toolchain: Toolchain, target: Target, graph: DataflowGraph, inside: range, folder: Path) -> bool:
    """Whether a toolchain takes a range of operators."""
    from collage._errors import ToolchainError
    from collage.toolchains import LoadOptions

    if not all(toolchain.supports(graph.node(i), target).ok for i in inside):
        return False
    try:
        toolchain.load(toolchain.compile(piece(graph, inside), target, folder), target, folder, LoadOptions())
    except ToolchainError:
        return False  # ``random_graphs.py`` tells those that fail from those that are refused.
    return True


def runners(model: onnx.ModelProto, parts: Sequence[Part], path: Path) -> Iterator[tuple[str, Any]]:
    """The executable, and what it was saved as and loaded from."""
    import collage

    made = executable(model, parts)
    yield "the executable", made.run
    made.save(path, recipe_only=path.name == SAVED_AS[-1])
    yield f"the artefact {path.name}", collage.load(path).run


def why_wrong(run: Any, model: onnx.ModelProto, cases: Sequence[Case], allowed: float) -> str | None:
    """What is wrong with what is computed, or with what became of the inputs."""
    names = [value.name for value in model.graph.output]
    for each in (cases[0], *cases):
        feeds = {name: np.array(each.feeds[name]) for name in (value.name for value in model.graph.input)}
        found = run(feeds)
        if differs := difference(names, [found[name] for name in names], each.expected, allowed):
            return f"{differs}, given {shapes_of(feeds)}"
        if changed := [name for name, x in feeds.items() if x.tobytes() != np.asarray(each.feeds[name]).tobytes()]:
            return f"it changes its inputs {changed}"
    return None


def main() -> int:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toolchains", default=TOOLCHAINS, help="names, by commas")
    parser.add_argument("--seeds", type=seeds_of, default=range(301), help="such as 0-300")
    parser.add_argument("--symbolic", action="store_true", help="name the inputs' dimensions; run at other lengths too")
    parser.add_argument("--wide", action="store_true", help="models of wide lengths, as for random_graphs.py")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for each seed")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--seed", type=int, help="judge one seed in this process, and let it fail as it may")
    options = parser.parse_args()
    judge = functools.partial(judged, toolchains=options.toolchains.split(","), symbolic=options.symbolic)
    if options.seed is not None:
        print(judge(options.seed, sample(options.seed, options.wide)))
        return 0
    print(
        "                seeds   right  refused  failed   WRONG  died, hung  skipped  operators in kernels", flush=True
    )
    draw = functools.partial(sample, wide=options.wide)
    found = list(in_children([(seed, None) for seed in options.seeds], judge, options.timeout, draw))
    print_row("mixes", found)
    if options.json:
        options.json.write_text(json.dumps([asdict(verdict) for verdict in found], indent=1) + "\n")
    return int(any(verdict.how in (*BAD, FAILED) for verdict in found))


if __name__ == "__main__":
    sys.exit(main())
