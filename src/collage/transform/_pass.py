"""Passes: functions from model to model; how they are made by name, and how they are run.

The module of Relay's pass infrastructure is an ``onnx_ir.Model`` here. A pass runs where its level is at most the
context's: the same rule for a pass that is called and for the members of a sequence, at every depth.

Three things are in one file because each needs the others: a pass runs itself by a runner, the runner makes the passes
that another one requires by their names, and a name refers to a pass.
"""

from __future__ import annotations

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn, Self

import onnx_ir as ir

from collage._errors import CollageError, ConfigError, PassError
from collage.transform._context import PassContext
from collage.transform._diagnostics import Diagnostic, collecting, reporting_for
from collage.transform._draft import Draft, source
from collage.transform._fingerprint import fingerprint
from collage.transform._info import ALL, PassInfo
from collage.transform._pass_names import ENTRY_POINT_GROUP, installed_names, note_name, unknown_pass

__all__ = ["Pass", "PassResult", "Runner", "as_pass", "get_pass", "list_passes", "make_pass", "register_pass"]


_REQUIRED: set[str] = set()
"""Names of passes that some pass requires: only of these it matters which model they left."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """The outcome of running a pass.

    Attributes:
        model: The model that it made; the one that it was given if it changed nothing.
        modified: True if it changed anything but names.
        changed_by: Names of the passes that changed something, in order; of a sequence, its members.
        diagnostics: The findings that passes reported.
    """

    model: ir.Model
    modified: bool
    changed_by: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


class Pass(ABC):
    """A function from model to model, with a name and a level.

    Calling a pass leaves the model that it is given unchanged: the pass works on a copy that shares the weights. If
    the context switches the pass off, or the pass looks at nothing, the same model is returned.
    """

    is_traced = True
    """True if tracing functions see the pass. Sequences are not traced, their members are."""
    _made_with: Mapping[str, Any] = {}

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Note the arguments that a pass is made with, for `PassInfo.options`."""
        made = super().__new__(cls)
        with contextlib.suppress(TypeError, ValueError):  # Wrong arguments are the constructor's own affair.
            bound = inspect.signature(cls.__init__).bind(made, *arguments, **options).arguments
            made._made_with = dict(list(bound.items())[1:])
        return made

    def __init__(self, info: PassInfo) -> None:
        note_name(info.name)
        _REQUIRED.update(info.required)
        # A pass that is given its facts is a function with a name, which says it all.
        is_named = any(value is info for value in self._made_with.values())
        self.info = info if is_named or not self._made_with else replace(info, options=self._made_with)

    def __call__(self, model: ir.Model) -> ir.Model:
        """Run the pass, and the passes that it requires, under the current context.

        Raises:
            PassError: It failed; the message names the pass and its place. Errors of Collage keep their class.
            ConfigError: A required pass is unknown, disabled, or part of a circle.
            TypeError: It is not a model of ONNX IR.
        """
        if not isinstance(model, ir.Model):
            raise TypeError(f"pass {self.info.name!r} takes an onnx_ir.Model, not {type(model).__name__}")
        result = Runner(PassContext.current()).execute(self, Draft(model), self.info.name)
        return model if isinstance(result, Draft) else result

    def run(self, model: ir.Model) -> PassResult:
        """Run the pass as a call does; also return if it changed anything, and its diagnostics.

        Raises:
            PassError: As for a call.
        """
        runner = Runner(PassContext.current())
        runner.changing = []
        with collecting() as diagnostics:
            result = runner.execute(self, Draft(model), self.info.name)
        changed_by = tuple(dict.fromkeys(runner.changing))
        modified = not isinstance(result, Draft) and bool(changed_by) and fingerprint(result) != fingerprint(model)
        return PassResult(result if modified else model, modified, changed_by, tuple(diagnostics))

    @abstractmethod
    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        """Transform a model that belongs to the pass, in place or not; called by the runner."""

    @property
    def in_place(self) -> NoReturn:
        """Refuse use as a pass of onnx_ir, which reads this property first and needs a ``PassResult`` from its passes."""
        raise TypeError(f"use {self.info.name} in a sequence of onnx_ir's by its method to_onnx_ir()")

    def to_onnx_ir(self) -> ir.passes.FunctionalPass:
        """This pass for use inside ``onnx_ir.passes.Sequential`` and ``PassManager``."""
        return _ForOnnxIr(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name!r}, opt_level={self.info.opt_level})"


class _OnnxIrPass(Pass):
    """A pass of onnx_ir or onnxscript, used as it is."""

    def __init__(self, inner: ir.passes.PassBase) -> None:
        super().__init__(PassInfo(type(inner).__name__, opt_level=0))
        self._inner = inner

    def apply(self, model: ir.Model, runner: Runner, place: str) -> ir.Model:
        return self._inner(model).model


class _ForOnnxIr(ir.passes.FunctionalPass):
    """One of our passes as one of onnx_ir's."""

    def __init__(self, inner: Pass) -> None:
        self._inner = inner

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        result = self._inner(model)
        if result is model:
            draft = Draft(model)
            draft.fill()
            return ir.passes.PassResult(draft, modified=False)
        return ir.passes.PassResult(result, modified=True)


def as_pass(candidate: Any) -> Pass:
    """A pass of ours, or of onnx_ir or onnxscript, as a pass of ours.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(candidate, Pass):
        return candidate
    if isinstance(candidate, ir.passes.PassBase):
        return _OnnxIrPass(candidate)
    raise TypeError(f"{candidate!r} is not a pass; decorate functions with module_pass or function_pass")


_FACTORIES: dict[str, Callable[..., Pass]] = {}


def register_pass(name: str, factory: Pass | Callable[[], Pass], *, override: bool = False) -> None:
    """Make a pass known by name.

    Args:
        name: The name under which other passes require it; the one that the pass gives itself.
        factory: The pass, or a function without parameters that makes it.
        override: Replace a pass that has the name.

    Raises:
        ConfigError: The name is taken.
    """
    if name in _FACTORIES and not override:
        raise ConfigError(f"a pass called {name!r} is already registered; pass override=True to replace it")
    made = factory
    _FACTORIES[name] = (lambda: made) if isinstance(made, Pass) else made
    note_name(name)


def get_pass(name: str) -> Pass:
    """Make the pass that was registered under a name.

    Raises:
        ConfigError: There is none; near names are suggested. Or its package cannot be imported. Or it has another name
            than the registered one, so that disabling the registered name would have no effect.
    """
    return make_pass(name, {})


def make_pass(name: str, options: Mapping[str, Any]) -> Pass:
    """Make the pass that was registered under a name, with options.

    Raises:
        ConfigError: As for ``get_pass``.
        TypeError: It does not take these options.
    """
    factory = _FACTORIES.get(name)
    if factory is None:
        found = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == name]
        if not found:
            raise ConfigError(unknown_pass(name, list_passes()))
        factory = _load(found[0])
        register_pass(name, factory)
        factory = _FACTORIES[name]
    made = as_pass(factory(**options))
    if made.info.name != name:
        raise ConfigError(f"the pass that was registered as {name!r} is called {made.info.name!r}; register it as that")
    return made


def _load(entry: EntryPoint) -> Callable[[], Pass]:
    try:
        factory: Callable[[], Pass] = entry.load()
    except Exception as error:
        raise ConfigError(f"pass {entry.name!r} cannot be loaded from {entry.value!r}: {error}") from error
    return factory


def list_passes() -> tuple[str, ...]:
    """Names of all passes that ``get_pass`` can make."""
    return tuple(sorted(installed_names().union(_FACTORIES)))


class Runner:
    """The state of one outermost call of a pass.

    Attributes:
        context: The context that was current when it began.
        disabled: Passes that the sequences around the current one disable.
        wanted: Passes that run regardless of their level, since a pipeline names them or a sequence that holds them.
        changing: Names of the passes that change the model are appended to this list, if there is one.
    """

    def __init__(self, context: PassContext) -> None:
        self.context = context
        self.disabled: frozenset[str] = frozenset()
        self.wanted: frozenset[str] = frozenset()
        self.changing: list[str] | None = None
        self._finished: list[str] = []
        self._valid: dict[str, str | None] = {}
        self._suspect: set[str] = set()
        self._given_up: set[str] = set()
        self._pending: list[str] = []
        self._reported: BaseException | None = None
        self._instrument_error: BaseException | None = None

    def execute(self, pass_: Pass, model: ir.Model, place: str, *, required: bool = False) -> ir.Model:
        """Run a pass if the rule says so; otherwise return the model unchanged.

        Args:
            pass_: The pass.
            model: A draft, which the pass may change in place.
            place: Position of the pass, such as ``sequential[2].inner[0]``.
            required: True if another pass needs it.
        """
        info = pass_.info
        reason = self._reason_to_skip(info, model, required)
        if reason is not None:
            self._call_instruments("on_skip", model, info, reason)
            return model
        model = self._execute_required(info, model, place)
        for name in self._suspect & (self._valid.keys() if ALL in info.preserves else set(info.preserves)):
            self._holds(name, model)  # Once the model is changed, a fingerprint cannot tell any more.
        self._call_instruments("run_before_pass", model, info)
        before = fingerprint(model) if self.changing is not None and pass_.is_traced else None
        result = self._apply(pass_, model, place)
        self._note(pass_, result)
        if self.changing is not None and before is not None and fingerprint(result) != before:
            self.changing.append(info.name)
        self._call_instruments("run_after_pass", result, info)
        return result

    def checkpoint(self) -> tuple[dict[str, str | None], set[str], list[str]]:
        """The passes whose results are still valid, the known facts about them, and the passes that changed the model."""
        return dict(self._valid), set(self._suspect), list(self.changing or ())

    def is_of_instrument(self, error: BaseException) -> bool:
        """Return True if an instrument raised the error, and not a pass."""
        return error is self._instrument_error

    def give_up(self, name: str, checkpoint: tuple[dict[str, str | None], set[str], list[str]]) -> None:
        """Record that a pass failed, and that the results of passes inside it are lost."""
        self._valid, self._suspect, changing = checkpoint
        if self.changing is not None:
            self.changing[:] = changing
        self._given_up.add(name)

    def is_disabled(self, name: str) -> bool:
        """Return True if the context or a sequence around the current pass disables a name."""
        return name in self.context.disabled_pass or name in self.disabled

    def _reason_to_skip(self, info: PassInfo, model: ir.Model, required: bool) -> str | None:
        if self.is_disabled(info.name):
            return "disabled"
        if required or info.name in self.wanted or info.name in self.context.required_pass:
            return None
        if info.opt_level > self.context.opt_level:
            return f"its level {info.opt_level} is above the context's {self.context.opt_level}"
        # Every instrument is asked, even after a refusal: they may be counting.
        answers = self._call_instruments("should_run", model, info)
        return None if all(answers) else "an instrument refused it"

    def _call_instruments(self, hook: str, model: ir.Model, info: PassInfo, *details: Any) -> list[Any]:
        """Call a method of every instrument. Exceptions of an instrument reach the user as they are, not as errors of a pass."""
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
            # One may make the result of an earlier one false, so each is asked as often as there are any.
            for name in tuple(info.required) * len(info.required):
                if name in self._pending:
                    circle = " -> ".join([*self._pending[self._pending.index(name) :], name])
                    raise ConfigError(f"passes require each other in a circle: {circle}")
                if self.is_disabled(name):
                    raise ConfigError(f"pass {info.name!r} requires {name!r}, which is disabled")
                if not self._holds(name, model):
                    model = self.execute(get_pass(name), model, f"{name} (required at {place})", required=True)
        finally:
            self._pending.pop()
        return model

    def _holds(self, name: str, model: ir.Model) -> bool:
        """Return True if a pass ran, and the model is as it left it, or passes since then say that they preserve its result."""
        if name not in self._valid:
            return False
        if name in self._suspect and fingerprint(source(model)) == self._valid[name]:
            self._suspect.remove(name)
        return name not in self._suspect

    def _apply(self, pass_: Pass, model: ir.Model, place: str) -> ir.Model:
        try:
            if self.context.trace is not None and pass_.is_traced:
                self.context.trace(model, pass_.info, True)
            with reporting_for(pass_.info.name) if pass_.is_traced else nullcontext():
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
        """Add the place of an error once, in the innermost pass; Collage's errors keep their class."""
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

    def _note(self, pass_: Pass, result: ir.Model) -> None:
        info = pass_.info
        if info.name in self._given_up:
            self._given_up.remove(info.name)
            return
        self._finished.append(info.name)
        if ALL in info.invalidates:
            self._valid.clear()
        for name in info.invalidates:
            self._valid.pop(name, None)
        # Of a sequence the members were noted.
        if pass_.is_traced and ALL not in info.preserves and not isinstance(result, Draft):
            self._suspect.update(self._valid.keys() - set(info.preserves))
        if _is_registered(pass_):
            self._valid[info.name] = fingerprint(source(result)) if info.name in _REQUIRED else None
            self._suspect.discard(info.name)


def _is_registered(pass_: Pass) -> bool:
    """Return True if a pass may use its name: the name is registered for it, or not at all."""
    factory, inner = _FACTORIES.get(pass_.info.name), getattr(pass_, "inner", pass_)
    return not isinstance(factory, type) or isinstance(inner, factory)
