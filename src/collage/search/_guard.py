"""Guard against faults in third-party strategies, so that a compilation continues.

A strategy that does not come with Collage runs in a thread of its own. Its measurements run in the caller's thread,
which waits for the strategy and abandons it after a time limit. Then, and if it raises or returns a faulty cover, the
lazy strategy continues with the known costs. A strategy that ends the process, or never lets other threads run, is beyond this.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from collage.cost.cost import Cost
from collage.search._refinement import CoverTimer, RefiningStrategy
from collage.search._strategies import LazyStrategy
from collage.search._strategy import (
    CostSource,
    SearchLimits,
    SearchProblem,
    SearchStrategy,
    run_strategy,
    why_no_cover,
    why_wrong,
)
from collage.search._values import C, SearchResult, SearchStatistics

__all__ = ["refine_or_leave", "run_or_fall_back"]

THINKING_S = 60.0
"""Seconds that a third-party strategy may take, without the time of measurements."""
PROVING_S = 600.0
"""The same, if it has to prove optimality."""
_LEAVE_S = 2.0
"""Seconds for a strategy to return after the request to stop, and for its thread to end after that."""
_LOOK_S = 0.2

T = TypeVar("T")


class _Over(BaseException):
    """Ends the thread of a strategy that was given up."""


class _Fault(Exception):
    """A fault of a strategy, as the rest of a sentence."""


def run_or_fall_back(
    strategy: SearchStrategy,
    problem: SearchProblem[C],
    costs: CostSource[C],
    limits: SearchLimits,
    thinking_s: float | None = None,
) -> SearchResult[C]:
    """Run a strategy; if it is at fault, run the lazy one, and say why in the result.

    Args:
        strategy: The strategy.
        problem: See ``SearchStrategy.run``.
        costs: The same.
        limits: The same.
        thinking_s: Seconds that a third-party strategy may take without measuring; None for the default.
    """
    if _is_own(strategy):
        return run_strategy(strategy, problem, costs, limits)
    patience_s = thinking_s or (PROVING_S if limits.proves else THINKING_S)
    guard = _Guard(patience_s, limits.should_stop)
    foreign: Any = _GuardedCosts(guard, costs, limits, frozenset(problem.candidates))
    try:
        result = guard.call(lambda: strategy.run(problem, foreign, foreign))
        return _checked(strategy, result, problem, costs)
    except _Fault as fault:
        told = f"search strategy {strategy.name!r} {fault}; the strategy 'lazy' ran instead"
    return replace(run_strategy(LazyStrategy(), problem, costs, limits), faults=(told,))


def refine_or_leave(
    strategy: RefiningStrategy,
    problem: SearchProblem[C],
    costs: CostSource[C],
    seeds: Sequence[Sequence[C]],
    timer: CoverTimer[C],
    thinking_s: float = THINKING_S,
) -> tuple[list[tuple[C, ...]], str | None]:
    """Run the second phase of a strategy.

    Returns:
        The covers that it proposes, limited to those that the data flow permits; and its fault, if it has one.
    """
    if _is_own(strategy):
        return [tuple(cover) for cover in strategy.refine(problem, costs, seeds, timer)], None
    guard = _Guard(thinking_s, timer.should_stop)
    foreign_timer: Any = _GuardedTimer(guard, timer, problem)
    foreign_costs: Any = _GuardedCosts(guard, costs, None, frozenset(problem.candidates))
    try:
        proposed = guard.call(lambda: list(map(tuple, strategy.refine(problem, foreign_costs, seeds, foreign_timer))))
        for cover in proposed:
            if (reason := _judged(partial(why_no_cover, problem, cover))) is not None:
                raise _Fault(f"proposed a plan that {reason}")
    except _Fault as fault:
        return [], f"search strategy {strategy.name!r} {fault} in its second phase, which is left out"
    return proposed, None


def _is_own(strategy: object) -> bool:
    return type(strategy).__module__.partition(".")[0] == __name__.partition(".")[0]


def _checked(strategy: SearchStrategy, result: Any, problem: SearchProblem[C], costs: CostSource[C]) -> SearchResult[C]:
    """Return the result of a strategy.

    Raises:
        _Fault: It is none.
    """
    if not isinstance(result, SearchResult):
        raise _Fault(f"returned a {type(result).__name__}, not a SearchResult")
    found = result.partitioning
    if found is not None and (reason := _judged(lambda: why_wrong(problem, costs, found))) is not None:
        raise _Fault(f"returned a partitioning that {reason}")
    if not (isinstance(result.stopped_by, str) and isinstance(result.statistics, SearchStatistics)):
        raise _Fault("returned a SearchResult whose statistics cannot be read")
    return replace(result, strategy=strategy.name)


def _judged(check: Callable[[], T]) -> T:
    """Call a check of something that a strategy made, which may be anything.

    Raises:
        _Fault: It is wrong.
    """
    try:
        return check()
    except Exception as error:
        raise _Fault(f"returned something that cannot be read: {type(error).__name__}: {error}") from error


class _Guard:
    """Runs a function in another thread, and its requests in the caller's.

    Args:
        patience_s: Seconds that the function may take by itself.
        should_stop: True if the user has interrupted the search: the function then has little time left.
    """

    def __init__(self, patience_s: float, should_stop: Callable[[], bool]) -> None:
        self._left_s = patience_s
        self._patience_s = patience_s
        self._should_stop = should_stop
        self._asked: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[bool, Any]]] | None] = SimpleQueue()
        self._outcome: list[tuple[bool, Any]] = []
        self._is_over = False
        self.is_interrupted = False

    def call(self, function: Callable[[], T]) -> T:
        """Run the function, and return its result.

        Raises:
            _Fault: It raises, or goes on for too long.
        """
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._work, function), name="strategy", daemon=True)
        thread.start()
        try:
            self._serve()
        finally:
            self._is_over = True
            _end(thread)
        has_succeeded, value = self._outcome[0]
        if has_succeeded:
            made: T = value
            return made
        raise _Fault(f"raised {type(value).__name__}: {value}")

    def ask(self, function: Callable[[], T]) -> T:
        """Call a function in the caller's thread; return its result, or raise its exception. Called by the other thread."""
        self.check()
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._asked.put((function, answer))
        while True:
            try:
                has_succeeded, value = answer.get(timeout=_LOOK_S)
                break
            except Empty:
                self.check()
        if not has_succeeded:
            raise value
        made: T = value
        return made

    def check(self) -> None:
        """End the other thread if nothing waits for it any more."""
        if self._is_over:
            raise _Over

    def _work(self, function: Callable[[], Any]) -> None:
        with contextlib.suppress(_Over):
            try:
                self._outcome.append((True, function()))
            except BaseException as error:
                self._outcome.append((False, error))
            finally:
                self._asked.put(None)

    def _serve(self) -> None:
        while True:
            began = time.monotonic()
            try:
                errand = self._asked.get(timeout=max(0.0, min(self._left_s, _LOOK_S)))
            except Empty:
                errand = (lambda: None, SimpleQueue())
            except KeyboardInterrupt:
                self.is_interrupted, errand = True, (lambda: None, SimpleQueue())
            self._left_s -= time.monotonic() - began
            if errand is None:
                return
            if self._left_s <= 0:
                raise _Fault(f"ran for {self._patience_s:g} s without measuring anything")
            if self.is_interrupted or self._should_stop():
                self._left_s = min(self._left_s, _LEAVE_S)
            function, answer = errand
            try:
                answer.put((True, function()))
            except Exception as error:
                answer.put((False, error))


def _end(thread: threading.Thread) -> None:
    """End a thread that goes on although nothing waits for it; one that is within foreign code ends when that returns."""
    deadline = time.monotonic() + _LEAVE_S
    while thread.is_alive() and time.monotonic() < deadline:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Over))
        thread.join(0.05)


class _GuardedCosts:
    """Costs and limits as a strategy of others sees them: kept to, and of no use once it was given up."""

    def __init__(
        self, guard: _Guard, costs: CostSource[Any], limits: SearchLimits | None, proposed: frozenset[Any]
    ) -> None:
        self._guard, self._costs, self._limits, self._proposed = guard, costs, limits, proposed

    def __getattr__(self, name: str) -> Any:
        self._guard.check()
        return getattr(self._costs if hasattr(self._costs, name) else self._limits, name)

    def should_stop(self) -> bool:
        """Return True if the user wants the best result so far."""
        self._guard.check()
        return self._guard.is_interrupted or (self._limits is not None and self._limits.should_stop())

    def measure(self, candidates: Sequence[Any]) -> Sequence[Any]:
        """Have candidates measured, as the limits allow; those that are known, or equal to others, are not measured again."""
        asked, known = list(candidates), self._costs.known_cost
        if not self._proposed.issuperset(asked):
            raise ValueError("a strategy can only measure the problem's candidates")
        new = {self._costs.key_of(c): c for c in reversed(asked) if known(c) is None}
        limits = self._limits
        if new and limits is None:
            raise ValueError("kernels cannot be measured alone in the second phase")
        if new and limits is not None:
            if len(new) > min(limits.kernels_left, limits.batch_size or math.inf):
                raise ValueError(f"{len(new)} kernels are more than the limits allow")
            if limits.seconds_left <= 0 or self.should_stop():
                raise ValueError("nothing may be measured any more")
            self._guard.ask(lambda: self._costs.measure(list(new.values())))
        self._guard.check()
        return [Cost.INVALID if (cost := known(candidate)) is None else cost for candidate in asked]


class _GuardedTimer:
    """A timer as a strategy of others sees it."""

    def __init__(self, guard: _Guard, timer: CoverTimer[Any], problem: SearchProblem[Any]) -> None:
        self._guard, self._timer, self._problem = guard, timer, problem

    @property
    def seed(self) -> int:
        return self._timer.seed

    @property
    def seconds_left(self) -> float:
        self._guard.check()
        return self._timer.seconds_left

    def should_stop(self) -> bool:
        """Return True if the user wants the best result so far."""
        self._guard.check()
        return self._guard.is_interrupted or self._timer.should_stop()

    def time_of(self, cover: Sequence[Any]) -> float:
        """Return the time of a cover, which is checked first."""
        made = tuple(cover)
        if (reason := why_no_cover(self._problem, made)) is not None:
            raise ValueError(f"a cover that {reason}")
        if self.seconds_left <= 0 or self.should_stop():
            return math.inf
        return self._guard.ask(lambda: self._timer.time_of(made))
