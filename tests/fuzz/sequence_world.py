"""A built model, and the executables of it that live at a time: what the steps of a sequence do something to."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from collage.testing import executable_of
from tests.fuzz import lengths
from tests.fuzz.draft import Sample
from tests.fuzz.kernels import fair_cases
from tests.fuzz.mixes import SAVED_AS, chosen
from tests.fuzz.references import Case, NoCase, case, difference, shapes_of, tolerance

if TYPE_CHECKING:
    from collage.runtime import Executable

Array = Any
Outputs = Mapping[str, Any]
_UNALIGNED = 4
_MOST_LIVING = 4
_LOADS: Sequence[Mapping[str, Any]] = (
    {},
    {"threads": 1},
    {"threads": 2, "contexts": 2},
    {"contexts": 1},
    {"contexts": 3, "threads": 1},
    {"lazy": True},
    {"debug": True},
    {"trusted": True},
)


class Wrong(Exception):
    """A step did not go as it should."""


@dataclass(frozen=True)
class Made:
    """A built model.

    Attributes:
        model: The original.
        cases: Inputs, and what is right of them. Several have the same shapes.
        path: Its artefact.
        executable: The executable that was saved there.
        allowed: What outputs may differ by.
        told: Kernels.
    """

    model: onnx.ModelProto
    cases: Sequence[Case]
    path: Path
    executable: Executable
    allowed: float
    told: str

    @classmethod
    def of(cls, number: int, given: Sample, names: Sequence[str], folder: Path) -> Made:
        """Build a model: its kernels, in branches at times, and at times a plan for its own lengths.

        Raises:
            NoCase: It cannot be judged.
        """
        fixed, allowed, rng = given, tolerance(given.model), random.Random(number)
        cases = [case(given.model, given.feeds, allowed)]
        cases += fair_cases(given, _other_values(given.feeds), allowed)
        if symbolic := number % 3 == 0:
            given = lengths.symbolic(given, first_only=number % 2 == 0)
            cases += fair_cases(given, lengths.at_other_lengths(given), allowed)
            ranks = [[np.ndim(y) for y in each.expected] for each in cases]
            cases = [each for each, found in zip(cases, ranks, strict=True) if found == ranks[0]]
        longest = rng.choice((1, 2, 4, 99))
        parts, size = chosen(given.model, names, rng, folder, longest)
        if not size:
            raise NoCase("it has no operators")
        made = executable_of(given.model, parts)
        if len(made.recipe.kernels) > 1 and number % 4 == 1:
            made = _in_branches(made, rng)
        if symbolic and number % 4 == 0:
            own = executable_of(fixed.model, chosen(fixed.model, names, rng, folder, longest)[0])
            if own.inputs != made.inputs:
                for each in (made, own):
                    each.recipe = replace(each.recipe, model={"sha256": f"{number:064x}"})
                made.add_plans([own], made.report)
        path = made.save(folder / SAVED_AS[rng.randrange(len(SAVED_AS) - 1)])
        kernels = ", ".join(f"{target} {[*inside]}" for inside, target in parts)
        return cls(given.model, cases, path, made, allowed, kernels)


def _other_values(feeds: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield inputs of the same shapes."""
    yield {name: np.array(np.flip(x)) for name, x in feeds.items()}
    yield {name: (x * 0.75).astype(x.dtype) if x.dtype.kind == "f" else x.copy() for name, x in feeds.items()}


def _in_branches(made: Executable, rng: random.Random) -> Executable:
    from collage.runtime import Executable

    kernels = tuple(replace(kernel, branch=rng.randint(1, 2)) for kernel in made.recipe.kernels)
    other = Executable(replace(made.recipe, kernels=kernels, threads=2), made.workspace)
    other.notes.append("branches")
    other.whole = made  # type: ignore[attr-defined]  # It owns the files.
    return other


@dataclass
class Living:
    """An executable, and its first outputs on each case."""

    executable: Executable
    about: str
    first: dict[int, Outputs] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class World:
    """The executables, inputs and kept outputs that steps act on.

    Args:
        made: The built model.
    """

    def __init__(self, made: Made) -> None:
        self.made = made
        self.names = [value.name for value in made.model.graph.output]
        self.living = [Living(made.executable, "as built")]
        self.kept: list[tuple[Outputs, Outputs]] = []
        self.last: Outputs = {}
        self._buffers: dict[str, dict[str, Array]] = {}
        self._saved = 0

    def one(self, number: int) -> Living:
        """Return an executable; a new one where none is left."""
        if not self.living:
            self.load(number)
        return self.living[number % len(self.living)]

    def load(self, number: int, path: Path | None = None) -> None:
        """Load the artefact."""
        import collage

        how = _LOADS[number % len(_LOADS)]
        if len(self.living) >= _MOST_LIVING:
            del self.living[number % len(self.living)]
        self.living.append(Living(collage.load(path or self.made.path, **how), f"loaded with {dict(how)}"))

    def new_path(self) -> Path:
        """Return a path that nothing is at."""
        self._saved += 1
        return self.made.path.with_name(f"again{self._saved}.{('collage', 'zip')[self._saved % 2]}")

    def feeds(self, number: int, how: int = 0) -> dict[str, Array]:
        """Return the inputs of a case in one of several layouts, or in arrays that other cases of their shapes share."""
        each = self.case(number)
        given = {name: np.array(x) for name, x in each.feeds.items()}
        match how % 6:
            case 1:  # What was an input before is written over.
                buffers = self._buffers.setdefault(shapes_of(given), {name: x.copy() for name, x in given.items()})
                for name, x in given.items():
                    buffers[name][...] = x
                return dict(buffers)
            case 2:
                return {name: np.array(x, order="F") for name, x in given.items()}
            case 3:
                return {name: np.repeat(x[..., None], 2, -1)[..., 0] for name, x in given.items()}
            case _ if how % 6 == _UNALIGNED:
                return {name: unaligned(x) for name, x in given.items()}
            case 5:
                for x in given.values():
                    x.flags.writeable = False
        return given

    def case(self, number: int) -> Case:
        """Return a case."""
        return self.made.cases[number % len(self.made.cases)]

    def run(self, one: Living, number: int, layout: int = 0, way: int = 0) -> Outputs:
        """Run an executable and check what it computes."""
        feeds = self.feeds(number, layout)
        before = {name: x.tobytes() for name, x in feeds.items()}
        executable, found = one.executable, dict[str, Any]()
        match way % 8:
            case 0:
                found = executable.run_tensors(feeds)
            case 1:
                found, _ = executable.trace(feeds)
            case 2:
                found = asyncio.run(executable.arun(feeds))
            case 3:
                found = executable.run([feeds[port.name] for port in executable.inputs])
            case _:
                found = executable.run(feeds)
        # Vendors' kernels sum in another order where memory is not aligned at all.
        self.check(one, number, found, f"layout {layout % 6}, way {way % 8}", is_exact=layout % 6 != _UNALIGNED)
        if changed := [name for name, x in feeds.items() if x.tobytes() != before[name]]:
            raise Wrong(f"it changes its inputs {changed}")
        arrays = [(name, x) for name, x in (*feeds.items(), *found.items()) if isinstance(x, np.ndarray)]
        for position, (name, x) in enumerate(arrays):
            for other, y in arrays[max(position + 1, len(feeds)) :]:
                if np.may_share_memory(x, y):
                    raise Wrong(f"output {other} shares the memory of {name}")
        return found

    def check(self, one: Living, number: int, found: Outputs, told: str, is_exact: bool = True) -> None:
        """Compare outputs with the right ones and with those of the first run.

        Raises:
            Wrong: They differ.
        """
        index = number % len(self.made.cases)
        each = self.made.cases[index]
        about = f"{one.about}, case {index}, {told}, given {shapes_of(each.feeds)}"
        if [*found] != self.names:
            raise Wrong(f"{about}: outputs {[*found]}")
        if differs := difference(self.names, [found[name] for name in self.names], each.expected, self.made.allowed):
            raise Wrong(f"{about}: {differs}")
        if not is_exact:
            return
        with one.lock:
            first = one.first.setdefault(index, copied(found))
        if other := unlike(found, first):
            raise Wrong(f"{about}: {other} is not as in the first run")

    def look(self) -> None:
        """Check that kept outputs are as they were.

        Raises:
            Wrong: One is not.
        """
        for outputs, copies in self.kept:
            if other := unlike(outputs, copies):
                raise Wrong(f"kept output {other} has changed")

    def end(self) -> None:
        """Run every executable once more."""
        for one in self.living:
            self.run(one, 0, way=7)
        self.living.clear()
        gc.collect()
        self.look()


def copied(outputs: Outputs) -> dict[str, Any]:
    """Return copies of arrays."""
    return {name: np.array(x) for name, x in outputs.items()}


def unlike(outputs: Outputs, others: Outputs) -> str | None:
    """Return the name of the first output that differs in a bit."""
    for name, x in outputs.items():
        y = others[name]
        same = np.array_equal(x, y) if np.asarray(x).dtype.kind == "O" else np.asarray(x).tobytes() == y.tobytes()
        if not same or np.shape(x) != np.shape(y):
            return name
    return None


def unaligned(x: Array) -> Array:
    block = np.empty(x.nbytes + 1, np.uint8)
    y = block[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y
