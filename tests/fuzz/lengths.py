"""Random models at other lengths: what fuzzers give to toolchains besides.

A random model has fixed shapes, which its operators were drawn for. Many of them take other lengths all the same. So its
inputs' dimensions get names, equal ones the same name, and whatever lengths the references still agree on are cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from collage.testing import with_named_lengths
from tests.fuzz.draft import Array, Sample

_NOISE = 1e-6


def symbolic(given: Sample, *, first_only: bool) -> Sample:
    """Return the model with names for its inputs' dimensions that are longer than 1, and with outputs of unknown shapes.

    Args:
        given: A model with fixed shapes.
        first_only: Name an input's first dimension only: batches, or rows.
    """
    return Sample(with_named_lengths(given.model, first_only=first_only), given.feeds)


def at_other_lengths(given: Sample, also: Sequence[int] = ()) -> Iterator[dict[str, Array]]:
    """Yield inputs of other lengths for a model with named dimensions: shorter, longer, all 1, and all of each ``also``."""
    from collage.frontend import bind_dims, cut, other_lengths, read_model

    model = read_model(given.model)
    tried = [*other_lengths(model, given.feeds)]
    for lengths in [*tried, *(dict.fromkeys(lengths, n) for lengths in tried[:1] for n in (1, *also))]:
        shapes = bind_dims(model, lengths)
        yield {name: cut(x, shapes.get(name, np.shape(x))) for name, x in given.feeds.items()}


def shaken(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the same inputs but for the last digits of floating-point numbers: ties are no longer ties."""
    numbers = np.random.default_rng(0)
    return {
        name: (x * (1 + _NOISE * numbers.uniform(-1, 1, x.shape))).astype(x.dtype) if x.dtype.kind == "f" else x
        for name, x in feeds.items()
    }
