"""Side by side: an artefact against every toolchain alone, interleaved, each in a clean process."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collage._errors import CollageError, ToolchainError
from collage.database.database import Database
from collage.frontend import Lengths
from collage.inspection import describe_environment
from collage.measure.artefact_race import ArtefactTrack, artefact_on, length_of, open_track, opened, raced
from collage.measure.bench_findings import keep_faster
from collage.measure.decoding import decoding_of
from collage.measure.finalist import Finalist, FinalistResult
from collage.measure.race import Comparison
from collage.measure.session import MeasureSession
from collage.runtime import Recipe
from collage.status import Status
from collage.store import shown
from collage.system.scratch import scratch
from collage.target import Target, TargetLike
from collage.toolchains import Registry, option_values, registry

__all__ = ["OURS", "bench", "row_of", "vendors_on"]

OURS = "collage"


def bench(
    artefact: Path,
    against: Iterable[TargetLike] | None = None,
    *,
    rounds: int = 15,
    neighbour: str = "none",
    dims: Lengths | None = None,
    inputs: Mapping[str, Any] = MappingProxyType({}),
    model: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time an artefact against single toolchains.

    Args:
        artefact: The result of ``Executable.save``, a folder or a zip.
        against: Targets; None is the menu that the artefact was compiled with.
        rounds: Rounds; each contestant has one turn in each.
        neighbour: The process beside which all run: ``none``, ``idle`` or ``equal`` by its priority.
        dims: Representative lengths of symbolic dimensions, see ``CompileOptions``; None is those that it was compiled for.
        inputs: Representative inputs by name, NumPy; those not given are made up.
        model: The file that the artefact was compiled from; None looks for it where the artefact says, from here.
        say: Called with each line of progress.

    Raises:
        UsageError: The file is not what the artefact was compiled from.

    Returns:
        ``rows`` of name, median, p10, p90, p95 and p99 in µs, the speed-up over the best single with its interval, how long
        the race took, and the environment. ``faster`` has the rows that are faster than the artefact beyond doubt, each with
        the command that uses it. The next compilation of the model races these again. ``call`` has the target on which the
        artefact runs the whole model, and the µs that a call of the artefact takes beyond it, if that is faster beyond doubt;
        else None. ``decoding`` has the figures of a decoder with caches, see ``collage.measure.decoding``;
        None for other models. The singles run the original model where it can still be found unchanged, else the
        artefact's copy of it.
    """
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        folder, recipe, place = opened(artefact, stack, say)
        toolchains = registry()
        targets = toolchains.parse_targets(list(against or ()) or list(recipe.report.get("menu", ())))
        track = open_track(stack, workspace, recipe, folder, model, dims, inputs, say)
        finalists = [artefact_on(track, OURS, place, recipe)]
        standings: dict[str, FinalistResult | None] = {OURS: None}
        vendors, failures = vendors_on(track, targets, recipe.threads, say)
        standings |= {name: failures.get(name) for name in (*failures, *(vendor.name for vendor in vendors))}
        finalists += vendors
        length = replace(length_of(rounds), neighbour=neighbour)
        result, duration_s = raced(track, finalists, length, OURS, say)
        standings.update((standing.finalist.name, standing) for standing in result.standings)
        is_alive = result.winner is not None and result.winner.finalist.name == OURS
        speedup = result.speedup if is_alive else None
        ahead = [each for each in result.standings if is_alive and _is_faster(each)]
        faster = [each for each in ahead if not _is_own(each, recipe)]
        if neighbour == "none":  # What is faster beside another process says nothing of the usual race.
            _note_faster(recipe, faster, say)
        decoding = _decoding(place, recipe, say) if neighbour == "none" else None
    return {
        "schema": 1,
        "artefact": shown(artefact),
        "rows": [row_of(standing, recipe) for standing in standings.values() if standing is not None],
        "speedup_vs_best_single": speedup[0] if speedup else None,
        "speedup_interval": speedup[1].as_list() if speedup else None,
        "faster": [
            {
                "name": each.finalist.name,
                "command": f"collage compile {shlex.quote(_path_of(recipe, model))} "
                f"-t {shlex.quote(each.finalist.name)} -o {shlex.quote(shown(artefact))}",
            }
            for each in faster
        ],
        "call": next((_beyond(each, result) for each in ahead if _is_own(each, recipe)), None),
        "decoding": decoding,
        "rounds": rounds,
        "neighbour": neighbour,
        "duration_s": duration_s,
        "threads": recipe.threads,
        "environment": describe_environment(),
    }


def _is_faster(standing: FinalistResult) -> bool:
    """Return True for a right single toolchain that is faster than the artefact beyond doubt."""
    if standing.status is not Status.OK or standing.reason is not None or standing.finalist.name == OURS:
        return False
    return standing.ratio is not None and standing.ratio[1].high < 1.0


def _is_own(standing: FinalistResult, recipe: Recipe) -> bool:
    """Return True for the target on which the artefact runs the whole model."""
    return [kernel.target for kernel in recipe.kernels] == [str(standing.finalist.arguments["target"])]


def _beyond(own: FinalistResult, result: Comparison) -> dict[str, Any] | None:
    """Return the µs that a call of the artefact takes beyond its own target."""
    if result.winner is None or result.winner.time is None or own.ratio is None:
        return None
    return {"target": own.finalist.name, "beyond_us": (1.0 - own.ratio[0]) * result.winner.time.median_s * 1e6}


def _note_faster(recipe: Recipe, faster: Sequence[FinalistResult], say: Callable[[str], None]) -> None:
    """Keep what was faster, so that the next compilation of the model races it again."""
    targets = [str(each.finalist.arguments["target"]) for each in faster]
    if not targets or not (digest := str(recipe.model.get("sha256") or "")):
        return
    try:
        with Database() as database:
            keep_faster(database, digest, targets)
    except CollageError as error:
        say(f"{', '.join(targets)} cannot be noted for the next compilation: {error}")


def _decoding(place: Path, recipe: Recipe, say: Callable[[str], None]) -> dict[str, Any] | None:
    try:
        with Database() as database:
            return decoding_of(place, recipe, database)
    except CollageError as error:
        say(f"tokens are not timed: {error}")
        return None


def _path_of(recipe: Recipe, model: Path | None) -> str:
    return str(model or recipe.model.get("path") or "MODEL.onnx")


def vendors_on(
    track: ArtefactTrack, targets: Sequence[Target], threads: int, say: Callable[[str], None]
) -> tuple[list[Finalist], dict[str, FinalistResult]]:
    """Return the targets as contestants, each with its vendor's defaults, and those that the model cannot be built on."""
    vendors: list[Finalist] = []
    failures: dict[str, FinalistResult] = {}
    for number, target in enumerate(_with_defaults(targets, registry(), track.session)):
        vendor = _vendor(target, threads, track.session.workspace, track.timed)
        say(f"building the model on {target.short}")
        track.model.graph.name = f"original_{number}"  # So are called the files that it is compiled to.
        try:
            compiled = track.session.build(track.model, target)
        except ToolchainError as error:
            failures[vendor.name] = FinalistResult(vendor, Status.FAILED, reason=str(error))
            continue
        vendors.append(replace(vendor, arguments={**vendor.arguments, "compiled": compiled.as_json()}))
    return vendors, failures


def _with_defaults(
    targets: Iterable[Target], toolchains: Registry, measure_session: MeasureSession
) -> Sequence[Target]:
    """Return targets, each followed by itself in the precision that its vendor takes, if that is another here."""
    found: list[Target] = []
    for target in targets:
        found.append(target)
        choices = option_values(toolchains.for_target(target), target).get("precision") or ()
        is_open = target.option("precision") is None and "default" in choices
        if is_open and measure_session.availability(target).precisions:
            found.append(target.with_options(precision="default"))
    return tuple(dict.fromkeys(found))


def _vendor(target: Target, threads: int, workspace: Path, timed: Mapping[str, Any]) -> Finalist:
    """A contestant without its executable: the target, its name and its threads."""
    factory, arguments = registry().factory(target.toolchain)
    told = {
        "factory": factory,
        "arguments": arguments,
        "target": str(target),
        "workspace": str(workspace),
        **timed,
        "threads": threads,
    }
    # A coarser type that a vendor takes by itself is timed, right or wrong, and is not a single to beat.
    is_single = target.option("precision") != "default"
    service = "collage.measure._executable_worker:VendorWorker"
    return Finalist(target.short, service, told, incumbent=is_single, is_candidate=is_single)


def row_of(standing: FinalistResult, recipe: Recipe) -> dict[str, Any]:
    """Return how a contestant did as JSON values, times in µs; ``recipe`` is that of the artefact, if it is one."""
    time = standing.time
    name = standing.finalist.name
    target = standing.finalist.arguments.get("target")
    targets = [kernel.target for kernel in recipe.kernels] if target is None else [str(target)]
    named = [Target.parse(target).option("precision", "f32") for target in targets]
    return {
        "name": name,
        "precision": standing.precision or ", ".join(dict.fromkeys(filter(None, named))),
        "ratio": standing.ratio[0] if standing.ratio else None,
        "ratio_interval": standing.ratio[1].as_list() if standing.ratio else None,
        "median_us": time.median_s * 1e6 if time else None,
        "p10_us": time.p10_s * 1e6 if time else None,
        "p90_us": time.p90_s * 1e6 if time else None,
        "p95_us": None if standing.p95_s is None else standing.p95_s * 1e6,
        "p99_us": None if standing.p99_s is None else standing.p99_s * 1e6,
        "status": standing.status.value,
        "reason": standing.reason,
        "max_rel_error": standing.max_rel,
    }
