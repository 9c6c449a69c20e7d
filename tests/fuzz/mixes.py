"""Random models as artefacts of several toolchains, with odd names, against two references.

A number is a model and a way to run it. Its values, operators and graphs get names that are seldom thought of (``odd_names.py``).
Its operators are cut into ranges, each of which goes to one of the toolchains that takes it, or to the host. The executable
runs it. So does the artefact that it is saved as (a folder, a zip or a recipe in turn) once it is loaded. Each runs it twice,
and may not change its inputs. At other lengths the host stands in for kernels that refuse them.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from collage.testing import executable_of
from collage.testing._explicit_plan import Part
from tests.fuzz.draft import Sample
from tests.fuzz.kernels import cases_of, piece
from tests.fuzz.odd_names import oddly_named
from tests.fuzz.references import Case, NoCase, difference, one_line, shapes_of, tolerance
from tests.fuzz.session import Session
from tests.fuzz.verdicts import FAILED, RIGHT, SKIPPED, WRONG, Verdict

if TYPE_CHECKING:
    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import Toolchain

TOOLCHAINS = ("tvm", "onnxruntime", "openvino", "onednn")
HOST = "llvm -compiler=host"
SAVED_AS = ("m.collage", "m.zip", "recipe.collage")
LONGEST = 4
"""Operators of a range."""


def judged(number: int, given: Sample, session: Session) -> list[Verdict]:
    """Run a model as an executable of several toolchains. Every third number is of symbolic lengths."""
    session.stage(FAILED, "the executable or its artefact")
    return [mixed(number, given, TOOLCHAINS, symbolic=number % 3 == 0)]


def mixed(number: int, given: Sample, toolchains: Sequence[str], symbolic: bool) -> Verdict:
    """Run a model as an executable of several toolchains, and as what that is saved as."""
    given, allowed = oddly_named(given, number), tolerance(given.model)
    try:
        given, cases = cases_of(number, given, allowed, symbolic)
    except NoCase as reason:
        return Verdict(SKIPPED, str(reason))
    with tempfile.TemporaryDirectory() as folder:
        parts, size = chosen(given.model, toolchains, random.Random(number), Path(folder))
        kernels = ", ".join(f"{target} {[*inside]}" for inside, target in parts)
        targets = ",".join(dict.fromkeys(target for _, target in parts))
        taken = sum(len([*inside]) for inside, target in parts if target != HOST)
        try:
            for what, run in runners(given.model, parts, Path(folder) / SAVED_AS[number % len(SAVED_AS)]):
                if wrong := why_wrong(run, given.model, cases, allowed):
                    return Verdict(WRONG, f"{what} of {kernels}: {wrong}", targets, taken, size, len(cases))
        except Exception as error:
            return Verdict(FAILED, f"{kernels}: {one_line(error)}", targets, taken, size, len(cases))
    return Verdict(RIGHT, kernels, targets, taken, size, len(cases))


def chosen(
    model: onnx.ModelProto, names: Sequence[str], rng: random.Random, folder: Path, longest: int = LONGEST
) -> tuple[list[Part], int]:
    """Return ranges of operators with targets, and how many operators there are."""
    from collage.frontend import read_model
    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import registry
    from collage.transform import prepare

    graph = DataflowGraph(prepare(read_model(model)))
    parts: list[Part] = []
    start = 0
    while start < len(graph):
        inside = range(start, min(len(graph), start + rng.randint(1, longest)))
        found = [registry().get(name) for name in rng.sample(names, len(names))]
        takers = ((toolchain, Target.parse(toolchain.targets[0])) for toolchain in found)
        taker = next((target for toolchain, target in takers if takes(toolchain, target, graph, inside, folder)), None)
        parts.append((inside, HOST if taker is None else str(taker)))
        start = inside.stop
    return parts, len(graph)


def takes(toolchain: Toolchain, target: Target, graph: DataflowGraph, inside: range, folder: Path) -> bool:
    """Tell if a toolchain takes a range of operators."""
    from collage._errors import ToolchainError
    from collage.toolchains import LoadOptions, compile_for, load_for, support_for

    if not all(support_for(toolchain, graph.node(i), target).ok for i in inside):
        return False
    try:
        compiled = compile_for(toolchain, piece(graph, inside), target, folder)
        load_for(toolchain, compiled, target, folder, LoadOptions())
    except ToolchainError:
        return False  # ``kernels.py`` tells those that fail from those that are refused.
    return True


def runners(model: onnx.ModelProto, parts: Sequence[Part], path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the executable, and what it was saved as and loaded from."""
    import collage

    made = executable_of(model, parts)
    yield "the executable", made.run
    made.save(path, recipe_only=path.name == SAVED_AS[-1])
    yield f"the artefact {path.name}", collage.load(path).run


def why_wrong(run: Any, model: onnx.ModelProto, cases: Sequence[Case], allowed: float) -> str | None:
    """Return what is wrong with what is computed, or with what became of the inputs."""
    names = [value.name for value in model.graph.output]
    for each in (cases[0], *cases):
        feeds = {name: np.array(each.feeds[name]) for name in (value.name for value in model.graph.input)}
        found = run(feeds)
        if differs := difference(names, [found[name] for name in names], each.expected, allowed):
            return f"{differs}, given {shapes_of(feeds)}"
        if changed := [name for name, x in feeds.items() if x.tobytes() != np.asarray(each.feeds[name]).tobytes()]:
            return f"it changes its inputs {changed}"
    return None
