"""Facts that a pass gives about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collage._errors import ConfigError

__all__ = ["ALL", "PassInfo"]

ALL = "*"
"""In ``PassInfo.invalidates`` and ``preserves``: every pass that ran before."""


@dataclass(frozen=True, slots=True)
class PassInfo:
    """Name, level and dependencies of a pass.

    Attributes:
        name: Its name, unique among passes.
        opt_level: The pass runs where the context's level is at least this.
        required: Names of passes whose results must hold when it runs. They run first if they have not run, or if the model
            has changed since.
        invalidates: Names of passes whose results it destroys even if it leaves the model as it is; ``ALL`` for every one.
        preserves: Names of passes whose results hold after it, although it changes the model; ``ALL`` for every one.
        options: The arguments that this pass was made with, by name.

    Raises:
        ConfigError: The name is empty, the level is not a whole number, or a list does not hold names.
    """

    name: str
    opt_level: int
    required: Sequence[str] = ()
    invalidates: Sequence[str] = ()
    preserves: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a pass needs a name, not {self.name!r}")
        if isinstance(self.opt_level, bool) or not isinstance(self.opt_level, int):
            raise ConfigError(f"pass {self.name!r} needs an opt_level, a whole number, not {self.opt_level!r}")
        for listed in ("required", "invalidates", "preserves"):
            names = getattr(self, listed)
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise ConfigError(f"{listed!r} of pass {self.name!r} is a list of names, not {names!r}")
            object.__setattr__(self, listed, tuple(names))
