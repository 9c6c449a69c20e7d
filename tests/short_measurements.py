"""Measurements that end soon, for tests of what follows from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from collage.compiler import cost_table, problem
from collage.database.database import Database
from collage.measure import artefact_race
from collage.measure.overheads import Overheads, measure_overheads
from collage.measure.process_compat import ProcessCompatibility, Verdict
from collage.measure.roofline import Peak, measure_peak
from collage.measure.session import MeasureSession
from collage.measure.track import ComparisonPlan, Runner, Track
from collage.target import Target
from collage.workers import machine_lock

PROGRAM = (
    "from tests.short_measurements import shorten_measurements; shorten_measurements(); "
    "from collage.cli import main; main()"
)
"""The command line, for a process of its own that measures as briefly."""

LOCKS = "COLLAGE_TEST_LOCKS"
"""The variable that names the folder of the machine lock, for processes that tests start."""

_peaks: list[Peak] = []
_overheads: dict[tuple[str, str, int], Overheads] = {}
_verdicts: dict[str, tuple[Verdict, bool]] = {}
_probe = ProcessCompatibility._probe
_start_afresh = Track.start_afresh


@dataclass(frozen=True, slots=True)
class _ShortRaces(ComparisonPlan):
    """Races as users hold them take longer; what wins here wins by more than a longer look could tell."""

    block_s: float = 0.01
    most_rounds: int = 15
    reporting_rounds: int = 7


def shorten_measurements() -> None:
    """Shorten comparisons in this process, and measure once what no database of a test can change."""
    # Each leg starts every process anew. Such races are in tests/unit/measure.
    _replace(artefact_race, LEGS=1, ComparisonPlan=_ShortRaces)
    _replace(problem, LEGS=1, ComparisonPlan=_ShortRaces)
    _replace(Track, start_afresh=_start_afresh_if_long)
    _replace(cost_table, measure_peak=_peak_of_before, measure_overheads=_overheads_of_before)
    _replace(ProcessCompatibility, _probe=_probe_of_before)
    if LOCKS in os.environ:
        machine_lock._FOLDER = Path(os.environ[LOCKS])


def _replace(module: ModuleType | type, **values: object) -> None:
    """Replace names of a module or a class. A name that it no longer has would shorten nothing, without a word."""
    for name, value in values.items():
        getattr(module, name)
        setattr(module, name, value)


def _start_afresh_if_long(track: Track, runners: Sequence[Runner]) -> None:
    """Start processes anew only in races that are not shortened: tests of races may run in this process, too."""
    if not isinstance(track.plan, _ShortRaces):
        _start_afresh(track, runners)


def _peak_of_before(database: Database) -> Peak:
    """Return the peak of this machine, which is the same in every test."""
    if not _peaks:
        _peaks.append(measure_peak(database))
    return _peaks[0]


def _overheads_of_before(target: Target, measure_session: MeasureSession) -> Overheads:
    """Return the overheads of a target, which are the same in every test with the same build."""
    name = str(target), measure_session.availability(target).build, measure_session.threads
    if name not in _overheads:
        _overheads[name] = measure_overheads(target, measure_session)
    return _overheads[name]


def _probe_of_before(compat: ProcessCompatibility, targets: Sequence[Target]) -> tuple[Verdict, bool]:
    """Return the verdict on toolchains in one process, which is the same in every test with the same toolchains.

    Tests of probes have a class of their own, which always probes.
    """
    if type(compat) is not ProcessCompatibility:
        return _probe(compat, targets)
    told = [(str(target), compat._build_of(target), compat._toolchains.factory(target.toolchain)) for target in targets]
    name = repr(told)
    if name not in _verdicts:
        _verdicts[name] = _probe(compat, targets)
    return _verdicts[name]
