"""The steps of a sequence: calls that users make, and what must come of each."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.fuzz.references import NoCase, one_line, onnxruntime_plainly
from tests.fuzz.sequence_world import Living, World, Wrong, copied, unaligned

Array = Any
_WAIT_S = 40.0
"""Seconds that a thread or a fork may take. A fork of a fork may take half of them."""
_ROUNDS = 3
_INDEX_INPUTS = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}
_OF_OTHER_SIZE = {"float32": "f8", "float64": "f4", "float16": "f4", "int64": "i4", "int32": "i8", "uint16": "i2"}


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
                out[name] = unaligned(expected)
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
