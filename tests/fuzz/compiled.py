"""Models on one target after the other, against the original file on adversarial inputs.

The reference never sees what went through Collage: it is ONNX Runtime without optimisations on the file's own bytes, or ONNX's
reference implementation where that does not take the file.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from collage.testing import executable_of
from collage.testing._explicit_plan import Part
from tests.fuzz import lengths
from tests.fuzz.draft import Sample
from tests.fuzz.inputs import EDGES, LARGE, SMALL, adversarial
from tests.fuzz.kernels import runs_of
from tests.fuzz.mixes import HOST, takes
from tests.fuzz.references import (
    Case,
    Original,
    Plainly,
    difference,
    one_line,
    shapes_of,
    tolerance,
)
from tests.fuzz.session import Session
from tests.fuzz.verdicts import BAD, CAUGHT, DISPUTED, EDGE, FAILED, NAMED, REFUSED, RIGHT, SKIPPED, WRONG, Verdict

if TYPE_CHECKING:
    from collage.runtime import Executable

NOISE = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative noise that must not decide an element which is compared."""
_OUT_OF_RANGE = ("Cast", "CastLike")
"""Operators of which it is not said what integers they make of numbers that are too large."""
_LITTLE = 1e-6
"""What vendors' approximations are off by near 0, whatever is 0."""
_MOST_OPERATORS = 8
"""Operators that are named."""


def judged(number: int, given: Sample, session: Session) -> list[Verdict]:
    """Compile a model for each target, and compare it on every set of inputs that the original takes."""
    session.stage(SKIPPED, "the reference")
    try:
        original = Original(given.model)
    except Exception as error:
        return [Verdict(SKIPPED, f"no reference: {one_line(error)}")]
    cases = [*cases_of(given, original)]
    if not cases:
        return [Verdict(SKIPPED, "the original runs on none of the inputs")]
    return [on_target(number, given, cases, original, str(target), session) for target in session.targets]


def cases_of(given: Sample, original: Original) -> Iterator[tuple[str, Case]]:
    """Yield sets of inputs that the original takes, with what it makes of them."""
    for name, feeds in sets_of(given):
        try:
            first, again = original(feeds), original(feeds)
        except Exception:
            continue
        if any(_has_text(y) for y in first) or difference(original.outputs, again, first, 0.0) is None:
            yield name, Case(feeds, first)
        elif feeds is given.feeds:
            return  # It is of chance.


def _has_text(y: Any) -> bool:
    return isinstance(y, np.ndarray) and y.dtype.kind in "OSUT"


def sets_of(given: Sample) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the model's own inputs, adversarial ones, and where lengths have names those of other lengths."""
    yield "its own inputs", given.feeds
    yield from adversarial(given.feeds)
    if any(dim.dim_param for value in given.model.graph.input for dim in value.type.tensor_type.shape.dim):
        try:
            yield from (("other lengths", feeds) for feeds in lengths.at_other_lengths(given, also=(0,)))
        except Exception:
            return  # The compilation tells of what is wrong with the lengths.


def on_target(
    number: int,
    given: Sample,
    cases: Sequence[tuple[str, Case]],
    original: Original,
    target: str,
    session: Session,
) -> Verdict:
    """Judge a model on one target: as its largest kernels, which takes no measurement; if bad, as it is compiled.

    Every fourth model is compiled at once.
    """
    told = Comparison(given.model, original, cases, target, session)
    is_forced = number % 4 != 0 and not session.compiles_only
    if is_forced:
        session.stage(CAUGHT, f"forcing kernels of {target}")
        first = told.of(functools.partial(forced, given.model, target), "forced")
        if first.how not in BAD:
            return first
    session.stage(FAILED, f"compiling for {target}")
    found = told.of(functools.partial(by_compile, number, given, target, session), "compiled")
    if is_forced and found.how not in BAD:
        return replace(first, how=CAUGHT, reason=f"{first.reason}; compile: {found.how} {found.reason}")
    return found


def forced(model: onnx.ModelProto, target: str) -> Executable:
    """Return the model with the largest kernels that a target takes; the host has the rest."""
    from collage._errors import ToolchainError
    from collage.frontend import read_model
    from collage.graph import DataflowGraph
    from collage.toolchains import registry, support_for
    from collage.transform import prepare

    aim = registry().parse_target(target)
    toolchain = registry().for_target(aim)
    graph = DataflowGraph(prepare(read_model(model.SerializeToString())))
    taken = [support_for(toolchain, graph.node(i), aim).ok for i in range(len(graph))]
    try:
        return executable_of(model, _parts(runs_of(taken), len(graph), str(aim)))
    except ToolchainError:
        ranges = []
        waiting = runs_of(taken)
        with tempfile.TemporaryDirectory() as folder:
            while waiting:
                first, last = waiting.pop()
                if takes(toolchain, aim, graph, range(first, last), Path(folder)):
                    ranges.append((first, last))
                elif last - first > 1:
                    middle = (first + last) // 2
                    waiting += [(first, middle), (middle, last)]
        return executable_of(model, _parts(sorted(ranges), len(graph), str(aim)))


def _parts(ranges: Sequence[tuple[int, int]], count: int, target: str) -> list[Part]:
    """Return kernels for ranges of operators, and of the host between them."""
    found: list[Part] = []
    done = 0
    for first, last in [*ranges, (count, count)]:
        found += [(range(done, first), HOST)] if first > done else []
        found += [(range(first, last), target)] if last > first else []
        done = last
    return found


def by_compile(number: int, given: Sample, target: str, session: Session) -> Executable:
    """Return the model as it is compiled, half of the models for inputs that are made up, as where a user gives none."""
    import collage

    are_tensors = not any(isinstance(x, list) for x in given.feeds.values())
    options = collage.CompileOptions(
        finals=False,
        allow_host=True,
        measure_budget=1,
        db=session.database,
        threads=number % 2,
        inputs=given.feeds if number % 8 < 4 and are_tensors else {},
    )
    return collage.compile(given.model.SerializeToString(), [target], options=options, workers=session.workers)


@dataclass
class Comparison:
    """An original, and what it computes.

    Attributes:
        model: The model.
        original: What runs it.
        cases: Sets of inputs with their names, and what the original makes of them.
        target: What it is compiled for.
        session: Told of progress.
    """

    model: onnx.ModelProto
    original: Original
    cases: Sequence[tuple[str, Case]]
    target: str
    session: Session

    def of(self, make: Callable[[], Executable], how: str) -> Verdict:
        """Make an executable and compare it."""
        import collage

        try:
            made = make()
        except collage.CollageError as error:
            return Verdict(REFUSED, one_line(error), self.target)
        except Exception as error:
            return Verdict(FAILED, f"{how}: {one_line(error)}", self.target)
        operators = [node.op_type for node in self.model.graph.node]
        own = [kernel.target for kernel in made.recipe.kernels]
        facts = {
            "target": self.target,
            "operators": len(own),
            "taken": sum(kernel != HOST for kernel in own),
            "cases": len(self.cases),
        }
        told = f"; {how} kernels of {', '.join(own)} for {', '.join(operators[:_MOST_OPERATORS])}"
        worst = Verdict(RIGHT, **facts)
        for name, case in self.cases:
            self.session.stage(CAUGHT if how == "forced" else FAILED, f"running on {self.target} with {name}")
            verdict = self._on(made, case)
            if verdict is None:
                continue
            bad = verdict[0]
            if bad == WRONG and name in EDGES and not self.original.by_onnxruntime:
                bad = DISPUTED  # ONNX's reference implementation drops NaN in places.
            elif bad == WRONG and self._is_edge(made, name, case):
                bad = EDGE
            elif bad == FAILED and case is not self.cases[0][1] and not self.original.by_onnxruntime:
                bad = DISPUTED  # ONNX's reference implementation hardly checks inputs.
            worst = worst if worst.how == EDGE and bad == EDGE else Verdict(bad, f"{name}: {verdict[1]}{told}", **facts)
            if bad in BAD:
                break
        return worst

    def _is_edge(self, made: Executable, name: str, case: Case) -> bool:
        """Tell if only a vendor's kernel is wrong, and only of numbers that vendors are known to drop."""
        is_known = (
            name in EDGES
            or (name in LARGE and any(node.op_type in _OUT_OF_RANGE for node in self.model.graph.node))
            or (name in SMALL and self._is_off_by_little(made, case))
        )
        return is_known and self._on(self._on_host, case) is None

    def _is_off_by_little(self, made: Executable, case: Case) -> bool:
        found = made.run(dict(case.feeds))
        pairs = zip(self.original.outputs, case.expected, strict=True)
        return all(np.allclose(found[name], y, rtol=1e-3, atol=_LITTLE, equal_nan=True) for name, y in pairs)

    @functools.cached_property
    def _on_host(self) -> Executable:
        """The prepared model without a vendor's kernels."""
        return forced(self.model, HOST)

    def _on(self, made: Executable, case: Case) -> tuple[str, str] | None:
        feeds = {key: np.array(x) if isinstance(x, np.ndarray) else x for key, x in case.feeds.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = made.run(feeds)
        except Exception as error:
            return FAILED, f"the run raises {one_line(error)}, given {shapes_of(feeds)}"
        if changed := [key for key, x in feeds.items() if not _same(x, case.feeds[key])]:
            return WRONG, f"it changes its inputs {changed}"
        got = [found[output] for output in self.original.outputs]
        verdict = compared(self.model, self.original, case, got, tolerance(self.model), self.cases[0][1].feeds)
        if verdict is None:
            return None
        how, reason, output = verdict
        return (NAMED if how == WRONG and _is_named(made.report, output) else how), reason


def _same(x: Any, y: Any) -> bool:
    return not isinstance(x, np.ndarray) or x.dtype.kind == "O" or x.tobytes() == np.asarray(y).tobytes()


def _is_named(report: Mapping[str, Any], output: str) -> bool:
    """Tell if the report says that an output may differ."""
    numerics = report.get("numerics", {})
    told = {*numerics.get("unsettled", {}), *numerics.get("nan", {})}
    return output in told or any(repr(output) in warning for warning in report.get("warnings", []))


def compared(
    model: onnx.ModelProto,
    original: Original,
    case: Case,
    got: Sequence[Any],
    allowed: float,
    given: Mapping[str, Any],
) -> tuple[str, str, str] | None:
    """Return how the first output that differs does, in which way, and its name; None where none does.

    Elements are left out that the last digits of inputs decide, or that two implementations make differently. Inputs that only
    one of the two takes, though both take the ``given`` ones, are disputed.
    """
    disputed: tuple[str, str, str] | None = None
    for i, name in enumerate(original.outputs):
        mine, wanted = numbers_only(got[i], case.expected[i])
        reason = difference([name], [mine], [wanted], allowed)
        if reason is None:
            continue
        for sign in (1, -1):
            with contextlib.suppress(Exception):
                shaken = original({key: _shaken(x, sign) for key, x in case.feeds.items()})
                mine, wanted = settled(mine, wanted, np.asarray(shaken[i]), allowed)
        plain = implemented(model, case.feeds) if original.by_onnxruntime else None
        if plain is not None:
            mine, wanted = settled(mine, wanted, np.asarray(plain[i]), allowed)
        elif original.by_onnxruntime and implemented(model, given) is not None:
            return DISPUTED, f"ONNX's reference implementation refuses these inputs; {reason}", name
        again = difference([name], [mine], [wanted], allowed)
        if again is not None:
            return WRONG, again, name
        disputed = disputed or (DISPUTED, reason, name)
    return disputed


def implemented(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any] | None:
    """Return what ONNX's reference implementation computes, or None where it does not take that."""
    try:
        return Plainly(model)(feeds)
    except Exception:
        return None


def numbers_only(mine: Any, wanted: Any) -> tuple[Any, Any]:
    """Return both without what the original makes no number of."""
    if not _are_floats(mine, wanted):
        return mine, wanted
    return np.where(np.isnan(wanted), wanted, mine), wanted


def _are_floats(mine: Any, wanted: Any) -> bool:
    arrays = isinstance(mine, np.ndarray) and isinstance(wanted, np.ndarray)
    return arrays and mine.shape == wanted.shape and mine.dtype == wanted.dtype and wanted.dtype.kind in "fV"


def settled(mine: Any, wanted: Any, other: Any, allowed: float) -> tuple[Any, Any]:
    """Return both without the elements in which a witness differs from the original."""
    if not (isinstance(wanted, np.ndarray) and wanted.dtype.kind not in "OSUT" and other.shape == wanted.shape):
        return mine, wanted
    if np.shape(mine) != wanted.shape:
        return mine, wanted
    if wanted.dtype.kind in "iub":
        return np.where(other == wanted, mine, wanted), wanted
    with np.errstate(all="ignore"):
        left, right = wanted.astype(np.float64), other.astype(np.float64)
        scale = np.abs(left[np.isfinite(left)]).max(initial=0.0)
        same = (left == right) | (np.abs(left - right) <= allowed * scale) | (np.isnan(left) & np.isnan(right))
    return np.where(same, mine, wanted), wanted


def _shaken(x: Any, sign: int) -> Any:
    """Scale by hardly more than one: what was constant or equal stays so."""
    if not isinstance(x, np.ndarray) or x.dtype.name not in NOISE:
        return x
    with np.errstate(all="ignore"):
        return (x.astype(np.float64) * (1 + sign * NOISE[x.dtype.name])).astype(x.dtype)
