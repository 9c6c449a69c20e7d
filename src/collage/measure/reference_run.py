"""The reference run: every intermediate value of the model, once, on real inputs.

Kernels are then measured on realistic inputs (indices in range, masks that mask), and checked against the reference
outputs. If dimensions are symbolic, they are measured at all lengths that the user calls representative, and
checked at others too: one that has taken the length that it met first for a constant is right on that one only.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import ModelError, NothingCanRun, ToolchainError
from collage.frontend import (
    FLOATS,
    RANKS,
    Floats,
    Lengths,
    TensorSpec,
    bind_dims,
    cut,
    describe_inputs,
    forget_claims,
    free_dimensions,
    infer_shapes,
    inferable,
    make_inputs,
    shape_profiles,
    skeleton,
)
from collage.graph import used_values
from collage.measure.session import MeasureSession
from collage.numerics.nan_check import nonfinite_elements
from collage.numerics.value_store import ValueStore
from collage.target import HOST_TARGET
from collage.transform import is_random

__all__ = [
    "MadeUp",
    "Make",
    "UntakenInputs",
    "believe_values",
    "capture_made_up",
    "capture_reference",
    "capture_shape_profiles",
    "forget_mere_claims",
    "how_to_give",
    "inputs_at",
    "unrepeatable_values",
    "with_all_outputs",
]

Make = Callable[[Mapping[str, int]], Mapping[str, Any]]
"""Makes inputs up, for lengths by symbol."""


_MOST_SHOWN = 4


class UntakenInputs(NothingCanRun):
    """The model fails on all inputs that were made up for it, and may well take others."""


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Inputs that a model takes.

    Attributes:
        make: Makes them for other lengths, by symbol.
        inputs: Inputs of the most frequent shape profile, including the given ones.
        floats: Kind of made-up floating-point inputs.
        rank: Rank of made-up inputs whose rank the model does not state; None makes them scalars.
    """

    make: Make
    inputs: Mapping[str, Any]
    floats: Floats
    rank: int | None = None

    def reseeded(self, seed: int) -> Make:
        """Return the function that makes other inputs of the same distribution."""
        assert isinstance(self.make, partial)
        model, _ = self.make.args
        return partial(self.make.func, model, seed, **self.make.keywords)


def capture_made_up(
    model: ir.Model,
    measure_session: MeasureSession,
    dims: Lengths,
    given: Mapping[str, Any] = MappingProxyType({}),
    *,
    seed: int = 0,
) -> MadeUp:
    """Run the model, at all its representative lengths, on inputs that it takes and that give finite outputs if possible.

    Made-up inputs may be invalid for a model (an index out of range, an axis given twice), or nothing that it was meant for
    (a logarithm's below zero), so several are tried.

    Raises:
        UntakenInputs: Not even the host can run the model on any of them.
        NothingCanRun: It cannot run the model on the given inputs, which are all.
    """
    made_up = set(bind_dims(model, shape_profiles(dims)[0].dims)) - set(given)
    seeds = (seed, seed + 1) if made_up else (seed,)
    makes: list[partial[dict[str, Any]]] = [partial(make_inputs, model, number) for number in seeds]
    makes += [partial(_with_zeros, model, seed)] if made_up else []
    if any(_is_float(value) for value in model.graph.inputs if value.name in made_up):
        # Thresholds, probabilities and scales are often refused beyond these.
        makes.append(partial(make_inputs, model, seed, floats="fractions"))
    if any(spec.shape is None and spec.name in made_up for spec in describe_inputs(model)):
        makes += [partial(make_inputs, model, seed, rank=rank) for rank in RANKS]
    for make in makes:
        try:
            inputs = capture_shape_profiles(model, make, measure_session, dims, given)
            rank = make.keywords.get("rank")
            found = MadeUp(make, inputs, make.keywords.get("floats", FLOATS[0]), rank)
            break
        except NothingCanRun as error:
            failure = error
    else:
        raise UntakenInputs(_untaken(model, made_up, failure)) if made_up else failure
    least = nonfinite_elements(model, measure_session.values)
    floats = any(value.name in made_up and _is_float(value) for value in model.graph.inputs)
    best, is_stored = found, True
    for kind in FLOATS[1:] if floats else ():
        if not least:
            break
        make, is_stored = partial(make_inputs, model, seed, floats=kind, rank=rank), False
        try:
            inputs = capture_shape_profiles(model, make, measure_session, dims, given)
        except NothingCanRun:
            continue
        if (senseless := nonfinite_elements(model, measure_session.values)) < least:
            best, least, is_stored = MadeUp(make, inputs, kind, rank), senseless, True
    if not is_stored:
        capture_shape_profiles(model, best.make, measure_session, dims, given)
    return best


def _untaken(model: ir.Model, made_up: Collection[str], failure: NothingCanRun) -> str:
    """Return a sentence that names the made-up inputs that failed, with advice for the user."""
    specs = [spec for spec in describe_inputs(model) if spec.name in made_up]
    shapes = bind_dims(model, {})
    shown = ", ".join(repr(spec.name) for spec in specs[:_MOST_SHOWN])
    more = "" if len(specs) <= _MOST_SHOWN else f" and {len(specs) - _MOST_SHOWN} more"
    unknown = "".join(
        f"; the rank of {spec.name!r} is not known, and the shape {list(shapes[spec.name])} was a guess"
        for spec in specs[:_MOST_SHOWN]
        if spec.shape is None
    )
    free = free_dimensions(model, (), ())
    lengths = (
        f", or other lengths with {' '.join(f'--dim {shlex.quote(name)}=LENGTH' for name in free)}" if free else ""
    )
    return (
        f"the model does not take the inputs that were made up for it ({shown}{more}){unknown}; give real ones "
        f"{how_to_give(specs)}{lengths}: {failure.__cause__ or failure}"
    )


def how_to_give(specs: Sequence[TensorSpec]) -> str:
    """Return how a user gives real inputs: files hold tensors, and only Python has lists of these."""
    apart = next((spec for spec in specs if spec.kind is not None), None)
    if apart is not None:
        return f"from Python with CompileOptions(inputs={{{apart.name!r}: ...}}), since {apart.kind} is in no .npy file"
    return f"with --input {specs[0].name}=FILE.npy (in Python CompileOptions(inputs=...))"


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def capture_shape_profiles(
    model: ir.Model,
    make: Make,
    measure_session: MeasureSession,
    dims: Lengths,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """Run the model at all its representative lengths; the session will time kernels at each of them.

    Args:
        model: A prepared model.
        make: Makes inputs up, for lengths by symbol.
        measure_session: Runs it in a worker process.
        dims: Representative lengths.
        given: Inputs by name that are not made up. If there are several lengths, they are cut to each.

    Returns:
        The inputs on the most frequent occasion.

    Raises:
        NothingCanRun: Not even the host can run the model.
    """
    first, *more = shape_profiles(dims)
    inputs = inputs_at(model, make, given, first.dims) if more else {**make(first.dims), **given}
    capture_reference(model, inputs, measure_session)
    measure_session.occasions = [(measure_session.values, first.weight)]
    for number, occasion in enumerate(more, 1):
        values = ValueStore(measure_session.values.folder.with_name(f"values_{number}"))
        try:
            capture_reference(model, inputs_at(model, make, given, occasion.dims), measure_session, values)
        except NothingCanRun as error:
            lengths = ", ".join(f"{name}={length}" for name, length in occasion.dims.items())
            raise NothingCanRun(f"at {lengths}: {error}") from error
        measure_session.occasions.append((values, occasion.weight))
    return inputs


def believe_values(model: ir.Model, values: ValueStore) -> None:
    """Forget lengths that the model claims and its values do not have: a toolchain that relies on them fails, or is wrong."""
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


def forget_mere_claims(model: ir.Model, values: ValueStore) -> None:
    """Forget lengths that values do not have at other lengths of inputs, and that nothing but the file says.

    A file whose batch was made symbolic at the input alone claims the old one everywhere. Values that follow from
    operators and weights stay: the model itself does not treat such inputs as special there.
    """
    proto = skeleton(model)
    forget_claims(proto.graph)
    try:
        inferred = ir.from_proto(infer_shapes(inferable(proto)))
    except (RuntimeError, ModelError):
        return
    follows = {value.name: value.shape for node in inferred.graph for value in node.outputs}
    for value in (value for node in model.graph for value in node.outputs):
        if value.shape is None or value.name not in values or len(values.shape(str(value.name))) != len(value.shape):
            continue
        known = follows.get(value.name)
        value.shape = ir.Shape(
            claimed
            if not isinstance(claimed, int) or claimed == length or (known is not None and known[axis] == claimed)
            else None
            for axis, (claimed, length) in enumerate(zip(value.shape, values.shape(str(value.name)), strict=True))
        )


def _with_zeros(model: ir.Model, seed: int, dims: Mapping[str, int]) -> dict[str, Any]:
    """Made-up inputs whose integers are all 0, which is an index in anything that has elements."""
    made = make_inputs(model, seed, dims)
    return {name: np.zeros_like(value) if _is_integer(value) else value for name, value in made.items()}


def _is_integer(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def inputs_at(
    model: ir.Model,
    make: Make,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    lengths: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Inputs of these lengths: made up again, or cut from those that are given."""
    dims = {**dims, **lengths}
    shapes = bind_dims(model, dims)
    return {**make(dims), **{name: cut(value, shapes.get(name)) for name, value in given.items()}}


def capture_reference(
    model: ir.Model,
    inputs: Mapping[str, Any],
    measure_session: MeasureSession,
    values: ValueStore | None = None,
) -> None:
    """Run the model on the host, unoptimised, and store all inputs and values.

    Args:
        model: A prepared model.
        inputs: One value per graph input, by name.
        measure_session: Runs it in a worker process.
        values: The store that takes them; the session's own store by default.

    Raises:
        NothingCanRun: Not even the host can run the model.
    """
    store = measure_session.values if values is None else values
    for name, value in inputs.items():
        store.put_input(name, value)
    store.flush()
    try:
        measure_session.capture(with_all_outputs(model), HOST_TARGET, store)
    except ToolchainError as error:
        raise NothingCanRun(
            f"the model cannot be run at all, not even operator by operator on the host: {error}"
        ) from error
    store.put_unrepeatable(unrepeatable_values(model))
    store.flush()


def unrepeatable_values(model: ir.Model) -> frozenset[str]:
    """Names of values that depend on a random operator, and so differ from run to run."""
    found = {value for node in model.graph if is_random(node) for value in node.outputs}
    for node in model.graph if found else ():
        if not found.isdisjoint(used_values(node)):
            found.update(node.outputs)
    return frozenset(str(value.name) for value in found)


def with_all_outputs(model: ir.Model) -> ir.Model:
    """Return a copy whose outputs are all values of its main graph. If every value is an output, no operator is fused away."""
    copy = model.clone()
    copy.graph.name = "collage_reference"
    known = set(copy.graph.outputs)
    for node in copy.graph:
        for value in node.outputs:
            if value.name and value not in known and not isinstance(value.type, ir.SequenceType | ir.OptionalType):
                copy.graph.outputs.append(value)
    return copy
