"""Passes and instruments that write down what happens to them."""

from __future__ import annotations

from collage.transform import ModulePass, PassInfo, PassInstrument, register_pass


class Recorder:
    """Makes passes that note that they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def make(self, name: str, opt_level: int = 0, required=(), invalidates=()) -> ModulePass:
        def note(model, context):
            self.ran.append(name)
            return model

        return ModulePass(PassInfo(name, opt_level, required, invalidates), note)

    def register(self, name: str, opt_level: int = 0, required=(), invalidates=()) -> ModulePass:
        made = self.make(name, opt_level, required, invalidates)
        register_pass(name, lambda: made, override=True)
        return made


class Events(PassInstrument):
    """Writes down every event; raises at those it is told to."""

    def __init__(self, name: str, log: list[str], raise_at: str = "", allow: bool = True) -> None:
        self.name, self.log, self.raise_at, self.allow = name, log, raise_at, allow

    def _note(self, event: str) -> None:
        self.log.append(f"{self.name}.{event}")
        if event == self.raise_at:
            raise RuntimeError(f"{self.name} at {event}")

    def enter_pass_ctx(self, context):
        self._note("enter")

    def exit_pass_ctx(self, context):
        self._note("exit")

    def should_run(self, model, info):
        self._note("should")
        return self.allow

    def run_before_pass(self, model, info):
        self._note("before")

    def run_after_pass(self, model, info):
        self._note("after")

    def on_skip(self, model, info, reason):
        self._note("skip")

    def on_error(self, model, info, error):
        self._note("error")
