"""Explain why a timing is not known: the parts of its key that differ from stored ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from collage._errors import NothingCanRun
from collage.cost.workload_key import digest_of
from collage.database.database import Database
from collage.database.queries import find_digest, listing
from collage.frontend import Lengths, fix_lengths, place_weights, read_model
from collage.graph import DataflowGraph
from collage.measure.check_inputs import capture_checking_sets
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import weight_bytes
from collage.measure.kernel_factory import KernelMaker
from collage.measure.session import MeasureSession
from collage.runtime._decoder import with_length_0
from collage.system.scratch import scratch
from collage.target import Target
from collage.toolchains import Registry
from collage.transform import prepare

__all__ = ["explain_digest", "explain_model", "nearest"]

_WEIGHT = {"kernel": 4, "target": 2}
"""A timing of the same kernel is nearer than one that agrees in everything else; then one for the same target."""


def explain_model(
    database: Database,
    path: Path,
    targets: Sequence[Target],
    toolchains: Registry,
    *,
    threads: int = 0,
    dims: Lengths | None = None,
    fixed: Mapping[str, int] | None = None,
) -> Iterator[dict[str, Any]]:
    """For each target alone on the whole model: its timing, or the differences of the nearest stored one.

    Raises:
        ModelError: The file is not a valid model.
        NothingCanRun: It cannot be run for reference.
    """
    prepared = prepare(fix_lengths(read_model(path), fixed or {}))
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        model = place_weights(prepared, workspace)
        measure_session = stack.enter_context(MeasureSession(toolchains, database, workspace, threads=threads))
        # As for a compilation: lengths of what it computes may depend on more than those of its inputs.
        lengths = dims or with_length_0(model, {})
        failure = capture_checking_sets(model, {}, measure_session, database, seed=0, dims=lengths).failure
        if failure is not None:
            raise NothingCanRun(f"nothing is measured of this model: {failure}")
        estimator = MeasuringCostEstimator(measure_session, weight_bytes(model))
        kernels = KernelMaker(DataflowGraph(model))
        for target in targets:
            kernel = kernels.model((1 << len(kernels.graph)) - 1, target)
            yield _explanation(database, measure_session.key(estimator.job(kernel, target)).parts())


def explain_digest(database: Database, beginning: str) -> dict[str, Any]:
    """Return the parts in which a stored timing differs from the nearest other one.

    Raises:
        UsageError: No timing, or more than one, has a digest that begins so.
    """
    return _explanation(database, find_digest(database, beginning)["parts"], another=True)


def nearest(rows: Iterable[Mapping[str, Any]], parts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the timing whose key is nearest to this one, by its ``parts``; of equally near ones the newest."""
    return max(rows, key=lambda row: (_likeness(row["parts"], parts), row["made_at_s"]), default=None)


def _likeness(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    names = left.keys() | right.keys()
    return sum(_WEIGHT.get(name, 1) for name in names if left.get(name) == right.get(name)) - len(names)


def _explanation(database: Database, parts: Mapping[str, Any], *, another: bool = False) -> dict[str, Any]:
    """Return the explanation as JSON values; ``known`` is the stored timing of this key, or the one that the caller passes."""
    digest = digest_of(parts)
    found = nearest((row for row in listing(database) if not another or row["digest"] != digest), parts)
    known = found is not None and found["digest"] == digest
    differs: list[dict[str, Any]] = []
    if found is not None and not known:
        names = sorted(parts.keys() | found["parts"].keys())
        differs = [
            {"part": name, "wanted": parts.get(name), "stored": found["parts"].get(name)}
            for name in names
            if parts.get(name) != found["parts"].get(name)
        ]
    return {"digest": digest, "parts": dict(parts), "known": known, "nearest": found, "differs": differs}
