"""Instruments: code that watches passes run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from collage._errors import ConfigError
from collage.transform._info import PassInfo

if TYPE_CHECKING:
    from collage.transform._context import PassContext

__all__ = ["PassInstrument", "check_instrument"]


class PassInstrument:
    """Subclass it and override what you need; a context calls its instruments in the order in which it lists them.

    What happens when something raises:

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
        """Whether an enabled pass may run; all instruments are asked, and one refusal is enough.

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


def check_instrument(candidate: Any) -> PassInstrument:
    """The candidate, if it has all methods of an instrument.

    Raises:
        ConfigError: It has not; most often it is a class instead of its instance, or does not subclass.
    """
    hooks = [name for name in vars(PassInstrument) if not name.startswith("_")]
    missing = [name for name in hooks if not callable(getattr(candidate, name, None))]
    if missing or isinstance(candidate, type):
        raise ConfigError(f"{candidate!r} is no instrument; make an instance of a subclass of PassInstrument")
    instrument: PassInstrument = candidate
    return instrument
