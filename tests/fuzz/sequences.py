"""Random sequences of calls on executables of random models: what users do in an order that no test thinks of.

A number is a model, the toolchains that its operators go to, and a list of steps. Executables are loaded, run, given wrong
inputs, run from several threads and in forks, and dropped. Every run is compared with the references, and bit for bit with the
first run of the same executable on the same inputs. Outputs that are kept may not change.

A step is a name and a few numbers, of which each step takes what it needs. So any part of a list is a list, and
``shrink.py`` finds the shortest one that fails.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import os
import random
import select
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from collage.testing import executable_of
from tests.fuzz import (
    lengths,
    recipes_of_rarities,  # noqa: F401  registers its recipes, and all others
)
from tests.fuzz.draft import Sample, Step, sample
from tests.fuzz.kernels import fair_cases
from tests.fuzz.mixes import SAVED_AS, chosen
from tests.fuzz.references import Case, NoCase, case, difference, one_line, onnxruntime_plainly, shapes_of, tolerance
from tests.fuzz.session import Session
from tests.fuzz.verdicts import FAILED, RIGHT, SKIPPED, WRONG, Verdict

if TYPE_CHECKING:
    from collage.runtime import Executable

Array = Any
Outputs = Mapping[str, Any]
LONGEST = 24
"""Steps of a sequence."""
_WAIT_S = 40.0
"""Seconds that a thread or a fork may take. A fork of a fork may take half of them."""
_ROUNDS = 3
_UNALIGNED = 4
_MOST_LIVING = 4
_INDEX_INPUTS = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}
_OF_OTHER_SIZE = {"float32": "f8", "float64": "f4", "float16": "f4", "int64": "i4", "int32": "i8", "uint16": "i2"}
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
                return {name: _unaligned(x) for name, x in given.items()}
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


def _unaligned(x: Array) -> Array:
    block = np.empty(x.nbytes + 1, np.uint8)
    y = block[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def _load(world: World, a: int, b: int, c: int) -> None:
    world.load(a)


def _run(world: World, a: int, b: int, c: int) -> None:
    world.last = world.run(world.one(a), b, c, c // 8)


def _keep(world: World, a: int, b: int, c: int) -> None:
    found = world.run(world.one(a), b, way=7)
    world.kept.append((found, copied(found)))


def _forget(world: World, a: int, b: int, c: int) -> None:
    if world.kept:
        del world.kept[a % len(world.kept)]


def _write(world: World, a: int, b: int, c: int) -> None:
    """Write to outputs, which are the caller's."""
    for name, x in world.last.items():
        if not isinstance(x, np.ndarray):
            continue
        if not x.flags.writeable:
            raise Wrong(f"output {name} cannot be written to")
        x.fill(x.dtype.type(1))
        x.reshape(-1).view(np.uint8)[...] = a % 251 if x.flags.c_contiguous and x.dtype.kind != "O" else 1
    world.last = {}


def _fails(world: World, one: Living, what: str, call: Callable[[], object]) -> None:
    from collage._errors import CollageError, InputError

    try:
        call()
    except (InputError, CollageError) as error:
        if what != "beyond an index" and not isinstance(error, InputError):
            raise Wrong(f"{one.about}: {what}: {one_line(error)}") from error
    except Exception as error:
        raise Wrong(f"{one.about}: {what}: {one_line(error)}") from error
    else:
        raise Wrong(f"{one.about}: {what}: no error")


def _wrong(world: World, a: int, b: int, c: int) -> None:
    one = world.one(a)
    for what, call in list(_wrong_calls(world, one, b, c)):
        _fails(world, one, what, call)
    world.run(one, b, way=7)


def _wrong_calls(world: World, one: Living, b: int, c: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls that must fail."""
    feeds, ports = world.feeds(b), {port.name: port for port in one.executable.inputs}
    run = one.executable.run
    yield "an unknown name", lambda: run({**feeds, "no such input": np.zeros(1)})
    yield "too many", lambda: run([*feeds.values(), 1, 2])
    yield "an array of inputs", lambda: run(np.zeros(len(feeds)))  # type: ignore[arg-type]
    yield "an unknown output", lambda: run(feeds, out={"no such output": np.zeros(1)})
    for name in world.names:
        expected = np.asarray(world.case(b).expected[world.names.index(name)])
        if expected.dtype.kind == "O":
            continue
        yield (
            (
                "an output of another type",
                functools.partial(run, feeds, out={name: np.zeros(expected.shape, expected.dtype.newbyteorder())}),
            )
            if expected.itemsize > 1
            else (
                "a complex output",
                functools.partial(run, feeds, out={name: np.zeros(expected.shape, complex)}),
            )
        )
        shape = (*expected.shape[:-1], expected.shape[-1] + 1) if expected.ndim else (1,)
        yield "a longer output", functools.partial(run, feeds, out={name: np.zeros(shape, expected.dtype)})
        yield "a list as an output", functools.partial(run, feeds, out={name: expected.tolist()})
    if not ports:
        return
    name = sorted(ports)[c % len(ports)]
    x, port = feeds[name], ports[name]
    others = {other: y for other, y in feeds.items() if other != name}
    if port.default is None:
        yield f"no {name}", lambda: run(others)
    strange: Sequence[Any] = (None, object(), "text", {1: 2}, x.astype(complex), [[1, 2], [3]], x.astype(object), b"x")
    yield f"{name} of another kind", lambda: run({**feeds, name: strange[c // 7 % len(strange)]})
    yield f"{name} of another type", lambda: run({**feeds, name: np.ones(x.shape, complex)})
    yield (
        f"{name} of another size",
        lambda: run({**feeds, name: np.ones(x.shape, _OF_OTHER_SIZE.get(x.dtype.name, "u2"))}),
    )
    if port.shape is not None:
        yield f"{name} of another rank", lambda: run({**feeds, name: x[None]})
        for axis, wanted in enumerate(port.shape):
            shared = sum(wanted in (other.shape or ()) for other in ports.values()) > 1
            is_fixed = isinstance(wanted, int) or (wanted is not None and port.shape.count(wanted) > 1) or shared
            if is_fixed and wanted is not None:
                longer = np.concatenate([x, x[(slice(None),) * axis + (slice(0, 1),)]], axis)
                if longer.shape != x.shape:
                    yield f"{name} of another length", functools.partial(run, {**feeds, name: longer})
    for node in world.made.model.graph.node:
        place = _INDEX_INPUTS.get(node.op_type)
        if place is not None and node.input[place] in ports and feeds[node.input[place]].size:
            index = feeds[node.input[place]].copy()
            index.reshape(-1)[c % index.size] = (1000, -1000)[c % 2]
            bad = {**feeds, node.input[place]: index}
            try:
                onnxruntime_plainly(world.made.model, bad)
            except NoCase:
                continue
            except Exception:
                yield "beyond an index", functools.partial(run, bad)


def _threads(world: World, a: int, b: int, c: int) -> None:
    """Run one or two executables from two or three threads."""
    errors: list[Exception] = []

    def work(each: int) -> None:
        try:
            for n in range(_ROUNDS):
                world.run(world.living[(a + (c & 1) * each) % len(world.living)], b + n * each, way=(b + each) | 4)
        except Exception as error:
            errors.append(error)

    world.one(a)
    threads = [threading.Thread(target=work, args=(each,)) for each in range(2 + c % 2)]
    for thread in threads:
        thread.start()
    if c & 2:
        gc.collect()
    for thread in threads:
        thread.join(_WAIT_S)
        if thread.is_alive():
            raise Wrong("threads hang")
    if errors:
        raise errors[0]


def _into(world: World, a: int, b: int, c: int) -> None:
    """Run into arrays of the caller."""
    from collage.toolchains.sdk.aligned_memory import aligned_bytes

    one, feeds, out = world.one(a), world.feeds(b), dict[str, Array]()
    for number, name in enumerate(world.names):
        expected = np.asarray(world.case(b).expected[number])
        if expected.dtype.kind == "O" or (c >> number) & 1:
            continue
        match (c >> 4) % 5:
            case 0:
                out[name] = aligned_bytes(expected.nbytes).view(expected.dtype).reshape(expected.shape)
            case 1:
                out[name] = np.full_like(expected, 1)
            case 2:
                out[name] = np.empty((*expected.shape, 2), expected.dtype)[..., 0]
            case 3:
                out[name] = _unaligned(expected)
            case 4:  # An input, as the cache of a decoder is.
                alike = [x for x in feeds.values() if x.shape == expected.shape and x.dtype == expected.dtype]
                alike = [x for x in alike if not any(x is y for y in out.values())]
                out[name] = alike[0] if alike else np.full_like(expected, 1)
    found = one.executable.trace(feeds, out=out)[0] if c & 4096 else one.executable.run(feeds, out=out)
    if lost := [name for name, y in out.items() if found[name] is not y]:
        raise Wrong(f"outputs {lost} are not the caller's arrays")
    world.check(one, b, found, f"into {[*out]}, {(c >> 4) % 5}")
    if c & 8:
        world.kept.append((found, copied(found)))


def _drop(world: World, a: int, b: int, c: int) -> None:
    if world.living:
        del world.living[a % len(world.living)]
    if c % 2:
        gc.collect()


def _collect(world: World, a: int, b: int, c: int) -> None:
    gc.collect()


def _save(world: World, a: int, b: int, c: int) -> None:
    """Save an executable and load that."""
    world.load(b, world.one(a).executable.save(world.new_path(), recipe_only=c % 4 == 0))


def _warm_up(world: World, a: int, b: int, c: int) -> None:
    world.one(a).executable.warm_up(world.feeds(b) if c % 2 else None)


def _profile(world: World, a: int, b: int, c: int) -> None:
    world.one(a).executable.profile(world.feeds(b), runs=1 + c % 2)


def _drop_running(world: World, a: int, b: int, c: int) -> None:
    """Drop an executable that a thread still runs."""
    errors: list[Exception] = []
    begun = threading.Event()

    def work(one: Living) -> None:
        begun.set()
        try:
            for n in range(_ROUNDS):
                world.run(one, b + n, way=7)
        except Exception as error:
            errors.append(error)

    one = world.one(a)
    thread = threading.Thread(target=work, args=(one,))
    thread.start()
    begun.wait()
    world.living.remove(one)
    del one
    gc.collect()
    thread.join(_WAIT_S)
    if thread.is_alive():
        raise Wrong("a thread hangs")
    if errors:
        raise errors[0]


def _fork(world: World, a: int, b: int, c: int) -> None:
    """Fork and run in the child; in the parent meanwhile, and from other threads, at times."""
    one, stop = world.one(a), threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        try:
            while not stop.is_set():
                world.run(one, b, way=7)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(c % 3)]
    for thread in threads:
        thread.start()
    try:
        in_child(functools.partial(_as_child, world, a, b, c >> 4), lambda: world.run(one, b, way=7))
    finally:
        stop.set()
        for thread in threads:
            thread.join(_WAIT_S)
    if any(thread.is_alive() for thread in threads):
        raise Wrong("threads of a parent hang")
    if errors:
        raise errors[0]


def _as_child(world: World, a: int, b: int, c: int) -> None:
    match c % 6:
        case 0:
            _threads(world, a, b, c)
        case 1:
            world.load(b)
            world.run(world.living[-1], b)
        case 2:
            in_child(lambda: _run(world, a, b, c), lambda: _run(world, a, b, c), _WAIT_S / 2)
        case 3:
            _drop(world, a, b, 1)
        case 4:
            _wrong(world, a, b, c)
    for one in world.living:
        world.run(one, b, way=c | 4)
    world.look()


def in_child(work: Callable[[], object], meanwhile: Callable[[], object], wait_s: float = _WAIT_S) -> None:
    """Call a function in a fork, and another one here meanwhile.

    Raises:
        Wrong: The child fails, dies or hangs.
    """
    faulthandler.cancel_dump_traceback_later()  # A fork would wait for its thread.
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os.close(reads)
        faulthandler.dump_traceback_later(wait_s * 0.75, file=writes)
        said = "fine"
        try:
            work()
        except Exception as error:
            said = str(error) if isinstance(error, Wrong) else one_line(error)
        finally:
            os.write(writes, said.encode())
            os._exit(0)
    os.close(writes)
    told, until = b"", time.monotonic() + wait_s
    try:
        meanwhile()
        while select.select([reads], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (some := os.read(reads, 1 << 16)):
                break
            told += some
    finally:
        os.close(reads)
        if told != b"fine":
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if told != b"fine":
        raise Wrong(f"in a fork, which ended with {status}: {told.decode(errors='replace')[-3000:] or 'nothing told'}")


STEPS: Mapping[str, Callable[[World, int, int, int], None]] = {
    "load": _load,
    "run": _run,
    "keep": _keep,
    "forget": _forget,
    "write": _write,
    "wrong": _wrong,
    "threads": _threads,
    "into": _into,
    "drop": _drop,
    "collect": _collect,
    "save": _save,
    "warm up": _warm_up,
    "profile": _profile,
    "drop while running": _drop_running,
    "fork": _fork,
}
SHARES = (3, 8, 3, 1, 3, 3, 3, 4, 1, 1, 1, 1, 1, 1, 2)
