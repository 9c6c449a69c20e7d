"""The reference run: every intermediate value of the model, once, on real inputs (design section 7).

Kernels are then measured on what they will really be given (indices in range, masks that mask), and checked against what
they should return. Where dimensions are symbolic, they are measured at all lengths that the user calls representative, and
checked at others too: one that has taken the length that it met first for a constant is right on that one only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import NothingCanRun, ToolchainError, WorkerDied
from collage.cost.database import Database
from collage.cost.decisions import followers
from collage.cost.numerics import compare, tolerance_of
from collage.cost.sense import senseless_elements
from collage.cost.unsettled import capture_unsettled
from collage.cost.values import ValueStore
from collage.cost.workshop import Workshop
from collage.frontend import (
    FLOATS,
    Floats,
    Lengths,
    bind_dims,
    cut,
    make_inputs,
    occasions,
    other_lengths,
    single_lengths,
)
from collage.graph import structural_hash
from collage.target import HOST_TARGET
from collage.transform import is_random

__all__ = ["capture_made_up", "capture_reference", "capture_references", "unrepeatable_values"]

Make = Callable[[Mapping[str, int]], Mapping[str, Any]]
"""Makes inputs up, for lengths by symbol."""

_OTHER_SEED = 3
_HOLES = 0.3
_LARGER = 3
_MOST_BYTES = 512 << 20
"""Values that may be stored anew for lengths that are longer than the user's."""


def capture_references(
    model: ir.Model,
    given: Mapping[str, Any],
    workshop: Workshop,
    database: Database,
    *,
    seed: int,
    dims: Lengths,
) -> str | None:
    """Runs the model on sets of inputs, given or made up, and stores all values: kernels are checked on all sets.

    There is a set for each combination of representative lengths, on all of which kernels are timed too.

    Another set has other values, and one more other lengths, where the model takes them.

    Returns:
        Why that cannot be done, or None.
    """
    if not len(model.graph):
        return "the model has no operators"
    if any(isinstance(value.type, ir.SequenceType | ir.OptionalType) for value in model.graph.inputs):
        return "an input is a sequence or an optional, which cannot be made up"
    first = occasions(dims)[0].dims
    try:
        made = capture_made_up(model, workshop, dims, given, seed=seed)
    except NothingCanRun as error:
        return str(error)
    for values, _ in workshop.occasions:
        _believe(model, values)
    if not set(bind_dims(model, first)) <= set(given):
        others = make_inputs(model, seed + _OTHER_SEED, first, made.floats)
        varied = {name: _varied(value, seed) for name, value in others.items()}
        as_given = {name: made.inputs[name] for name in given}
        _capture_others(model, [{**varied, **as_given}, {**others, **as_given}], workshop)
    _capture_other_lengths(model, made.inputs, workshop, database, partial(_at, model, made.make, given, first))
    return None


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Inputs that a model takes.

    Attributes:
        make: Makes them for other lengths, by symbol.
        inputs: Those on the most frequent occasion, the given ones among them.
        floats: What made-up floating-point inputs are.
    """

    make: Make
    inputs: Mapping[str, Any]
    floats: Floats


def capture_made_up(
    model: ir.Model,
    workshop: Workshop,
    dims: Lengths,
    given: Mapping[str, Any] = MappingProxyType({}),
    *,
    seed: int = 0,
) -> MadeUp:
    """Runs the model, at all its representative lengths, on inputs that it takes, and of which it makes numbers if it can.

    Made-up inputs may be invalid for a model (an index out of range, an axis given twice), or nothing that it was meant for
    (a logarithm's below zero), so several are tried.

    Raises:
        NothingCanRun: Not even the host can run the model on any of them.
    """
    made_up = set(bind_dims(model, occasions(dims)[0].dims)) - set(given)
    seeds = (seed, seed + 1) if made_up else (seed,)
    makes: list[Make] = [partial(make_inputs, model, number) for number in seeds]
    makes += [partial(_with_zeros, model, seed)] if made_up else []
    for make in makes:
        try:
            found = MadeUp(make, capture_occasions(model, make, workshop, dims, given), FLOATS[0])
            break
        except NothingCanRun as error:
            failure = error
    else:
        raise failure
    least = senseless_elements(model, workshop.values)
    floats = any(value.name in made_up and _is_float(value) for value in model.graph.inputs)
    best, is_stored = found, True
    for kind in FLOATS[1:] if floats else ():
        if not least:
            break
        make, is_stored = partial(make_inputs, model, seed, floats=kind), False
        try:
            inputs = capture_occasions(model, make, workshop, dims, given)
        except NothingCanRun:
            continue
        if (senseless := senseless_elements(model, workshop.values)) < least:
            best, least, is_stored = MadeUp(make, inputs, kind), senseless, True
    if not is_stored:
        capture_occasions(model, best.make, workshop, dims, given)
    return best


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def capture_occasions(
    model: ir.Model,
    make: Make,
    workshop: Workshop,
    dims: Lengths,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """Runs the model at all its representative lengths; the workshop will time kernels at each of them.

    Args:
        model: A prepared model.
        make: Makes inputs up, for lengths by symbol.
        workshop: Runs it in a worker process.
        dims: Representative lengths.
        given: Inputs by name that are not made up. Where there are several lengths, they are cut to each.

    Returns:
        The inputs on the most frequent occasion.

    Raises:
        NothingCanRun: Not even the host can run the model.
    """
    first, *more = occasions(dims)
    inputs = _at(model, make, given, first.dims) if more else {**make(first.dims), **given}
    capture_reference(model, inputs, workshop)
    workshop.occasions = [(workshop.values, first.weight)]
    for number, occasion in enumerate(more, 1):
        values = ValueStore(workshop.values.folder.with_name(f"values_{number}"))
        try:
            capture_reference(model, _at(model, make, given, occasion.dims), workshop, values)
        except NothingCanRun as error:
            lengths = ", ".join(f"{name}={length}" for name, length in occasion.dims.items())
            raise NothingCanRun(f"at {lengths}: {error}") from error
        workshop.occasions.append((values, occasion.weight))
    return inputs


def _believe(model: ir.Model, values: ValueStore) -> None:
    """Forgets lengths that the model claims and its values do not have: who counts on them would fail, or be wrong."""
    for value in (value for node in model.graph for value in node.outputs):
        if value.shape is None or value.name not in values:
            continue
        found = values.shape(str(value.name))
        if len(found) != len(value.shape):
            value.shape = None
        elif any(
            isinstance(claimed, int) and claimed != length for claimed, length in zip(value.shape, found, strict=True)
        ):
            value.shape = ir.Shape(
                None if isinstance(claimed, int) and claimed != length else claimed
                for claimed, length in zip(value.shape, found, strict=True)
            )


def _with_zeros(model: ir.Model, seed: int, dims: Mapping[str, int]) -> dict[str, Any]:
    """Made-up inputs whose integers are all 0, which is an index in anything that has elements."""
    made = make_inputs(model, seed, dims)
    return {name: np.zeros_like(value) if value.dtype.kind in "iu" else value for name, value in made.items()}


def _capture_others(model: ir.Model, candidates: Iterable[Mapping[str, Any]], workshop: Workshop) -> None:
    """A second set of inputs to check kernels on; where the model refuses all, or makes less sense of them, one has to do."""
    most = senseless_elements(model, workshop.values)
    folder = workshop.values.folder.with_name("other_values")
    for inputs in candidates:
        values = ValueStore(folder)
        try:
            capture_reference(model, inputs, workshop, values)
            if senseless_elements(model, values) <= most:
                workshop.other_folders.append(folder)
                return
        except NothingCanRun:
            pass
        shutil.rmtree(folder)


def _capture_other_lengths(
    model: ir.Model,
    inputs: Mapping[str, Any],
    workshop: Workshop,
    database: Database,
    at: Make,
) -> None:
    """Sets of inputs of other lengths, where dimensions are symbolic: one of several, and one where all are 1.

    Many models promise more than they keep: a batch of any size, say, that a constant shape inside takes for 1. Lengths
    at which the model fails, or at which a value has another shape than it is said to have, are of no use. Nor are those
    at which its answer is nothing but rounding, as where a mean over one element is taken from that element.
    """
    longer = sum(workshop.values.get(name).nbytes for name in workshop.values) <= _MOST_BYTES
    single = single_lengths(model, inputs)

    def takes(lengths: Mapping[str, int], values: ValueStore, was_taken: bool) -> bool:
        capture_reference(model, made := at(lengths), workshop, values)
        if not _as_declared(model, values):
            return False
        return was_taken or lengths != single or _is_settled(model, made, workshop, values)

    groups = [("other_lengths", [*other_lengths(model, inputs, longer=longer)])]
    groups += [("single_lengths", [single])] if single else []
    for name, candidates in groups:
        try:
            folder = _first_taken(name, candidates, takes, model, workshop, database)
        except NothingCanRun:
            return  # It died. The host is needed for other things, and is not to be quarantined for this.
        if folder is not None:
            workshop.length_folders.append(folder)


def _first_taken(
    name: str,
    candidates: list[dict[str, int]],
    takes: Callable[[Mapping[str, int], ValueStore, bool], bool],
    model: ir.Model,
    workshop: Workshop,
    database: Database,
) -> Path | None:
    """The folder of all values at the first lengths that a model takes.

    Which ones these are is kept, since finding out takes up to five runs of the model.

    Raises:
        NothingCanRun: The process that runs the model has died of it.
    """
    fact = {
        "fact": "lengths-1",
        "model": structural_hash(model),
        "tried": candidates,
        "host": workshop.build_of(HOST_TARGET),
    }
    known = database.local_fact(**fact)
    if known is not None:
        # Those first; all others stay for the case that it no longer does.
        candidates = sorted(candidates, key=lambda lengths: lengths != known["taken"]) if known["taken"] else []
    for number, lengths in enumerate(candidates):
        values = ValueStore(workshop.values.folder.with_name(f"{name}_{number}"))
        was_taken = known is not None and known["taken"] == lengths
        try:
            is_taken = takes(lengths, values, was_taken)
        except NothingCanRun as error:
            if isinstance(error.__cause__, WorkerDied):
                raise
            continue
        if is_taken:
            if not was_taken:
                database.keep_local_fact({"taken": lengths}, **fact)
            return values.folder
    if candidates and known is None:
        database.keep_local_fact({"taken": None}, **fact)
    return None


def _is_settled(model: ir.Model, inputs: Mapping[str, Any], workshop: Workshop, values: ValueStore) -> bool:
    """Whether all values stay what they are, within tolerance, where the last digits of the inputs change."""
    random = np.random.default_rng(_OTHER_SEED)
    nudged = ValueStore(values.folder.with_name(f"{values.folder.name}_nudged"))
    capture_reference(model, {name: _nudged(value, random) for name, value in inputs.items()}, workshop, nudged)
    pairs = ((nudged.get(name), values.get(name)) for name in values)
    return all(compare(new, old, tolerance_of([old.dtype.name])).ok for new, old in pairs)


def _nudged(value: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    if value.dtype.kind != "f":
        return value
    return np.asarray(np.nextafter(value, random.choice([-np.inf, np.inf], value.shape).astype(value.dtype)))


def _at(
    model: ir.Model,
    make: Make,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    lengths: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Inputs of these lengths: made up again, or cut from those that are given."""
    dims = {**dims, **lengths}
    shapes = bind_dims(model, dims)
    return {**make(dims), **{name: cut(value, shapes.get(name, np.shape(value))) for name, value in given.items()}}


def _as_declared(model: ir.Model, values: ValueStore) -> bool:
    """Whether all values have the shapes that the model says they have, with one length for each symbol."""
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


def _varied(value: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """A made-up input made harder: a mask of ones or of truths gets holes, others get larger or repeat."""
    random = np.random.default_rng(seed)
    if value.dtype.kind in "biuf" and value.size > 1 and (value == 1).all():
        holes = random.random(value.shape) < _HOLES
        holes.reshape(-1)[0] = False  # Something must be left to attend to.
        return np.where(holes, 0, value).astype(value.dtype)
    if value.dtype.kind == "f":
        return np.round(value * _LARGER, 1).astype(value.dtype)
    return (value % _LARGER).astype(value.dtype) if value.dtype.kind in "iu" else value


def capture_reference(
    model: ir.Model, inputs: Mapping[str, Any], workshop: Workshop, values: ValueStore | None = None
) -> None:
    """Runs the model on the host, unoptimised, and stores all inputs and values, and which elements hang on rounding.

    Args:
        model: A prepared model.
        inputs: One value per graph input, by name.
        workshop: Runs it in a worker process.
        values: Where to store them; the workshop's own store by default.

    Raises:
        NothingCanRun: Not even the host can run the model.
    """
    store = workshop.values if values is None else values
    for name, value in inputs.items():
        store.put(name, value)
    store.flush()
    try:
        workshop.capture(_with_all_outputs(model), HOST_TARGET, store)
    except ToolchainError as error:
        raise NothingCanRun(
            f"the model cannot be run at all, not even operator by operator on the host: {error}"
        ) from error
    capture_unsettled(model, workshop, store)


def unrepeatable_values(model: ir.Model) -> frozenset[str]:
    """Names of values that depend on a random operator, and so differ from run to run."""
    return followers(model.graph, (value for node in model.graph if is_random(node) for value in node.outputs))


def _with_all_outputs(model: ir.Model) -> ir.Model:
    """A copy whose outputs are all values of its main graph. With every value wanted, nothing can be fused away."""
    copy = model.clone()
    copy.graph.name = "collage_reference"
    known = set(copy.graph.outputs)
    for node in copy.graph:
        for value in node.outputs:
            if value.name and value not in known and not isinstance(value.type, ir.SequenceType | ir.OptionalType):
                copy.graph.outputs.append(value)
    return copy
