"""Growth of a fleet: tasks of the scheduler, a simulation of ten thousand models, rows of the database.

python -m benchmarks.fleet_growth scheduler --tasks 200 --slots 8
python -m benchmarks.fleet_growth simulation --models 10000 --machines 4 --nodes 25
python -m benchmarks.fleet_growth database --seconds 5
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


# The scheduler, with a toolchain that takes no time.


def scheduler(tasks: int, slots: int) -> dict[str, Any]:
    """Hand out tasks that are done at once: Ray, the states in the database, the check and the writing of artefacts."""
    from tests.unit.fleet.artefacts import model, zipped

    from collage.fleet.cluster import join
    from collage.fleet.driver import Driver
    from collage.fleet.machines import MachineType
    from collage.fleet.orders import Order, Work
    from collage.fleet.returned import keep
    from collage.fleet.tasks import Task, TaskStore

    artefact = zipped()

    def at_once(files: dict[str, bytes], job: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": "done", "node": "", "host": "here", "artefact": artefact, "took_s": 0.0}

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = folder / "m.onnx"
        path.write_bytes(b"model")
        works = [
            Work(Task(str(n), scratch, f"m{n}", str(n), "here", file=f"{n}.zip"), model(path)) for n in range(tasks)
        ]
        machines = {"here": MachineType("here", "0" * 16, {})}
        db = f"sqlite:///{folder / 't.sqlite'}"
        order = Order("local", db, folder, machines, tuple(works), 1, 60.0, 60.0)
        began = time.perf_counter()
        for n in range(10):
            keep(artefact, model(path), machines["here"], folder / f"warm{n}.zip")
        check_s = (time.perf_counter() - began) / 10
        with TaskStore(db) as store, join("local", ["here"], slots) as ray:
            store.plan(work.task for work in works[:slots])
            warm = Order(**{**{name: getattr(order, name) for name in order.__slots__}, "work": tuple(works[:slots])})
            Driver(warm, store, ray, lambda _: None, at_once).run()  # Ray's workers come up.
            store.plan(work.task for work in works)
            began = time.perf_counter()
            Driver(order, store, ray, lambda _: None, at_once).run()
            took_s = time.perf_counter() - began
            assert all(task.state == "done" for task in store.all())
    return {"tasks": tasks - slots, "slots": slots, "tasks_per_s": (tasks - slots) / took_s, "check_s": check_s}


# The simulation.


@dataclass(slots=True)
class Type:
    """One type of machines: the kernels that are known there, and when."""

    known_at_s: dict[int, float] = field(default_factory=dict)
    measured: int = 0
    wanted: int = 0
    waited_s: float = 0.0
    busy_s: float = 0.0


def simulated(
    models: Sequence[Sequence[int]], nodes: int, measure_s: Mapping[int, float], fixed_s: float, share: bool
) -> tuple[Type, float]:
    """Return what one type of machines did, and when its last node ended.

    A node takes the next model when it is free, does the work that nothing shares, and measures the kernels that are not known.
    One that another node is measuring is left to the end, and then waited for, as `MeasureSession.measure` does.
    """
    state = Type()
    free = [(0.0, node) for node in range(nodes)]
    # A node goes on at a time: (time, number, model, position in it, what was left to the end).
    queue: list[tuple[float, int, int, int, tuple[int, ...]]] = []
    coming = iter(range(len(models)))
    end_s = 0.0

    def begin(now_s: float, node: int) -> None:
        if (model := next(coming, None)) is not None:
            state.busy_s += fixed_s
            heapq.heappush(queue, (now_s + fixed_s, node, model, 0, ()))

    for now_s, node in free:
        begin(now_s, node)
    while queue:
        now_s, node, model, position, left = heapq.heappop(queue)
        kernels = models[model]
        state.wanted += position == 0 and len(kernels)
        while position < len(kernels):
            kernel = kernels[position]
            position += 1
            known_s = state.known_at_s.get(kernel) if share else None
            if known_s is None:
                state.known_at_s[kernel] = now_s + measure_s[kernel]
                state.measured += 1
                state.busy_s += measure_s[kernel]
                heapq.heappush(queue, (now_s + measure_s[kernel], node, model, position, left))
                break
            if known_s > now_s:
                left = (*left, kernel)
        else:
            later_s = max((state.known_at_s[kernel] for kernel in left), default=now_s)
            state.waited_s += max(0.0, later_s - now_s)
            end_s = max(end_s, now_s, later_s)
            begin(max(now_s, later_s), node)
    return state, end_s


def simulation(models: int, machines: int, nodes: int, families: int, seed: int) -> dict[str, Any]:
    """Models of families: most kernels of a model are those of its family's backbone, the others are its own."""
    chance = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(families)]  # A few families are most of a zoo.
    backbones = [[family * 1000 + n for n in range(chance.randint(60, 240))] for family in range(families)]
    measure_s: dict[int, float] = {k: chance.lognormvariate(0.0, 0.7) for b in backbones for k in b}
    zoo: list[list[int]] = []
    fresh = 10**9
    for family in chance.choices(range(families), weights, k=models):
        own = range(fresh, fresh + chance.randint(4, 40))
        fresh += 100
        measure_s.update((kernel, chance.lognormvariate(0.0, 0.7)) for kernel in own)
        zoo.append([*chance.sample(backbones[family], round(0.9 * len(backbones[family]))), *own])
    chance.shuffle(zoo)
    fixed_s = 60.0
    shared, apart = [], []
    for _ in range(machines):
        speed = chance.uniform(0.5, 2.0)  # Types of machines are not alike.
        timings = {kernel: seconds * speed for kernel, seconds in measure_s.items()}
        shared.append(simulated(zoo, nodes, timings, fixed_s, True))
        apart.append(simulated(zoo, nodes, timings, fixed_s, False))
    work_s = sum(state.busy_s for state, _ in shared)
    makespan_s = max(end_s for _, end_s in shared)
    # Types do not take work from each other: each has its own sum of work.
    ideal = [end_s / (state.busy_s / nodes) for state, end_s in shared]
    wanted, measured = (sum(getattr(state, name) for state, _ in shared) for name in ("wanted", "measured"))
    return {
        "models": models,
        "machines": machines,
        "nodes_of_each": nodes,
        "makespan_h": makespan_s / 3600,
        "work_h": work_s / 3600,
        "makespan_over_work_by_nodes": max(ideal),
        "kernels_wanted": wanted,
        "kernels_measured": measured,
        "share_saved": 1 - measured / wanted,
        "waited_share": sum(state.waited_s for state, _ in shared) / (work_s or 1.0),
        "makespan_without_sharing_h": max(end_s for _, end_s in apart) / 3600,
    }


# The database.


def database(seconds: float, writers: Sequence[int]) -> list[dict[str, Any]]:
    """Rows that are committed one by one, as after each measurement, and claims taken and freed around each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver
    folder = Path(tempfile.mkdtemp(prefix="collage-growth-"))
    server = pgserver.get_server(folder)
    try:
        return [{"writers": n, **_written(server.get_uri(), n, seconds)} for n in writers]
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _written(url: str, writers: int, seconds: float) -> dict[str, float]:
    """Return the sums of what several processes do in a second. They begin together, once all have their libraries."""
    found: dict[str, float] = {}
    for what in ("rows", "claims", "lookups"):
        words = [sys.executable, "-m", "benchmarks.fleet_growth", "write", url, what, str(seconds)]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths}
        pipe = subprocess.PIPE
        children = [
            subprocess.Popen([*words, str(n)], stdin=pipe, stdout=pipe, env=environment, text=True)
            for n in range(writers)
        ]
        try:
            for child in children:
                assert child.stdout is not None
                child.stdout.readline()  # It is ready.
            for child in children:
                assert child.stdin is not None
                child.stdin.close()
            found[f"{what}_per_s"] = round(sum(float(child.stdout.read()) for child in children if child.stdout), 1)
        finally:
            for child in children:
                child.kill()
                child.wait()
    return found


def write(url: str, what: str, seconds: float, writer: str) -> float:
    from dataclasses import replace

    from tests.crash._tuners import KEY, outcome_of

    from collage.database.database import Database

    with Database(url) as database:
        print("ready", flush=True)
        sys.stdin.read()
        count, began = 0, time.perf_counter()
        while (took_s := time.perf_counter() - began) < seconds:
            key = replace(KEY, kernel=f"{writer}-{count % 10_000}")
            if what == "rows":
                database.record(key, outcome_of(key))
            elif what == "lookups":
                database.find(key)
            else:
                with database.claimed(key, 0.0):
                    pass
            count += 1
    return count / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("scheduler")
    one.add_argument("--tasks", type=int, default=200)
    one.add_argument("--slots", type=int, default=8)
    two = parts.add_parser("simulation")
    two.add_argument("--models", type=int, default=10_000)
    two.add_argument("--machines", type=int, default=4)
    two.add_argument("--nodes", type=int, default=25)
    two.add_argument("--families", type=int, default=200)
    two.add_argument("--seed", type=int, default=0)
    three = parts.add_parser("database")
    three.add_argument("--seconds", type=float, default=5.0)
    three.add_argument("--writers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    four = parts.add_parser("write")
    for name in ("url", "what", "seconds", "writer"):
        four.add_argument(name)
    told = vars(parser.parse_args())
    part = told.pop("part")
    if part == "write":
        print(write(told["url"], told["what"], float(told["seconds"]), told["writer"]))
    else:
        print(json.dumps(globals()[part](**told), indent=2))


if __name__ == "__main__":
    main()
