"""Lengths for dimensions that the user says nothing of, where a model fails at the usual ones.

A detector of speech takes windows of a few hundred samples, and its file says ``sequence`` or nothing. So lengths are tried.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from collage.frontend import Lengths, describe_inputs, dimension_name, free_dimensions
from collage.measure.reference_run import MadeUp, UntakenInputs, capture_made_up
from collage.measure.session import MeasureSession

__all__ = ["capture_at_some_lengths", "other_guesses"]

_GUESSES = (256, 512, 1024, 64, 16, 4096, 16000, 2)
_MOST_GUESSING_S = 20.0


def capture_at_some_lengths(
    model: ir.Model, measure_session: MeasureSession, dims: Lengths, given: Mapping[str, Any], *, seed: int
) -> tuple[MadeUp, Lengths]:
    """Run a model like ``capture_made_up``, at other lengths of free dimensions too if it fails at the usual ones.

    Args:
        model: A prepared model.
        measure_session: Runs it.
        dims: Representative lengths that the user gave, or that follow from inputs.
        given: Inputs that are not made up.
        seed: Of made-up inputs.

    Returns:
        Inputs that the model takes, and representative lengths with those that were found.

    Raises:
        UntakenInputs: It takes none of the inputs that were made up.
        NothingCanRun: It cannot be run on the given inputs, which are all.
    """
    try:
        return capture_made_up(model, measure_session, dims, given, seed=seed), dims
    except UntakenInputs:
        end = time.monotonic() + _MOST_GUESSING_S
        for guess in other_guesses(model, dims, given):
            if time.monotonic() > end:
                break
            tried = {**dims, **guess}
            try:
                return capture_made_up(model, measure_session, tried, given, seed=seed), tried
            except UntakenInputs:
                continue
        raise


def other_guesses(model: ir.Model, dims: Collection[str], given: Collection[str]) -> Iterator[dict[str, int]]:
    """Yield lengths of free dimensions to try, each time for all of them or for one; batches stay as they are.

    Args:
        model: Any model.
        dims: Names of dimensions whose lengths are known.
        given: Names of inputs that are not made up.
    """
    usual = free_dimensions(model, dims, given)
    leading = {
        dimension_name(spec.name, 0, spec.shape[0])
        for spec in describe_inputs(model)
        if spec.shape and len(spec.shape) > 1
    }
    names = [name for name in usual if name not in leading] or list(usual)
    for length in _GUESSES:
        for chosen in dict.fromkeys([tuple(names), *((name,) for name in names)]):
            guess = {name: length for name in chosen if usual[name] != length}
            if guess:
                yield guess
