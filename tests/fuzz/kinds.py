"""Kinds of models that are tried: how each is drawn, judged and numbered."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.fuzz import compiled, constants, exported, kernels, lengths, mixes, old_opsets, sequences, suite
from tests.fuzz import recipes_of_rarities as _  # noqa: F401  registers its recipes, and all others
from tests.fuzz.draft import Sample, sample
from tests.fuzz.session import Session
from tests.fuzz.verdicts import Verdict

PER_SEED = 1_000_000
"""Numbers that a seed has: models of different seeds are different."""


@dataclass(frozen=True)
class Kind:
    """A kind of models.

    Attributes:
        about: What it is, in a few words.
        draw: Makes the model of a number.
        judge: Judges it.
        count: How many there are, where they are not without end.
    """

    about: str
    draw: Callable[[int], Sample]
    judge: Callable[[int, Sample, Session], list[Verdict]] = compiled.judged
    count: Callable[[], int] | None = None

    def numbers(self, seed: int) -> Iterator[int]:
        """Yield numbers, those of another seed in another order or others."""
        if self.count is None:
            yield from range(seed * PER_SEED, (seed + 1) * PER_SEED)
        else:
            found = [*range(self.count())]
            random.Random(seed).shuffle(found)
            yield from found


def _random(number: int) -> Sample:
    given = sample(number, wide=number % 7 == 0)
    return lengths.symbolic(given, first_only=number % 2 == 0) if number % 3 == 0 else given


def _fixed(number: int) -> Sample:
    return sample(number, wide=number % 5 == 0)


KINDS: Mapping[str, Kind] = {
    "random": Kind("graphs of three to eight operators", _random),
    "single-op": Kind("one operator in all types of numbers", functools.partial(sample, single=True)),
    "onnx-suite": Kind("the cases of ONNX's own backend suite", suite.draw, count=suite.count),
    "exported": Kind("modules that PyTorch's exporters write", exported.draw),
    "old-opsets": Kind("operators as operator sets 7 to 12 have them", old_opsets.draw),
    "adversarial-constants": Kind("constants that must not be rounded away", constants.draw),
    "kernels": Kind("random graphs as unchecked kernels", _fixed, kernels.judged),
    "mixes": Kind("random graphs as artefacts of several toolchains", _fixed, mixes.judged),
    "sequences": Kind("random calls on executables of random graphs", sequences.draw, sequences.judged),
}
