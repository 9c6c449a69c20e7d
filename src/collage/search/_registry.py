"""Search strategies by name: found by entry point, imported on first use."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from collage._errors import UsageError
from collage.search._strategy import SearchStrategy

__all__ = ["STRATEGY_GROUP", "StrategyRegistry", "strategies"]

STRATEGY_GROUP = "collage.search_strategies"
"""The entry-point group: name of the strategy = ``module:Class``."""


class StrategyRegistry:
    """Search strategies by name.

    Args:
        points: Entry points of strategies; None is those of all installed packages.
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        points = entry_points(group=STRATEGY_GROUP) if points is None else points
        self._points = {point.name: point for point in points}
        self._loaded: dict[str, SearchStrategy] = {}

    def add(self, strategy: SearchStrategy) -> None:
        """Register a strategy in this process, for tests and notebooks; it replaces one of the same name."""
        self._loaded[strategy.name] = strategy

    def names(self) -> tuple[str, ...]:
        """Return the names of all strategies, sorted."""
        return tuple(sorted({*self._points, *self._loaded}))

    def get(self, name: str) -> SearchStrategy:
        """Return the strategy of a name.

        Raises:
            UsageError: There is none, and near names are suggested. Or its package cannot be imported. Or it has another
                name than its entry point.
        """
        if name not in self._loaded:
            point = self._points.get(name)
            if point is None:
                raise UsageError(f"there is no search strategy called {name!r}; {self._hint(name)}")
            try:
                strategy: SearchStrategy = point.load()()
            except Exception as error:
                raise UsageError(
                    f"search strategy {name!r} cannot be loaded from {point.value!r}: {type(error).__name__}: {error}"
                ) from error
            if strategy.name != name:
                raise UsageError(
                    f"the search strategy at {point.value!r} is called {strategy.name!r}, and its entry point {name!r}; "
                    "give both one name"
                )
            self._loaded[name] = strategy
        return self._loaded[name]

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.names(), n=1)
        known = f"there are {', '.join(self.names())}" if self.names() else "none is installed: is collage?"
        return f"did you mean {near[0]!r}? {known[0].upper()}{known[1:]}" if near else known


@functools.cache
def strategies() -> StrategyRegistry:
    """Return the registry of this process, filled from entry points."""
    return StrategyRegistry()
