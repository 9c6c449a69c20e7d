"""The context under which passes run: level, required and disabled passes, options, and the instruments that watch them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

import onnx_ir as ir

from collage._errors import ConfigError, PassError
from collage.transform._config import check_config, config_option
from collage.transform._diagnostics import Severity, name_of, report
from collage.transform._info import PassInfo
from collage.transform._pass_names import check_pass_names

__all__ = ["DEFAULT_OPT_LEVEL", "PassContext", "PassInstrument", "TraceFunction", "build_config"]

DEFAULT_OPT_LEVEL = 2

TraceFunction = Callable[[ir.Model, PassInfo, bool], None]
"""Called with the model, the pass, and True before or False after it."""

_STACK: ContextVar[tuple[PassContext, ...]] = ContextVar("collage_pass_contexts", default=())


class PassInstrument:
    """Subclass it and override the methods that you need; a context calls its instruments in the order in which it lists them.

    If a method raises:

    * ``enter_pass_ctx`` of the i-th: ``exit_pass_ctx`` of those before it is called, the context drops all its
      instruments and is not entered;
    * ``exit_pass_ctx``: those after it are not called, and the context drops all its instruments;
    * a pass: ``on_error`` is called, ``run_after_pass`` is not;
    * any other method: those of the remaining instruments are not called, and the pass does not run, or its result is
      lost. In every case the model that was passed in is unchanged, and the context is left in order.
    """

    def enter_pass_ctx(self, context: PassContext) -> None:
        """A ``with`` block of the context begins."""

    def exit_pass_ctx(self, context: PassContext) -> None:
        """It ends."""

    def should_run(self, model: ir.Model, info: PassInfo) -> bool:
        """Return True if an enabled pass may run. All instruments are asked, and one refusal is enough.

        Not asked for passes that the context or another pass requires.
        """
        return True

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        """A pass is about to run on ``model``, which may be read only."""

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """A pass made ``model``, which may be read only."""

    def on_skip(self, model: ir.Model, info: PassInfo, reason: str) -> None:
        """A pass is skipped."""

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        """A pass raised, or was interrupted; ``model`` may be half transformed."""


class PassContext:
    """Options of passes, in force inside its ``with`` block.

    A context inside another replaces it; nothing is merged. Each thread has a stack of its own, which begins empty;
    tasks of asyncio inherit theirs. One context may be entered several times, also by several threads.

    One rule decides if a pass runs, for passes that are called and for members of a sequence alike: a
    disabled pass does not, a required one does, and any other does if ``pass.opt_level <= context.opt_level``.

    Args:
        opt_level: 0 for nothing that is not necessary, up to 3 for everything.
        fallback_device: Device type of nodes that nothing places.
        required_pass: Names of passes that run regardless of their level.
        disabled_pass: Names of passes that never run.
        config: Values of registered keys.
        instruments: Watch passes run, in this order.
        trace: Called before and after each pass other than a sequence.

    Raises:
        ConfigError: An unknown pass or key, or a value of the wrong type.
    """

    def __init__(
        self,
        opt_level: int = DEFAULT_OPT_LEVEL,
        fallback_device: str = "cpu",
        required_pass: Iterable[str] = (),
        disabled_pass: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        instruments: Sequence[PassInstrument] = (),
        trace: TraceFunction | None = None,
    ) -> None:
        if isinstance(opt_level, bool) or not isinstance(opt_level, int):
            raise ConfigError(f"opt_level is a whole number, not {opt_level!r}")
        self.opt_level = opt_level
        self.fallback_device = fallback_device
        self.required_pass = check_pass_names(required_pass, "required_pass")
        self.disabled_pass = check_pass_names(disabled_pass, "disabled_pass")
        self.config: Mapping[str, Any] = MappingProxyType(check_config(config or {}))
        self.instruments = tuple(map(_check_instrument, instruments))
        self.trace = trace

    @staticmethod
    def current() -> PassContext:
        """The innermost context of this thread or task; one with default options outside any ``with`` block."""
        stack = _STACK.get()
        return stack[-1] if stack else _DEFAULT

    def get_config(self, key: str) -> Any:
        """The value of a registered key here, or its default.

        Raises:
            ConfigError: The key is not registered.
        """
        return self.config.get(key, config_option(key).default)

    def fail(self, message: str, node: ir.Node | None = None) -> NoReturn:
        """End the pass that is running with an error that names the node.

        Raises:
            PassError: Always.
        """
        place = f"node {name_of(node)!r} ({node.op_type}): " if node is not None else ""
        raise PassError(place + message)

    def error(self, message: str, node: ir.Node | None = None) -> None:
        """Report an error of the pass that is running, which goes on to look for more and fails when it ends."""
        report(Severity.ERROR, message, node)

    def warn(self, message: str, node: ir.Node | None = None) -> None:
        """Report a warning to the user; the pass continues."""
        report(Severity.WARNING, message, node)

    def remark(self, message: str, node: ir.Node | None = None) -> None:
        """Report an action of the pass, or its omission, with the reason. `Pass.run` and ``collage inspect --passes`` show it."""
        report(Severity.REMARK, message, node)

    def __enter__(self) -> PassContext:
        for index, instrument in enumerate(self.instruments):
            try:
                instrument.enter_pass_ctx(self)
            except BaseException:
                entered, self.instruments = self.instruments[:index], ()
                for previous in entered:
                    previous.exit_pass_ctx(self)
                raise
        _STACK.set((*_STACK.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A generator may leave its block after the block around it was left: each leaves its own. If it is closed in another
        # thread or task, that one has nothing to leave.
        stack = _STACK.get()
        if self in stack:
            own = len(stack) - 1 - stack[::-1].index(self)
            _STACK.set(stack[:own] + stack[own + 1 :])
        for instrument in self.instruments:
            try:
                instrument.exit_pass_ctx(self)
            except BaseException:
                self.instruments = ()
                raise

    def __repr__(self) -> str:
        return (
            f"PassContext(opt_level={self.opt_level}, required_pass={sorted(self.required_pass)}, "
            f"disabled_pass={sorted(self.disabled_pass)}, config={dict(self.config)})"
        )


def _check_instrument(candidate: Any) -> PassInstrument:
    """The candidate, if it has all methods of an instrument.

    Raises:
        ConfigError: It has not; most often it is a class instead of its instance, or does not subclass.
    """
    hooks = [name for name in vars(PassInstrument) if not name.startswith("_")]
    missing = [name for name in hooks if not callable(getattr(candidate, name, None))]
    if missing or isinstance(candidate, type):
        raise ConfigError(f"{candidate!r} is not an instrument; make an instance of a subclass of PassInstrument")
    instrument: PassInstrument = candidate
    return instrument


def build_config(**options: Any) -> PassContext:
    """Relay's other name for ``PassContext``, with the same options."""
    return PassContext(**options)


_DEFAULT = PassContext()
