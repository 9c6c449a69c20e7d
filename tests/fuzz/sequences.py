"""Random sequences of calls on executables of random models: what users do in an order that no test thinks of.

A number is a model, the toolchains that its operators go to, and a list of steps. Executables are loaded, run, given wrong
inputs, run from several threads and in forks, and dropped. Every run is compared with the references, and bit for bit with the
first run of the same executable on the same inputs. Outputs that are kept may not change.

A step is a name and a few numbers, of which each step takes what it needs. So any part of a list is a list, and
``shrink.py`` finds the shortest one that fails.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.fuzz import (
    recipes_of_rarities,  # noqa: F401  registers its recipes, and all others
)
from tests.fuzz.draft import Sample, Step, sample
from tests.fuzz.references import NoCase, one_line
from tests.fuzz.sequence_steps import SHARES, STEPS
from tests.fuzz.sequence_world import Made, World, Wrong
from tests.fuzz.session import Session
from tests.fuzz.verdicts import FAILED, RIGHT, SKIPPED, WRONG, Verdict

LONGEST = 24
"""Steps of a sequence."""


def draw(number: int) -> Sample:
    """Return a model and the steps that its executables go through."""
    rng = random.Random(number)
    steps = [(rng.choices(list(STEPS), SHARES)[0], *(rng.randrange(1 << 16) for _ in range(3))) for _ in range(LONGEST)]
    return replace(sample(number, wide=number % 5 == 0), steps=tuple(steps))


def judged(number: int, given: Sample, session: Session) -> list[Verdict]:
    """Take the executables of a model through the steps. Every third number is of symbolic lengths."""
    from collage.toolchains import registry

    rng, menu = random.Random(number), [registry().parse_target(target).toolchain for target in session.targets]
    alone = rng.choice(menu)
    names = [alone] if rng.random() < 0.6 else menu
    session.stage(SKIPPED, "building")
    with tempfile.TemporaryDirectory(dir=session.folder) as folder:
        try:
            made = Made.of(number, given, names, Path(folder))
        except NoCase as reason:
            return [Verdict(SKIPPED, str(reason))]
        found = played(made, given.steps, lambda what: session.stage(FAILED, what))
        # What goes to which toolchain depends on the whole menu.
        return [replace(found, target=",".join(session.targets))]


def replay(number: int, steps: Sequence[Step], targets: str = "onnxruntime,openvino,llvm") -> None:
    """Take the model of a number through some steps, and print what becomes of it."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(targets.split(","), Path(folder), lambda how, what: print(what, flush=True))
        print(judged(number, replace(draw(number), steps=tuple(steps)), session))


def script_of(number: int, steps: Sequence[Step], targets: str) -> str:
    """Return a script that takes the model of a number through some steps."""
    listed = "".join(f"    {step!r},\n" for step in steps)
    return f"from tests.fuzz.sequences import replay\n\nreplay({number}, [\n{listed}], {targets!r})\n"


def played(made: Made, steps: Sequence[Step], tell: Callable[[str], None]) -> Verdict:
    """Return what becomes of a list of steps."""
    world = World(made)
    count = len(made.cases)
    done = 0
    try:
        for done, (name, *numbers) in enumerate(steps, 1):
            tell(f"step {done}, {name} {numbers}, of {made.told}")
            STEPS[name](world, *numbers)
            world.look()
        world.end()
    except Exception as error:
        how = WRONG if isinstance(error, Wrong) else FAILED
        reason = str(error) if isinstance(error, Wrong) else one_line(error)
        return Verdict(how, f"step {done}, {steps[done - 1]}, of {made.told}: {reason}", cases=count)
    return Verdict(RIGHT, made.told, cases=count)
