"""Runs passes: gating, dependencies, instruments and error reports, the same at every depth.

Specification 002, "Sequential Passes", with its gating rule put right: a pass runs where its level is at most the
context's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from collage._errors import CollageError, ConfigError, PassError
from collage.transform._context import PassContext
from collage.transform._draft import Draft
from collage.transform._fingerprint import fingerprint
from collage.transform._info import ALL, PassInfo
from collage.transform._registry import get_pass

if TYPE_CHECKING:
    from collage.transform._pass import Pass

__all__ = ["Runner", "run"]


def run(pass_: Pass, model: ir.Model) -> ir.Model:
    """Runs one pass, with everything it requires, under the current context; ``model`` stays as it is."""
    if not isinstance(model, ir.Model):
        raise TypeError(f"pass {pass_.info.name!r} takes an onnx_ir.Model, not {type(model).__name__}")
    draft = Draft(model)
    result = Runner(PassContext.current()).execute(pass_, draft, pass_.info.name)
    return model if isinstance(result, Draft) else result


class Runner:
    """The state of one outermost call of a pass.

    Attributes:
        context: The context that was current when it began.
        disabled: Passes that the sequences around the current one disable.
        changing: Where a list, the names of the passes that change the model are added to it.
    """

    def __init__(self, context: PassContext) -> None:
        self.context = context
        self.disabled: frozenset[str] = frozenset()
        self.changing: list[str] | None = None
        self._finished: list[str] = []
        self._valid: set[str] = set()
        self._given_up: set[str] = set()
        self._pending: list[str] = []
        self._reported: BaseException | None = None
        self._instrument_error: BaseException | None = None

    def execute(self, pass_: Pass, model: ir.Model, place: str, *, required: bool = False) -> ir.Model:
        """Runs a pass if the rule says so; otherwise returns the model that it was given.

        Args:
            pass_: The pass.
            model: A draft, which the pass may change in place.
            place: Where the pass stands, such as ``sequential[2].inner[0]``.
            required: Whether another pass needs it.
        """
        info = pass_.info
        reason = self._reason_to_skip(info, model, required)
        if reason is not None:
            self._call_instruments("on_skip", model, info, reason)
            return model
        model = self._execute_required(info, model, place)
        self._call_instruments("run_before_pass", model, info)
        before = fingerprint(model) if self.changing is not None and pass_.is_traced else None
        result = self._apply(pass_, model, place)
        self._note(info)
        if self.changing is not None and before is not None and fingerprint(result) != before:
            self.changing.append(info.name)
        self._call_instruments("run_after_pass", result, info)
        return result

    def checkpoint(self) -> frozenset[str]:
        """Names of the passes whose results stand."""
        return frozenset(self._valid)

    def is_of_instrument(self, error: BaseException) -> bool:
        """Whether an instrument raised it, and no pass."""
        return error is self._instrument_error

    def give_up(self, name: str, checkpoint: frozenset[str]) -> None:
        """Takes note that a pass failed, and that what ran inside it was lost."""
        self._valid = set(checkpoint)
        self._given_up.add(name)

    def is_disabled(self, name: str) -> bool:
        """Whether the context or a sequence around the current pass disables a name."""
        return name in self.context.disabled_pass or name in self.disabled

    def _reason_to_skip(self, info: PassInfo, model: ir.Model, required: bool) -> str | None:
        if self.is_disabled(info.name):
            return "disabled"
        if required or info.name in self.context.required_pass:
            return None
        if info.opt_level > self.context.opt_level:
            return f"its level {info.opt_level} is above the context's {self.context.opt_level}"
        # Every instrument is asked, even after a refusal: they may be counting.
        answers = self._call_instruments("should_run", model, info)
        return None if all(answers) else "an instrument refused it"

    def _call_instruments(self, hook: str, model: ir.Model, info: PassInfo, *details: Any) -> list[Any]:
        """Calls a method of every instrument; what one raises is no error of a pass, and goes to the user as it is."""
        answers = []
        for instrument in self.context.instruments:
            try:
                answers.append(getattr(instrument, hook)(model, info, *details))
            except Exception as error:
                self._reported = self._instrument_error = error
                raise
        return answers

    def _execute_required(self, info: PassInfo, model: ir.Model, place: str) -> ir.Model:
        self._pending.append(info.name)
        try:
            for name in info.required:
                if name in self._pending:
                    circle = " -> ".join([*self._pending[self._pending.index(name) :], name])
                    raise ConfigError(f"passes require each other in a circle: {circle}")
                if self.is_disabled(name):
                    raise ConfigError(f"pass {info.name!r} requires {name!r}, which is disabled")
                if name not in self._valid:
                    model = self.execute(get_pass(name), model, f"{name} (required at {place})", required=True)
        finally:
            self._pending.pop()
        return model

    def _apply(self, pass_: Pass, model: ir.Model, place: str) -> ir.Model:
        try:
            if self.context.trace is not None and pass_.is_traced:
                self.context.trace(model, pass_.info, True)
            result = pass_.apply(model, self, place)
            if not isinstance(result, ir.Model):
                raise TypeError(f"it returned {type(result).__name__}, not a model; did you forget 'return'?")
            if self.context.trace is not None and pass_.is_traced:
                self.context.trace(result, pass_.info, False)
        except BaseException as error:
            self._call_instruments("on_error", model, pass_.info, error)
            if not isinstance(error, Exception):
                raise
            report = self._report(error, pass_.info.name, place)
            if report is error:
                raise
            raise report from error
        return result

    def _report(self, error: Exception, name: str, place: str) -> Exception:
        """Says once where an error happened, in the innermost pass; errors of ours keep their class."""
        if error is self._reported:
            return error
        after = f" after {', '.join(self._finished)}" if self._finished else " as the first"
        where = f"pass {name!r}, at {place}, run{after}"
        if isinstance(error, PassError) or not isinstance(error, CollageError):
            message = str(error) if isinstance(error, CollageError) else f"{type(error).__name__}: {error}"
            report: Exception = PassError(f"{where}: {message}")
        else:
            error.add_note(f"In {where}.")
            report = error
        self._reported = report
        return report

    def _note(self, info: PassInfo) -> None:
        if info.name in self._given_up:
            self._given_up.remove(info.name)
            return
        self._finished.append(info.name)
        if ALL in info.invalidates:
            self._valid.clear()
        self._valid -= set(info.invalidates)
        self._valid.add(info.name)
