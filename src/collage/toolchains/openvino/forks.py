"""Forks of a process that dropped models.

OpenVINO keeps the threads of dropped models for the next ones. A fork has no threads, so its first model would wait for them
for ever. So small models take all such threads before a fork. The parent drops these models after it, and the fork keeps them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collage.system.forks import around_forks, in_forks, keep_for_ever

__all__ = ["note_model"]


@dataclass(slots=True)
class _Models:
    """The models of one configuration: they have threads of the same kind.

    Attributes:
        core: The core that compiled them.
        config: The configuration.
        alive: References to models.
        most: The largest number of models at a time. So many sets of threads there are.
    """

    core: Any
    config: Mapping[str, Any]
    alive: list[weakref.ref[Any]] = field(default_factory=list)
    most: int = 0

    def add(self, model: Any) -> None:
        """Add a model."""
        self.alive = [*(each for each in self.alive if each() is not None), weakref.ref(model)]
        self.most = max(self.most, len(self.alive))

    def idle(self) -> int:
        """Return the number of sets of threads that no model has."""
        return self.most - sum(each() is not None for each in self.alive)


_models: dict[tuple[tuple[str, Any], ...], _Models] = {}
_held: list[Any] = []


def note_model(core: Any, model: Any, config: Mapping[str, Any]) -> None:
    """Note a model that was compiled.

    Args:
        core: The core that compiled it.
        model: OpenVINO's compiled model.
        config: The configuration that it was compiled with.
    """
    _models.setdefault(tuple(sorted(config.items())), _Models(core, config)).add(model)


def _take_idle_threads() -> None:
    with contextlib.suppress(Exception):  # A fork is the caller's, and goes on.
        for same in list(_models.values()):
            for _ in range(same.idle()):
                _held.append(same.core.compile_model(_small(), "CPU", same.config))


def _small() -> Any:
    from openvino import Model, Type, opset13

    x = opset13.parameter([1], Type.f32)
    return Model([opset13.relu(x)], [x], "threads")


def _forget() -> None:
    keep_for_ever(list(_held))
    _held.clear()
    _models.clear()


in_forks(_forget)
around_forks(_take_idle_threads, _held.clear)
