"""The sets of inputs that kernels and executables are checked on, each with the values that are right there.

Kernels are timed on the first set. Others have other values, other lengths where dimensions are symbolic, and probing
values. On each, the prepared model's values are compared with those of the original model, whose outputs become the reference.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import NothingCanRun, ToolchainError, WorkerDied
from collage.database import Database, FactKind
from collage.frontend import (
    PROBES,
    Lengths,
    Probe,
    bind_dims,
    describe_inputs,
    free_dimensions,
    make_inputs,
    other_lengths,
    probe_inputs,
    shape_profiles,
    single_lengths,
)
from collage.graph import structural_hash
from collage.measure.guessed_lengths import capture_at_some_lengths
from collage.measure.original_model import Mismatch, OriginalModel
from collage.measure.pool_windows import windows_fit
from collage.measure.reference_run import (
    MadeUp,
    Make,
    UntakenInputs,
    believe_values,
    capture_reference,
    forget_mere_claims,
    inputs_at,
)
from collage.measure.session import MeasureSession
from collage.numerics.nan_check import nonfinite_elements
from collage.numerics.value_store import HARDER, ValueStore, probe_folder
from collage.system.codec import Count
from collage.target import HOST_TARGET

__all__ = ["CheckingSets", "agrees_with_original", "capture_checking_sets"]


@dataclass(frozen=True, slots=True)
class _Lengths:
    """The lengths that a model takes beside the usual ones; None if it takes none of those that were tried."""

    taken: Mapping[str, Count] | None


_LENGTHS: FactKind[_Lengths] = FactKind("lengths", _Lengths)
_OTHER_SEED = 3
_HOLES = 0.3
_LARGER = 3
_MOST_BYTES = 512 << 20
"""Most bytes of values that are stored for further sets of inputs."""
_NAN, _EXACT_NAN = "nan", "exact nan"
# A tenth leaves rows that are whole in most tables, so that both kinds of rows are compared.
_MISSING = 0.1
_MOST_PROBING_S = 10.0
"""Seconds after which no further kind of probing inputs is tried."""


@dataclass(frozen=True, slots=True)
class CheckingSets:
    """The result of running a model for reference.

    Attributes:
        failure: The reason why it cannot be run; None if it can.
        mismatches: Values in which the prepared model differs from the original. No further set is tried after the
            first one that shows any.
        mismatched_on: The store with the inputs that showed them.
        probes: Kinds of probing inputs that the model takes.
        lacks_inputs: It cannot be run because it fails on inputs that were made up; given ones may do.
        notes: Notes for the user about inputs that were made up.
        made: Inputs that the model takes, with the function that makes more of their kind; None if it could not be run.
        dims: Representative lengths, among them those that were guessed since the model failed at the usual ones.
    """

    failure: str | None = None
    mismatches: tuple[Mismatch, ...] = ()
    mismatched_on: ValueStore | None = None
    probes: tuple[str, ...] = ()
    lacks_inputs: bool = False
    notes: tuple[str, ...] = ()
    made: MadeUp | None = None
    dims: Lengths = field(default_factory=dict)


class _Differs(Exception):
    """The prepared model computes something else than the original."""

    def __init__(self, mismatches: list[Mismatch], values: ValueStore) -> None:
        super().__init__("; ".join(map(str, mismatches)))
        self.mismatches, self.values = mismatches, values


class _Judge:
    """Compares reference runs of a prepared model with the original model, if that can be run.

    Args:
        model: The prepared model.
        original: The original model, or None.
        tolerance: Largest difference.
        in_between: Compare all values whose names survived, not only outputs.
    """

    def __init__(self, model: ir.Model, original: OriginalModel | None, tolerance: float, in_between: bool) -> None:
        self._original = original
        self._tolerance = tolerance
        values = (value for node in model.graph for value in node.outputs) if in_between else ()
        self._names = [str(value.name) for value in values if value.name]
        self.not_finite = 0

    @property
    def original(self) -> OriginalModel | None:
        """The original model if it can be run."""
        return self._original if self._original is not None and self._original.failure is None else None

    def first(self, values: ValueStore) -> None:
        """Compare the run on the first inputs; if the original cannot be run on these, it is not run again."""
        if (original := self.original) is None:
            return
        try:
            self.not_finite = original.run(values, self._names)
        except ToolchainError as error:
            original.failure = str(error)
            return
        self._settle(original, values, "the first inputs")

    def run(self, values: ValueStore) -> bool | None:
        """Run the original on stored inputs; False if it does not take them, or makes fewer numbers of them.

        None if an accident hides it.
        """
        if (original := self.original) is None:
            return True
        try:
            return original.run(values, self._names) <= self.not_finite
        except ToolchainError as error:
            return None if error.is_accident else False

    def settle(self, values: ValueStore, label: str) -> None:
        """Compare the prepared model's values with the original's latest run.

        Raises:
            _Differs: They differ.
        """
        if (original := self.original) is not None:
            self._settle(original, values, label)

    def _settle(self, original: OriginalModel, values: ValueStore, label: str) -> None:
        try:
            mismatches = original.settle(values, self._names, self._tolerance, label)
        except ToolchainError as error:
            original.failure = str(error)
            return
        if mismatches:
            raise _Differs(mismatches, values)


def capture_checking_sets(
    model: ir.Model,
    given: Mapping[str, Any],
    measure_session: MeasureSession,
    database: Database,
    *,
    seed: int,
    dims: Lengths,
    tolerance: float = 0.0,
    original: OriginalModel | None = None,
    in_between: bool = True,
    keeps_nan: bool = False,
) -> CheckingSets:
    """Run a model on sets of inputs, given or made up, and store all values: kernels are checked on all sets.

    There is a set for each combination of representative lengths, on all of which kernels are timed too. Another set has other
    values, more have other lengths, and more have probing values, where the model takes them.

    Args:
        model: A prepared model.
        given: Inputs that are not made up.
        measure_session: Runs the prepared model, and keeps the folders of the values.
        database: Remembers which other lengths the model takes.
        seed: Seed of made-up inputs.
        dims: Representative lengths.
        tolerance: The tolerance.
        original: The original model; None if the prepared one is all that there is.
        in_between: Compare all values whose names survived the preparation, not only outputs.
        keeps_nan: NaN among the inputs has to come out as in the original. Otherwise it is told where it does not.
    """
    if not len(model.graph):
        return CheckingSets("the model has no operators")
    against = _Judge(model, original, tolerance, in_between)
    try:
        made, lengths = capture_at_some_lengths(model, measure_session, dims, given, seed=seed)
        first = shape_profiles(lengths)[0].dims
        for values, _ in measure_session.occasions:
            believe_values(model, values)
            against.first(values)
        if not set(bind_dims(model, first)) <= set(given):
            others = make_inputs(model, seed + _OTHER_SEED, first, made.floats, made.rank)
            varied = {name: _varied(value, seed) for name, value in others.items()}
            as_given = {name: made.inputs[name] for name in given}
            _capture_others(model, [{**varied, **as_given}, {**others, **as_given}], measure_session, against)
        at = partial(inputs_at, model, made.make, given, first)
        _capture_other_lengths(model, made.inputs, measure_session, database, at, against)
        probes = _capture_probes(model, made.inputs, given, measure_session, against, seed)
        probes += _capture_nan(model, made.inputs, measure_session, against, seed, is_exact=keeps_nan)
    except NothingCanRun as error:
        return CheckingSets(str(error), lacks_inputs=isinstance(error, UntakenInputs))
    except _Differs as found:
        return CheckingSets(None, tuple(found.mismatches), found.values)
    guessed = {name: length for name, length in lengths.items() if name not in dims}
    notes = (*_guesses(model, made.inputs, given), *_guessed_lengths(model, guessed))
    return CheckingSets(probes=probes, notes=notes, made=made, dims=lengths)


def _guessed_lengths(model: ir.Model, guessed: Mapping[str, Any]) -> tuple[str, ...]:
    usual = free_dimensions(model, (), ())
    return tuple(
        f"the model fails where dimension {name!r} is {usual[name]}; everything was measured at the guess {length}, and "
        f"--dim '{name}=LENGTH' gives a real one"
        for name, length in guessed.items()
    )


def _guesses(model: ir.Model, inputs: Mapping[str, Any], given: Collection[str]) -> tuple[str, ...]:
    return tuple(
        f"the file does not say the rank of input {spec.name!r}; everything was measured at the guess "
        f"{list(np.shape(inputs[spec.name]))}, and --input {spec.name}=FILE.npy gives a real shape"
        for spec in describe_inputs(model)
        if spec.shape is None and spec.default is None and spec.name not in given and spec.kind is None
    )


def agrees_with_original(
    model: ir.Model, shown_on: ValueStore, measure_session: MeasureSession, original: OriginalModel, tolerance: float
) -> bool:
    """Return True if another preparation of a model has the results of the original.

    Args:
        model: The other preparation, its weights in the session's workspace.
        shown_on: Holds the inputs on which an earlier preparation did not.
        measure_session: Runs it.
        original: The original model.
        tolerance: The tolerance.
    """
    values = ValueStore(shown_on.folder.with_name(f"again_{shown_on.folder.name}"))
    names = [str(value.name) for value in model.graph.inputs if shown_on.holds_input(str(value.name))]
    inputs = {name: shown_on.input(name) for name in names}
    against = _Judge(model, original, tolerance, in_between=True)
    try:
        capture_reference(model, inputs, measure_session, values)
        against.first(values)
    except (NothingCanRun, ToolchainError, _Differs):
        return False
    finally:
        shutil.rmtree(values.folder, ignore_errors=True)
    return True


def _capture_probes(
    model: ir.Model,
    inputs: Mapping[str, Any],
    given: Mapping[str, Any],
    measure_session: MeasureSession,
    against: _Judge,
    seed: int,
) -> tuple[str, ...]:
    """Capture the sets of probing inputs that the model takes; the kinds of these.

    The original is asked first, in a process of its own: probing inputs may be too much for it.
    """
    fixed = {*given, *(spec.name for spec in describe_inputs(model) if spec.default is not None)}
    is_large = sum(measure_session.values.nbytes(name) for name in measure_session.values) > _MOST_BYTES
    taken: list[str] = []
    started = time.monotonic()
    for kind in PROBES[:1] if is_large else PROBES:
        probing = probe_inputs(model, kind, inputs, fixed, seed)
        if probing is None or time.monotonic() - started > _MOST_PROBING_S:
            continue
        values = ValueStore(probe_folder(measure_session.values, kind))
        for name, array in probing.items():
            values.put_input(name, array)
        values.flush()
        is_taken = False
        if against.run(values):
            capture = _capture_outputs if is_large else _capture_probe
            is_taken = capture(model, probing, kind, measure_session, against, values)
        if is_taken:
            measure_session.other_folders.append(values.folder)
            taken.append(kind)
        else:
            shutil.rmtree(values.folder)
    return tuple(taken)


def _capture_nan(
    model: ir.Model,
    inputs: Mapping[str, Any],
    measure_session: MeasureSession,
    against: _Judge,
    seed: int,
    *,
    is_exact: bool,
) -> tuple[str, ...]:
    """Capture a set of inputs some of whose floats are NaN, as missing values in tables are."""
    random = np.random.default_rng((seed, 99))
    made = {name: _with_nan(value, random) for name, value in inputs.items()}
    is_large = sum(measure_session.values.nbytes(name) for name in measure_session.values) > _MOST_BYTES
    if is_large or all(made[name] is value for name, value in inputs.items()):
        return ()
    values = ValueStore(probe_folder(measure_session.values, _EXACT_NAN if is_exact else _NAN))
    try:
        capture_reference(model, made, measure_session, values)
        if is_exact and against.original is not None:
            against.original.run(values)
            against.settle(values, _NAN)
    except (NothingCanRun, ToolchainError):
        shutil.rmtree(values.folder, ignore_errors=True)
        return ()
    measure_session.other_folders.append(values.folder)
    return (_NAN,) if is_exact else ()


def _with_nan(value: Any, random: np.random.Generator) -> Any:
    """Return an input a tenth of whose floats, and at least one, is NaN."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    missing = np.asarray(random.random(value.shape) < _MISSING)
    missing.reshape(-1)[random.integers(value.size)] = True
    return np.where(missing, np.nan, value).astype(value.dtype)


def _capture_probe(
    model: ir.Model,
    inputs: Mapping[str, Any],
    kind: Probe,
    measure_session: MeasureSession,
    against: _Judge,
    values: ValueStore,
) -> bool:
    try:
        capture_reference(model, inputs, measure_session, values)
    except (NothingCanRun, ToolchainError):
        return False
    against.settle(values, kind)
    return nonfinite_elements(model, values) <= nonfinite_elements(model, measure_session.values)


def _capture_outputs(
    model: ir.Model,
    inputs: Mapping[str, Any],
    kind: Probe,
    measure_session: MeasureSession,
    against: _Judge,
    values: ValueStore,
) -> bool:
    """Store only the outputs of the original."""
    if against.original is None:
        return False
    against.original.keep_outputs(values)
    return True


def _capture_others(
    model: ir.Model, candidates: Iterable[Mapping[str, Any]], measure_session: MeasureSession, against: _Judge
) -> None:
    """A second set of inputs to check kernels on; where the model refuses all, or makes less sense of them, one has to do."""
    most = nonfinite_elements(model, measure_session.values)
    folder = measure_session.values.folder.with_name(HARDER)
    for inputs in candidates:
        values = ValueStore(folder)
        try:
            capture_reference(model, inputs, measure_session, values)
            is_taken = against.run(values)
            if is_taken:
                against.settle(values, "other inputs")
            if is_taken and nonfinite_elements(model, values) <= most:
                measure_session.other_folders.append(folder)
                return
        except NothingCanRun:
            pass
        shutil.rmtree(folder)


def _capture_other_lengths(
    model: ir.Model,
    inputs: Mapping[str, Any],
    measure_session: MeasureSession,
    database: Database,
    at: Make,
    against: _Judge,
) -> None:
    """Sets of inputs of other lengths, where dimensions are symbolic: one of several, and one where all are 1.

    Many models promise more than they keep: a batch of any size, say, that a constant shape inside takes for 1. Lengths
    at which the model fails, or at which a value has another shape than it is said to have, are of no use. Nor are those at
    which a window of a pool is larger than the picture.
    """
    longer = sum(measure_session.values.get(name).nbytes for name in measure_session.values) <= _MOST_BYTES
    single = single_lengths(model, inputs)

    def takes(lengths: Mapping[str, int], values: ValueStore) -> bool | None:
        capture_reference(model, at(lengths), measure_session, values)
        if not windows_fit(model, values):
            return False
        if not _as_declared(model, values):
            forget_mere_claims(model, values)
            if not _as_declared(model, values):
                return False
        if not (is_taken := against.run(values)):
            return is_taken
        against.settle(values, "other lengths")
        return True

    groups = [("other_lengths", [*other_lengths(model, inputs, longer=longer)])]
    groups += [("single_lengths", [single])] if single else []
    for name, candidates in groups:
        try:
            folder = _first_taken(name, candidates, takes, model, measure_session, database)
        except NothingCanRun:
            return  # It died. The host is needed for other things, and is not to be quarantined for this.
        if folder is not None:
            measure_session.length_folders.append(folder)


def _first_taken(
    name: str,
    candidates: list[dict[str, int]],
    takes: Callable[[Mapping[str, int], ValueStore], bool | None],
    model: ir.Model,
    measure_session: MeasureSession,
    database: Database,
) -> Path | None:
    """The folder of all values at the first lengths that a model takes.

    The lengths found are kept, since finding them takes up to five runs of the model. That there are none is kept unless
    an accident hides it.

    Raises:
        NothingCanRun: The process that runs the model has died of it.
    """
    fact = {
        "model": structural_hash(model),
        "tried": candidates,
        "host": measure_session.build_of(HOST_TARGET),
    }
    known = database.local_fact(_LENGTHS, **fact)
    if known is not None:
        # Those first; all others stay for the case that it no longer does.
        candidates = sorted(candidates, key=lambda lengths: lengths != known.taken) if known.taken else []
    is_sure = True
    for number, lengths in enumerate(candidates):
        values = ValueStore(measure_session.values.folder.with_name(f"{name}_{number}"))
        was_taken = known is not None and known.taken == lengths
        try:
            is_taken = takes(lengths, values)
        except NothingCanRun as error:
            if isinstance(error.__cause__, WorkerDied):
                raise
            continue
        is_sure &= is_taken is not None
        if is_taken:
            if not was_taken:
                database.keep_local_fact(_LENGTHS, _Lengths(lengths), **fact)
            return values.folder
    if candidates and known is None and is_sure:
        database.keep_local_fact(_LENGTHS, _Lengths(None), **fact)
    return None


def _as_declared(model: ir.Model, values: ValueStore) -> bool:
    """Return True if all values have the shapes that the model states, with one length for each symbol."""
    lengths: dict[str, int] = {}
    known = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in known:
        if value.shape is None or value.name not in values:
            continue
        shape = values.shape(str(value.name))
        if len(shape) != len(value.shape):
            return False
        for said, length in zip(value.shape, shape, strict=True):
            name = said if isinstance(said, int) else said.value
            if length != (name if isinstance(name, int) else lengths.setdefault(str(name), length) if name else length):
                return False
    return True


def _varied(value: Any, seed: int) -> Any:
    """A made-up input made harder: a mask of ones or of truths gets holes, others get larger or repeat."""
    if isinstance(value, list):
        return [_varied(item, seed) for item in value]
    random = np.random.default_rng(seed)
    if value.dtype.kind in "biuf" and value.size > 1 and (value == 1).all():
        holes = random.random(value.shape) < _HOLES
        holes.reshape(-1)[0] = False  # Something must be left to attend to.
        return np.where(holes, 0, value).astype(value.dtype)
    if value.dtype.kind == "f":
        return np.round(value * _LARGER, 1).astype(value.dtype)
    return (value % _LARGER).astype(value.dtype) if value.dtype.kind in "iu" else value
