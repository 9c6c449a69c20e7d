"""Races of artefacts of one model, each in clean processes, beside each other and beside toolchains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage import runtime
from collage._errors import UsageError
from collage.database.database import Database
from collage.frontend import (
    Lengths,
    bind_dims,
    check_given,
    lengths_from_json,
    model_digest,
    place_weights,
    read_model,
    separate_lengths,
    shape_profiles,
    with_lengths_of,
)
from collage.measure.estimator import model_tolerance
from collage.measure.finalist import LATENCY, Figure, Finalist
from collage.measure.race import Comparison, race
from collage.measure.reference_run import capture_made_up
from collage.measure.session import MeasureSession
from collage.measure.track import LEGS, ComparisonPlan
from collage.runtime import Recipe, verify
from collage.toolchains import registry

__all__ = ["ArtefactTrack", "artefact_on", "length_of", "open_track", "opened", "raced"]


@dataclass(frozen=True, slots=True)
class ArtefactTrack:
    """Everything that contestants of a race have in common.

    Attributes:
        model: The original model, or an artefact's copy of it, in the session's workspace.
        session: Has run the model for reference.
        timed: Folders of the inputs and reference values, and the weight of each, as arguments of workers.
    """

    model: ir.Model
    session: MeasureSession
    timed: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The file of the model, by which doubts on outputs are settled."""
        return str(self.session.written(self.model))


def opened(artefact: Path, stack: ExitStack, say: Callable[[str], None]) -> tuple[Path, Recipe, Path]:
    """Return the folder and the recipe of an artefact, verified. The unpacked files stay until the stack is closed.

    Returns:
        The folder and the recipe of its plan for all lengths, and the place that workers load: the artefact itself, if it has
        plans for some lengths too.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: It is damaged, or was changed.
    """
    found = stack.enter_context(runtime.opened(artefact))
    if found.note is not None:
        say(found.note)
    return found.folder, verify(found.folder)[0], artefact if found.specialised else found.folder


def open_track(
    stack: ExitStack,
    workspace: Path,
    recipe: Recipe,
    folder: Path,
    model: Path | None,
    dims: Lengths | None,
    inputs: Mapping[str, Any],
    say: Callable[[str], None],
) -> ArtefactTrack:
    """Return a track on the inputs of an artefact: the model runs once for reference.

    Raises:
        UsageError: The model is not what the artefact was compiled from, or inputs or lengths do not fit it.
    """
    original = workspace / "original"
    original.mkdir()
    found = _original(recipe, model)
    if found is None:
        say("the original model is not found from here: the artefact's copy of it is timed")
        found = read_model(folder / recipe.model_file)
    stated = {**recipe.report.get("dims", {}), **(dims or {})}
    original_model = place_weights(separate_lengths(found, inputs, stated), original)
    original_model.graph.name = "original"
    database = stack.enter_context(Database("sqlite:///:memory:"))
    session = stack.enter_context(MeasureSession(registry(), database, original, threads=recipe.threads, say=say))
    say("running the model once for reference")
    dims = _compiled_for(original_model, recipe) if dims is None else dims
    given = check_given(original_model, inputs)
    capture_made_up(original_model, session, with_lengths_of(original_model, given, dims), given)
    return ArtefactTrack(original_model, session, {"values": session.value_folders, "weights": session.weights})


def artefact_on(track: ArtefactTrack, name: str, place: Path, recipe: Recipe, *, incumbent: bool = False) -> Finalist:
    """Return an artefact as a contestant."""
    arguments = {"artefact": str(place), **track.timed}
    return Finalist(
        name, "collage.measure._executable_worker:ArtefactWorker", arguments, len(recipe.kernels), incumbent
    )


def raced(
    track: ArtefactTrack,
    finalists: Sequence[Finalist],
    plan: ComparisonPlan,
    winner: str,
    say: Callable[[str], None],
    figure: Figure = LATENCY,
) -> tuple[Comparison, float]:
    """Race contestants in turns; the session ends.

    Returns:
        The comparison, in which ``winner`` counts as the winner whatever its time, and the seconds that it took.
    """
    track.session.close()
    began = time.monotonic()
    entries = [replace(finalist, model=track.file) for finalist in finalists]
    result = race(entries, model_tolerance(track.model), plan, say, figure=figure, winner=winner)
    return result, time.monotonic() - began


def length_of(rounds: int, abandon_ratio: float = 20.0) -> ComparisonPlan:
    """Return the length of a race of artefacts, each in several processes one after the other."""
    return ComparisonPlan(reporting_rounds=rounds, legs=LEGS, abandon_ratio=abandon_ratio)


def _compiled_for(model: ir.Model, recipe: Recipe) -> Lengths:
    """The lengths that the artefact's report calls representative, if they are lengths of this model."""
    try:
        found = lengths_from_json(recipe.report.get("dims", {}))
        bind_dims(model, shape_profiles(found)[0].dims)
    except UsageError:
        return {}
    return found


def _original(recipe: Recipe, given: Path | None) -> ir.Model | None:
    """Return the model as its author wrote it; None if it is not found unchanged.

    Args:
        recipe: The recipe, which holds the path and the digest of the model.
        given: Path of the original model, if the user gives one.

    Raises:
        UsageError: The model that the user gave is another model.
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
