"""Sequences of passes, and sequences repeated until nothing changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from collage.transform._diagnostics import reporting_for
from collage.transform._draft import Draft
from collage.transform._fingerprint import fingerprint
from collage.transform._info import PassInfo
from collage.transform._pass import Pass, Runner, as_pass
from collage.transform._pass_names import check_pass_names
from collage.transform._validity import check_valid

__all__ = ["Attempt", "Repeat", "Sequential", "sequential"]

_logger = logging.getLogger(__name__)


class Sequential(Pass):
    """Passes in order. Itself a pass, so sequences nest.

    Args:
        passes: Passes of ours, of onnx_ir or of onnxscript.
        opt_level: Level of the whole; each member is gated by its own as well.
        name: Its name.
        required: Names of passes that must have run before it.
        disabled: Names of passes that do not run inside it, at any depth.

    Raises:
        ConfigError: A name in ``disabled`` is unknown.
    """

    is_traced = False

    def __init__(
        self,
        passes: Iterable[Pass | ir.passes.PassBase] = (),
        opt_level: int = 0,
        name: str = "sequential",
        required: Sequence[str] = (),
        disabled: Iterable[str] = (),
    ) -> None:
        super().__init__(PassInfo(name, opt_level, tuple(required)))
        self.passes = tuple(as_pass(member) for member in passes)
        self.disabled = check_pass_names(disabled, "disabled")

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Run the members in order."""
        outer = runner.disabled
        runner.disabled = outer | self.disabled
        try:
            for index, member in enumerate(self.passes):
                model = runner.execute(member, model, f"{place}[{index}]")
        finally:
            runner.disabled = outer
        return model


class Repeat(Pass):
    """A pass run again until the model no longer changes.

    If it still changes in the last round, the result is that of the last round, and a warning is logged that names
    the passes that changed it.

    Args:
        inner: The pass to repeat.
        max_rounds: Largest number of rounds.
        name: Name of the repetition; made from that of the inner pass by default.

    Attributes:
        rounds: Rounds of the last run that changed something; for one thread at a time, as all of these.
        converged: True if the last run ended because nothing changed.
        changing: Names of the passes that changed something in the last round of a run that did not converge.
    """

    is_traced = False

    def __init__(self, inner: Pass | ir.passes.PassBase, max_rounds: int = 5, name: str | None = None) -> None:
        self.inner = as_pass(inner)
        super().__init__(PassInfo(name or f"Repeat({self.inner.info.name})", self.inner.info.opt_level))
        self.max_rounds = max_rounds
        self.rounds = 0
        self.converged = False
        self.changing: tuple[str, ...] = ()

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Run the inner pass until a round changes nothing, at most ``max_rounds`` + 1 times."""
        before = fingerprint(model)
        self.rounds, self.converged, self.changing = 0, False, ()
        while self.rounds < self.max_rounds:
            model = runner.execute(self.inner, model, f"{place}[{self.rounds}]")
            after = fingerprint(model)
            if after == before:
                self.converged = True
                return model
            self.rounds += 1
            before = after
        return self._last_round(model, before, runner, place)

    def _last_round(self, model: ir.Model, before: str, runner: Runner, place: str) -> ir.Model:
        """The round that must change nothing; the only one in which each pass is watched, which takes time."""
        outer, runner.changing = runner.changing, []
        try:
            model = runner.execute(self.inner, model, f"{place}[{self.rounds}]")
            changing = tuple(dict.fromkeys(runner.changing))
        finally:
            runner.changing = outer
        if outer is not None:
            outer += changing
        self.converged = fingerprint(model) == before
        if not self.converged:
            self.changing = changing
            names = ", ".join(changing)
            _logger.warning("%s still changes the model after %d rounds: %s", place, self.max_rounds, names)
        return model


class Attempt(Pass):
    """An optional pass: where it fails, or leaves an invalid model, the model stays as before, and that is logged."""

    def __init__(self, inner: Pass | ir.passes.PassBase) -> None:
        self.inner = as_pass(inner)
        super().__init__(self.inner.info)
        self.is_traced = self.inner.is_traced

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Run the inner pass on a copy."""
        draft, checkpoint = Draft(model), runner.checkpoint()
        try:
            with reporting_for(self.info.name):
                result = self.inner.apply(draft, runner, place)
            if isinstance(result, Draft):
                return model
            check_valid(result)
        except Exception as error:
            if runner.is_of_instrument(error):
                raise
            _logger.warning("pass %r at %s is skipped: %s", self.info.name, place, error)
            runner.give_up(self.info.name, checkpoint)
            return model
        return result


def sequential(
    passes: Iterable[Pass | ir.passes.PassBase] = (), opt_level: int = 0, name: str = "sequential", **options: Any
) -> Sequential:
    """The lower-case name for ``Sequential``."""
    return Sequential(passes, opt_level, name, **options)
