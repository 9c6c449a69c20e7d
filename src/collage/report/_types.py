"""The report of a compilation as values, schema 1.

Times are µs, as in the JSON. Seconds end at this border. A value that is not known is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from collage.status import Status
from collage.system.codec import LARGEST, RARE, Share, Us, Within

__all__ = [
    "SCHEMA",
    "BodyKernelRow",
    "Gain",
    "KernelRow",
    "Machine",
    "ModelFacts",
    "Numerics",
    "Occasion",
    "Ratio",
    "ReferenceFacts",
    "ReportValues",
    "Row",
    "RowKind",
    "SearchFacts",
    "SpecialisedRow",
    "Times",
]

SCHEMA = 1
"""Version of the report that is written."""

RowKind = Literal["baseline", "single", "mix"]

_Factor = Annotated[float, Within(1 / LARGEST, LARGEST)]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The origin of a model.

    Attributes:
        path: Path as it was given, without folders of this machine; empty if there was no file.
        sha256: Digest of its contents.
        nodes: Number of operators after preparation.
    """

    path: str = ""
    sha256: str = ""
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the versions that everything was measured with.

    Attributes:
        cpu: Name of the processor.
        cores: Processors that the process may use.
        memory_bytes: Physical memory.
        system: Operating system and architecture.
        collage: Version of Collage.
        toolchains: Build of each toolchain of the menu, by target.
    """

    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""
    collage: str = ""
    toolchains: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Occasion:
    """Shapes of the inputs that kernels and plans are timed on.

    Attributes:
        weight: Share of this occasion in every time; all add up to 1.
        inputs: Shape of each input.
    """

    weight: float
    inputs: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution of latencies in µs.

    Attributes:
        median: The median.
        p10: Tenth percentile.
        p90: Ninetieth percentile.
        count: Number of runs; None if it is not known.
    """

    median: Us
    p10: Us
    p90: Us
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times with its 95 % interval.

    Attributes:
        value: Median of the ratios of the rounds.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: _Factor
    low: _Factor
    high: _Factor


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison.

    Attributes:
        name: Unique name: the target, ``mix 1``, or the name of the baseline.
        kind: ``baseline`` is the original model on ONNX Runtime. ``single`` is one toolchain alone. ``mix`` is any other plan.
        verdict: The reason why it is returned or not, in one word.
        target: The target, if it is one alone.
        kernels: Number of kernels; None if there is no plan.
        precision: The coarser type that it computes in, such as ``bf16``; None is the model's own precision.
        ratio: Time over that of the returned row, paired by rounds of the reporting phase; None if it was not in them.
        time_us: Time of the returned row times ``ratio``: free of the machine's drift between rounds.
        measured_us: Latencies in the reporting phase.
        rounds_us: Median latency in each round of the reporting phase, in the order of time.
        unbound_us: Latencies of the whole model, timed alone, if the target's kernels are bound to a rule.
        estimate_us: Predicted time.
        max_rel_error: Largest difference of an output from the reference, relative to the largest magnitude.
        reason: One sentence, if it has no time or is wrong.
        streams: Number of concurrent runs, if throughput was compared. Times are then the inverse of runs per second.
        threads: Threads of each of these runs.
        differs: Number of operators that its plan gives to other kernels than the returned plan does.
    """

    name: str
    kind: RowKind
    verdict: Status
    target: str | None = None
    kernels: int | None = None
    precision: str | None = None
    ratio: Ratio | None = None
    time_us: Us | None = None
    measured_us: Times | None = None
    rounds_us: tuple[Us, ...] = ()
    unbound_us: Times | None = None
    estimate_us: float | None = None
    max_rel_error: float | None = None
    reason: str | None = None
    streams: int | None = None
    threads: int | None = None
    differs: int | None = None


@dataclass(frozen=True, slots=True)
class SpecialisedRow:
    """The plan for a set of lengths, beside the returned plan for all lengths.

    Attributes:
        lengths: The lengths, by symbol, or by ``input[axis]`` where a dimension has none.
        targets: The targets of its kernels, each once.
        time_us: Its time at these lengths; None if it was not timed.
        ratio: Time of the plan for all lengths over its time, at these lengths; None if they were not compared.
        reason: One sentence, if the plan is not kept.
    """

    lengths: Mapping[str, int]
    targets: tuple[str, ...] = ()
    time_us: Us | None = None
    ratio: Ratio | None = None
    reason: str | None = None

    @property
    def title(self) -> str:
        """Its lengths, for people."""
        return ", ".join(f"{name}={length}" for name, length in self.lengths.items())

    @property
    def general_us(self) -> float | None:
        """Time of the plan for all lengths at these, in the same race; None if they were not compared."""
        return None if self.time_us is None or self.ratio is None else self.time_us * self.ratio.value

    @property
    def is_kept(self) -> bool:
        """True if the plan runs the calls with these lengths."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Gain:
    """A speed-up of the returned plan.

    Attributes:
        over: The role of the row that it is compared with.
        row: Name of that row.
        ratio: Time of that row over the time of the returned one.
    """

    over: Literal["baseline", "best_single", "best_of_menu"]
    row: str
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class BodyKernelRow:
    """One kernel of a body of an If, a Loop or a Scan.

    Attributes:
        name: Global symbol.
        target: Printed form.
        operators: Its operators in a few words.
        nodes: Names of the prepared model's nodes.
        rule: The fusion rules that proposed it.
    """

    name: str
    target: str
    operators: str = ""
    nodes: tuple[str, ...] = ()
    rule: str = ""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel of the returned plan.

    Attributes:
        name: Global symbol.
        target: Printed form.
        operators: Its operators in a few words.
        nodes: Names of the prepared model's nodes.
        rule: The fusion rules that proposed it.
        estimate_us: Time that the search counted with. It is not comparable with the end-to-end time.
        time_us: Its share of the end-to-end time, measured inside the executable. None if that was not measured.
        share: The same as a share of the run, 0 to 1, with the hand-over of values.
        device: The device that it runs on, if it was placed.
        branch: The branch that it belongs to, from 1. Kernels of different branches run at the same time. None if it is
            in none.
        bodies: The kernels of its bodies, if it is an operator with bodies of several kernels, or of other targets.
    """

    name: str
    target: str
    operators: str = ""
    nodes: tuple[str, ...] = ()
    rule: str = ""
    estimate_us: float | None = None
    device: str | None = None
    branch: int | None = None
    bodies: tuple[BodyKernelRow, ...] = field(default=(), metadata=RARE)
    time_us: Us | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """The work of the search.

    Attributes:
        algorithm: Name of the strategy.
        mode: ``fast``, ``proof`` or ``exhaustive``.
        stopped_by: Cause of its end.
        candidates: Number of candidate kernels.
        keys: Number of distinct ones.
        built: Kernels that were built.
        measured: Kernels that were measured.
        cache_hits: Timings that were known.
        raced: False if the result of an earlier compilation was reused.
        states: Covered sets that were settled.
        rounds: Times that the best path was searched again.
        caps: Limits that were hit.
        optimal: True if no cover by the candidates can cost less.
        gap: Share of its cost that a better cover could save at most.
        wall_s: Seconds of the whole compilation.
        notes: Reasons that candidates were left out.
        tuning: A sentence on the kernels that ``--tune`` tuned; empty without it.
    """

    algorithm: str = "none"
    mode: str = ""
    stopped_by: str = ""
    candidates: int = 0
    keys: int = 0
    built: int = 0
    measured: int = 0
    cache_hits: int = 0
    raced: bool = False
    states: int = 0
    rounds: int = 0
    caps: tuple[str, ...] = ()
    optimal: bool = False
    gap: float | None = None
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    tuning: str = ""


@dataclass(frozen=True, slots=True)
class ReferenceFacts:
    """The origin of the reference outputs.

    Attributes:
        model: ``original``, or ``prepared`` if the original cannot be run.
        evaluator: Name and version of the program that ran it.
        reason: Cause of the failure to run the original.
        probes: Sets of inputs besides the representative ones.
        left_out: Passes of the preparation that changed results, and were left out.
        random: Outputs that differ from run to run, and are not compared.
    """

    model: str = ""
    evaluator: str | None = None
    reason: str | None = None
    probes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    random: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Numerics:
    """The correctness of the returned plan.

    Attributes:
        ok: True if it is within the tolerance; None if nothing was checked.
        max_abs_error: Largest absolute difference from the reference.
        max_rel_error: The same, relative to the output's size.
        tolerance: Largest ``max_rel_error`` that counts as right in any case.
        noise: Error of right float arithmetic itself on this model, relative to the output's size; None if it is not known.
        reference: The origin of the reference outputs.
        unsettled: Share of elements that only the noise makes right, by output.
        nan: Share of elements that are NaN in the model itself, by output.
        other_lengths: Shapes of inputs that were checked besides; None if all lengths are fixed.
    """

    ok: bool | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    tolerance: float | None = None
    noise: float | None = None
    reference: ReferenceFacts = ReferenceFacts()
    unsettled: Mapping[str, float] = field(default_factory=dict)
    nan: Mapping[str, float] = field(default_factory=dict)
    other_lengths: tuple[Mapping[str, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class ReportValues:
    """The fields of a report.

    Attributes:
        model: The origin of the model.
        menu: The targets, preferred ones first.
        winner: Name of the returned row.
        rows: All rows of the comparison, the fastest first and those without a time last.
        overruled: Name of the row that was chosen before the reporting phase, if that phase contradicted the choice.
        kernels: Kernels of the returned plan, in the order in which they run.
        estimate_us: Predicted time of the returned plan.
        additive_error: Share of the returned plan's time by which its kernels do not add up to it.
        search: The work of the search.
        numerics: The correctness of the returned plan.
        warnings: Sentences for the user.
        dims: Representative lengths of symbolic dimensions.
        occasions: Shapes that everything was timed on.
        devices: The plan of devices, if there is one.
        machine: The machine and the versions.
        precision: Section of the accuracy budget.
        tried: Section of the candidates that were tried.
        front: Section of the front of time against error.
        objective: Section of the objective, by its ``name``, and of the limits; empty in reports from before there were any.
        specialised: The plans for sets of lengths that were tried; empty unless ``specialise`` was asked for.
        date: Day of the compilation in UTC, as ``2026-11-27``; empty if it is not known.
        command: The command that repeats the compilation, without folders and the timing database; empty if it is not known.
        schema: Version of the report.
    """

    model: ModelFacts = ModelFacts()
    menu: tuple[str, ...] = ()
    winner: str = ""
    rows: tuple[Row, ...] = ()
    overruled: str | None = None
    kernels: tuple[KernelRow, ...] = ()
    estimate_us: float | None = None
    additive_error: float | None = None
    search: SearchFacts = SearchFacts()
    numerics: Numerics = Numerics()
    warnings: tuple[str, ...] = ()
    dims: Mapping[str, Any] = field(default_factory=dict)
    occasions: tuple[Occasion, ...] = ()
    devices: Mapping[str, Any] | None = None
    machine: Machine = Machine()
    precision: Mapping[str, Any] = field(default_factory=dict)
    tried: Mapping[str, Any] = field(default_factory=dict)
    front: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=dict)
    specialised: tuple[SpecialisedRow, ...] = ()
    date: str = ""
    command: str = ""
    schema: int = SCHEMA

    @property
    def returned(self) -> Row | None:
        """The returned row; None if nothing was compared."""
        return self.row(self.winner)

    def row(self, name: str) -> Row | None:
        """Return the row of a name; None if there is none."""
        return next((row for row in self.rows if row.name == name), None)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The speed-ups over the baseline, the best single of the model's own precision, and the best of the menu.

        A gain is left out if its row has no ratio, or is the row of the gain before it.
        """
        return tuple(self._gains())

    def _gains(self) -> Iterator[Gain]:
        singles = [row for row in self.rows if row.kind == "single" and row.ratio is not None]
        own = [row for row in singles if row.precision is None]
        told = None
        for row in self.rows:
            if row.kind == "baseline" and row.ratio is not None:
                yield Gain("baseline", row.name, row.ratio)
        if own:
            told = min(own, key=_ratio_of)
            yield Gain("best_single", told.name, _known(told))
        if singles and (best := min(singles, key=_ratio_of)) is not told:
            yield Gain("best_of_menu", best.name, _known(best))

    def gain(self, over: Literal["baseline", "best_single", "best_of_menu"]) -> Gain | None:
        """Return the speed-up over one of the three; None if it is not known.

        If the best of the menu is the best single of the model's own precision, both are the same row.
        """
        found = {gain.over: gain for gain in self.gains}
        if over == "best_of_menu":
            return found.get("best_of_menu") or found.get("best_single")
        return found.get(over)


def _known(row: Row) -> Ratio:
    assert row.ratio is not None
    return row.ratio


def _ratio_of(row: Row) -> float:
    return _known(row).value
