"""Which toolchains exist: found by entry point, imported on first use."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from collage._errors import TargetError
from collage.target import HOST_TOOLCHAIN, Target, TargetLike
from collage.toolchains._contract import Toolchain

__all__ = ["GROUP", "Registry", "registry"]

GROUP = "collage.toolchains"
"""The entry-point group: name of the toolchain = ``module:Class``."""


class Registry:
    """Toolchains by name.

    A toolchain whose module cannot be imported is as good as absent: ``broken`` says why.
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        points = entry_points(group=GROUP) if points is None else points
        self._points = {point.name: point for point in points}
        self._loaded: dict[str, Toolchain] = {}
        self.broken: dict[str, str] = {}

    def add(self, toolchain: Toolchain) -> None:
        """Registers an instance, for tests and notebooks.

        Worker processes make their own from its class, with its ``worker_arguments`` (JSON values) if it has any; so
        the class must be importable.
        """
        self._points.pop(toolchain.name, None)
        self._loaded[toolchain.name] = toolchain

    def factory(self, name: str) -> tuple[str, dict[str, Any]]:
        """How another process makes the toolchain: ``module:Class`` and its keyword arguments."""
        if name in self._points:
            return self._points[name].value, {}
        toolchain = self.get(name)
        kind = type(toolchain)
        return f"{kind.__module__}:{kind.__qualname__}", dict(getattr(toolchain, "worker_arguments", {}))

    def names(self) -> tuple[str, ...]:
        """Names of all toolchains, sorted."""
        return tuple(sorted({*self._points, *self._loaded}))

    def get(self, name: str) -> Toolchain:
        """The toolchain called ``name``.

        Raises:
            TargetError: There is none, or its module cannot be imported.
        """
        if name not in self._loaded:
            point = self._points.get(name)
            if point is None:
                raise TargetError(f"no toolchain is called {name!r}; there are {', '.join(self.names())}")
            try:
                self._loaded[name] = point.load()()
            except Exception as error:
                self.broken[name] = f"{type(error).__name__}: {error}"
                raise TargetError(f"toolchain {name!r} cannot be imported: {self.broken[name]}") from error
        return self._loaded[name]

    def __iter__(self) -> Iterator[Toolchain]:
        for name in self.names():
            try:
                yield self.get(name)
            except TargetError:
                continue

    def parse_target(self, target: TargetLike) -> Target:
        """Reads a target string, aliases included; a ``Target`` is returned as it is.

        Raises:
            TargetError: The text names nothing, or an option that its toolchain does not have.
        """
        if isinstance(target, Target):
            self.get(target.toolchain)
            return target
        parsed = Target.parse(target, {toolchain.name: toolchain.targets for toolchain in self})
        self._check_options(parsed)
        return parsed

    def _check_options(self, target: Target) -> None:
        known = sorted(self.for_target(target).options)
        for name, _ in target.options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean -{near[0]}? It" if near else "it"
                has = ", ".join(f"-{option}" for option in known) or "none"
                raise TargetError(f"target {str(target)!r}: {target.toolchain} has no option -{name}; {hint} has {has}")

    def parse_targets(self, targets: Iterable[TargetLike]) -> Sequence[Target]:
        """Reads several targets; repeated ones count once, the order is kept (it is their priority)."""
        return tuple(dict.fromkeys(self.parse_target(target) for target in targets))

    def for_target(self, target: Target) -> Toolchain:
        """The toolchain that serves ``target``."""
        return self.get(target.toolchain)


@functools.cache
def registry() -> Registry:
    """The registry of this process, filled from entry points."""
    return Registry()


def choose_menu(targets: Iterable[TargetLike] | None, toolchains: Registry) -> tuple[Target, ...]:
    """Return the menu: what was asked for, or the CPU targets of every toolchain that wants to be on it unasked.

    Raises:
        TargetError: An unknown target, or an empty menu.
    """
    if targets is None:
        wanted = [toolchain for toolchain in toolchains if getattr(toolchain, "on_default_menu", True)]
        cpu = [stem for toolchain in wanted for stem in toolchain.targets if stem.split()[0] == "llvm"]
        targets = [stem for stem in cpu if toolchains.parse_target(stem).toolchain != HOST_TOOLCHAIN]
    menu = tuple(toolchains.parse_targets([targets] if isinstance(targets, str | Target) else targets))
    if not menu:
        raise TargetError("the menu is empty; name at least one target, such as 'onnxruntime'")
    return menu
