"""Side by side: an artefact against every toolchain alone, interleaved, each in a clean process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from collage._errors import ToolchainError, UsageError
from collage.cost.outcome import Status
from collage.database.database import Database
from collage.frontend import (
    Lengths,
    bind_dims,
    check_given,
    lengths_from_json,
    model_digest,
    place_weights,
    read_model,
    shape_profiles,
    with_lengths_of,
)
from collage.measure.comparison import ComparisonPlan, Finalist, FinalistResult, compare_end_to_end
from collage.measure.estimator import model_tolerance
from collage.measure.reference_run import capture_made_up
from collage.measure.session import MeasureSession
from collage.runtime import Recipe, unpack, verify
from collage.system.scratch import scratch
from collage.target import Target, TargetLike
from collage.toolchains import registry

__all__ = ["bench"]

OURS = "collage"
_LEGS = 3
"""Processes of each contestant, one after the other: the interval tells how much chance there is in where one happens to lie."""


def bench(
    artefact: Path,
    against: Iterable[TargetLike] | None = None,
    *,
    rounds: int = 15,
    dims: Lengths | None = None,
    inputs: Mapping[str, Any] = MappingProxyType({}),
    model: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times an artefact against single toolchains.

    Args:
        artefact: What ``Executable.save`` wrote, a folder or a zip.
        against: Targets; None is the menu that the artefact was compiled with.
        rounds: Rounds; each contestant has one turn in each.
        dims: Representative lengths of symbolic dimensions, see ``CompileOptions``; None is those that it was compiled for.
        inputs: Representative inputs by name, NumPy; those not given are made up.
        model: The file that the artefact was compiled from; None looks for it where the artefact says, from here.
        say: Told what is going on.

    Raises:
        UsageError: The file is not what the artefact was compiled from.

    Returns:
        ``rows`` of name, median, p10 and p90 in µs, and the speed-up over the best single with its interval. The
        singles run the original model where it can still be found unchanged, else the artefact's copy of it.
    """
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        name = str(artefact)
        if artefact.is_file():
            unpacked = workspace / "unpacked"
            unpacked.mkdir()
            unpack(artefact, unpacked)
            artefact = unpacked
        recipe, _ = verify(artefact)
        toolchains = registry()
        targets = toolchains.parse_targets(list(against or ()) or list(recipe.report.get("menu", ())))
        original = workspace / "original"
        original.mkdir()
        found = _original(recipe, model)
        if found is None:
            say("the original model is not found from here: the artefact's copy of it is timed")
            found = read_model(artefact / recipe.model_file)
        original_model = place_weights(found, original)
        original_model.graph.name = "original"
        database = stack.enter_context(Database("sqlite:///:memory:"))
        measure_session = stack.enter_context(
            MeasureSession(toolchains, database, original, threads=recipe.threads, say=say)
        )
        say("running the model once for reference")
        dims = _compiled_for(original_model, recipe) if dims is None else dims
        given = check_given(original_model, inputs)
        dims = with_lengths_of(original_model, given, dims)
        capture_made_up(original_model, measure_session, dims, given)
        timed = {"values": measure_session.value_folders, "weights": measure_session.weights}
        ours = {"artefact": str(artefact), **timed}
        finalists = [Finalist(OURS, "collage.measure._executable_worker:ArtefactWorker", ours, len(recipe.kernels))]
        standings: dict[str, FinalistResult | None] = {OURS: None}
        for number, target in enumerate(targets):
            vendor = _vendor(target, recipe.threads, original, timed)
            say(f"building the model on {target.short}")
            original_model.graph.name = f"original_{number}"  # So are called the files that it is compiled to.
            try:
                compiled = measure_session.build(original_model, target)
            except ToolchainError as error:
                standings[vendor.name] = FinalistResult(vendor, Status.COMPILE_ERROR, reason=str(error))
                continue
            standings[vendor.name] = None
            finalists.append(replace(vendor, arguments={**vendor.arguments, "compiled": compiled.as_json()}))
        measure_session.close()
        plan = ComparisonPlan(choosing_rounds=(), reporting_rounds=rounds, legs=_LEGS, abandon_ratio=20.0)
        result = compare_end_to_end(
            finalists,
            model_tolerance(original_model),
            plan,
            say,
            winner=OURS,
        )
        standings.update((standing.finalist.name, standing) for standing in result.standings)
    return {
        "schema": 1,
        "artefact": name,
        "rows": [_row(standing) for standing in standings.values() if standing is not None],
        "speedup_vs_best_single": result.speedup[0] if result.speedup else None,
        "speedup_interval": result.speedup[1].as_list() if result.speedup else None,
    }


def _compiled_for(model: ir.Model, recipe: Recipe) -> Lengths:
    """The lengths that the artefact's report calls representative, if they are lengths of this model."""
    try:
        found = lengths_from_json(recipe.report.get("dims", {}))
        bind_dims(model, shape_profiles(found)[0].dims)
    except UsageError:
        return {}
    return found


def _vendor(target: Target, threads: int, workspace: Path, timed: Mapping[str, Any]) -> Finalist:
    """A target on the track, but for what it is to run."""
    factory, arguments = registry().factory(target.toolchain)
    told = {
        "factory": factory,
        "arguments": arguments,
        "target": str(target),
        "workspace": str(workspace),
        **timed,
        "threads": threads,
    }
    return Finalist(target.short, "collage.measure._executable_worker:VendorWorker", told, incumbent=True)


def _original(recipe: Recipe, given: Path | None) -> ir.Model | None:
    """Return the model as its author wrote it; None if it is not found unchanged.

    Args:
        recipe: Says where it was, and its digest.
        given: Where it is, if the user says so.

    Raises:
        UsageError: What the user gave is another model.
    """
    path = Path(str(recipe.model.get("path") or "")) if given is None else given
    if given is None and not path.is_file():
        return None
    model = read_model(path)
    if model_digest(model) == recipe.model.get("sha256"):
        return model
    if given is None:
        return None
    raise UsageError(f"{given} is not the model that the artefact was compiled from")


def _row(standing: FinalistResult) -> dict[str, Any]:
    time = standing.time
    return {
        "name": standing.finalist.name,
        "median_us": time.median_s * 1e6 if time else None,
        "p10_us": time.p10_s * 1e6 if time else None,
        "p90_us": time.p90_s * 1e6 if time else None,
        "status": standing.status.value,
        "reason": standing.reason,
        "max_rel_error": standing.max_rel,
    }
