"""The worker that feeds tokens to a decoder. Runs in the child."""

from __future__ import annotations

import statistics
import time

from collage.measure.decoding import bytes_read
from collage.runtime import load
from collage.runtime._decoder import decoder_of

__all__ = ["DecodingWorker"]

_PREFILLS = 3
_WARM_UP = 4


class DecodingWorker:
    """Runs an artefact that is a decoder, as a loop that generates text does.

    Args:
        artefact: Its folder.
    """

    def __init__(self, artefact: str) -> None:
        self._executable = load(artefact)

    def decode(self, prompt: int, tokens: int) -> tuple[float, float, int | None]:
        """Return the median seconds of a prompt and of a token after it, and the bytes of constants that a token reads."""
        executable = self._executable
        decoder = decoder_of(executable.inputs, executable.outputs)
        assert decoder is not None
        first_s, step_s = list[float](), list[float]()
        feeds, outputs = decoder.feeds(prompt, 0), dict[str, object]()
        for _ in range(1 + _PREFILLS):
            before = time.perf_counter()
            outputs = executable.run(feeds)
            first_s.append(time.perf_counter() - before)
        for done in range(prompt, prompt + _WARM_UP + tokens):
            feeds = decoder.feeds(1, done, outputs)
            before = time.perf_counter()
            outputs = executable.run(feeds)
            step_s.append(time.perf_counter() - before)
        plan = executable.plan_for(feeds)
        read = bytes_read(plan.recipe, plan.workspace)
        return statistics.median(first_s[1:]), statistics.median(step_s[_WARM_UP:]), read
