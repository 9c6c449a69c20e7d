"""A graph of ``torch.compile`` that PyTorch runs until another process has compiled it.

No call waits. A call whose compiled graph is not there yet requests it, and PyTorch runs the call. A process compiles the graph,
compares its results with PyTorch's, and races with PyTorch, all on copies of that call's arguments. It notes the result in the
cache of graphs. A thread of this process loads it, and compares its results with PyTorch's once more. The key in the cache holds
the values of the weights. So a graph whose weights were changed meanwhile is not found, and is compiled again.

If the user asks for it, sets of lengths get plans of their own in the same way: as soon as calls with these lengths took as long
as a compilation does. So plans take at most about as much time as the calls that they are for.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from collage._errors import CollageError, UsageError, WrongAnswer
from collage.integrations._argument_copies import ArgumentCopies
from collage.integrations._background import CallerState, CompileRequest, background
from collage.integrations._compiled_graph import (
    CHECKED_CALLS,
    KEPT_LENGTHS,
    MOST_RACES,
    PATIENCE_S,
    CompiledGraph,
    Variant,
    pure_graph,
)
from collage.integrations._eager_race import lengths_alike
from collage.integrations._graph_cache import GraphCache, GraphFacts, fingerprint
from collage.integrations._torch_graph import PureGraph, weights_of
from collage.integrations._torch_options import portable

__all__ = ["BackgroundGraph"]

# Weights that change while a graph is compiled, and cannot be constants, are inputs after two attempts.
_MOST_ATTEMPTS = 4


class _NotCompiled(Exception):
    """A call needs facts that are not known yet."""


class BackgroundGraph(CompiledGraph):
    """A graph that is compiled in the background."""

    _keeps_changed = True

    def __init__(self, graph: torch.fx.GraphModule, options: Mapping[str, Any], mode: str | None) -> None:
        super().__init__(graph, options, mode)
        self._is_asked = False
        self._tried: set[tuple[int, ...]] = set()
        self._attempts = 0
        self._failure: CollageError | None = None
        self._is_named = True
        self._is_compiled_once = False

    @property
    def is_being_compiled(self) -> bool:
        """True if another process is at work on it."""
        return self._is_asked

    def unlock(self) -> None:
        """Make the lock anew, and ask again: a fork lacks the thread that is at work on the graph."""
        super().unlock()
        self._is_asked = False

    def _run(self, arguments: Sequence[Any]) -> list[Any] | None:
        if self._failure is not None:
            raise self._failure
        began = time.perf_counter()
        try:
            results = super()._run(arguments)
        except _NotCompiled:
            self._ask(arguments)
            return None
        if results is not None and self._settings["specialise"]:
            self._note_time(arguments, time.perf_counter() - began)
        return results

    def _note_time(self, arguments: Sequence[Any], seconds: float) -> None:
        """Ask for a plan for the lengths of this call if such calls took as long as a compilation does."""
        variant, pure = self._latest, self._pure
        if variant is None or pure is None or not self._may_get_plan(variant, lengths := pure.lengths(arguments)):
            return
        if len(variant.spent_s) >= KEPT_LENGTHS:
            variant.spent_s.clear()
        variant.spent_s[lengths] = variant.spent_s.get(lengths, 0.0) + seconds
        if variant.spent_s[lengths] >= variant.executable.report.search.wall_s and not self._is_asked:
            self._tried.add(lengths)  # Also if the cache cannot be written to.
            self._ask(arguments, specialises=True)

    def _may_get_plan(self, variant: Variant, lengths: tuple[int, ...]) -> bool:
        """Return True if such lengths get a plan of their own once their calls took long enough."""
        tried = self._tried.union(variant.specialised)
        return bool(lengths) and lengths not in tried and len(tried) < self._settings["specialise"]

    def _settle(self, pure: PureGraph, variant: Variant, lengths: tuple[int, ...]) -> None:
        if not self._may_get_plan(variant, lengths):
            super()._settle(pure, variant, lengths)

    def _taken_apart(self, arguments: Sequence[Any]) -> PureGraph:
        raise _NotCompiled

    def _compile(self, pure: PureGraph, arguments: Sequence[Any], bound: Sequence[int]) -> Variant:
        raise _NotCompiled

    def _prepare_run(self, variant: Variant, lengths: tuple[int, ...]) -> None:
        if lengths not in variant.checked and len(variant.checked) < CHECKED_CALLS:
            raise _NotCompiled
        if not self._is_raced(lengths):
            raise _NotCompiled

    def _is_raced(self, lengths: tuple[int, ...]) -> bool:
        known = lengths_alike(lengths) in self._is_eager or len(self._is_eager) >= MOST_RACES
        return known or not self._settings["options"].finals

    @property
    def _cache(self) -> GraphCache:
        # Read without `remeasure`: another process has measured again.
        options = replace(self._settings["options"], remeasure=False)
        return GraphCache(self._folder, self._settings["targets"], options)

    @property
    def _folder(self) -> Any:
        is_lasting = self._is_named and not self._changes and self._settings["cache_dir"] is not None
        return self._settings["cache_dir"] if is_lasting else background().folder

    def _ask(self, arguments: Sequence[Any], *, specialises: bool = False) -> None:
        """Have the background learn about such a call, or make a plan for its lengths, unless it is at work for this graph.

        Raises:
            ModelError: The graph is not one that can be compiled.
        """
        with self._lock:
            if self._is_asked:
                return
            if self._pure is None:
                self._accept(arguments)
                # Raises an error now for all that needs no export, such as gradients.
                pure_graph(self._graph, arguments, GraphFacts((), (), ()))
            self._is_asked = True
        try:
            weights = weights_of(self._graph, arguments)
            live = {i: arguments[i] for i in weights}
            versions = {i: value._version for i, value in live.items() if not value.is_inference()}
            copies = ArgumentCopies(arguments)
            state = CallerState.here()
        except BaseException:
            self._is_asked = False
            raise
        background().put(lambda: self._compile_in_background(live, versions, copies, state, specialises=specialises))

    def _compile_in_background(
        self,
        live: Mapping[int, torch.Tensor],
        versions: Mapping[int, int],
        copies: ArgumentCopies,
        state: CallerState,
        *,
        specialises: bool,
    ) -> None:
        """Learn all about a call, in the thread of the background. No error leaves it."""
        began = time.monotonic()
        try:
            with state.entered():
                if not self._runs(copies):
                    return  # The caller has the error, and other calls are compiled.
                if self._graph_key is None:
                    text = fingerprint(self._graph, live)
                    self._is_named = text is not None
                    self._graph_key = self._cache.graph_key(text or uuid.uuid4().hex)
                is_new = self._settings["options"].remeasure and not self._is_compiled_once
                if not is_new and not specialises and self._load_cached(live, copies):
                    return
                lines = self._request_compilation(copies, state, specialises)
                if not self._load_cached(live, copies, again=specialises):
                    self._changes.update(i for i, version in versions.items() if live[i]._version != version)
                    self._attempts += 1
                    if self._attempts >= _MOST_ATTEMPTS:
                        raise CollageError("its weights change all the time, or the cache cannot be used")
                    return
            self._attempts = 0
            self._report(lines, time.monotonic() - began)
        except CollageError as error:
            self._give_up(error, specialises)
        except Exception as error:  # Of any library: the queue goes on, and PyTorch runs this graph.
            reason = f"it was not compiled in the background: {type(error).__name__}: {error}"
            self._give_up(CollageError(reason), specialises)
        finally:
            self._is_asked = False

    def _runs(self, copies: ArgumentCopies) -> bool:
        made = copies.made()
        is_inference = any(isinstance(value, torch.Tensor) and value.is_inference() for value in made)
        try:
            with torch.inference_mode(is_inference):  # Only there such tensors can be written to.
                self._graph.forward(*made)
        except Exception:  # Of any operator.
            return False
        return True

    def _request_compilation(self, copies: ArgumentCopies, state: CallerState, specialises: bool) -> list[str]:
        """Have the process compile the graph, and return the lines that it told.

        Raises:
            UsageError: The options make no sense.
            CollageError: The graph is to be left to PyTorch.
        """
        options, mode = self._given
        plain = dict(portable(options) or {})
        if self._is_compiled_once:
            plain["remeasure"] = False
        assert self._graph_key is not None
        changed = tuple(self._changes.elements())
        request = CompileRequest(self._graph_key, str(self._folder), plain, mode, changed, state, specialises)
        answer = background().compile(request, self._graph, copies)
        self._is_compiled_once = True
        lines = list(answer["lines"])
        if answer["wrong"] or answer["left"]:
            for line in lines:
                self._tell(line)
            raise UsageError(answer["wrong"]) if answer["wrong"] else CollageError(answer["left"][0])
        return lines

    def _give_up(self, error: CollageError, specialises: bool) -> None:
        """Have the next call leave the graph to PyTorch. One that is compiled already only gets no more plans."""
        if specialises:
            self._settings["specialise"] = 0
            self._tell(f"no plan for more lengths: {error}")
        else:
            self._failure, self._latest = error, None

    def _load_cached(self, live: Mapping[int, torch.Tensor], copies: ArgumentCopies, *, again: bool = False) -> bool:
        """Load what the cache has for such a call, compare its results with PyTorch's, and have calls use it.

        What is loaded already is loaded once more if it changed there (``again``).

        Raises:
            WrongAnswer: Results differ.
        """
        made = copies.made()
        cached = _FromCache(self)
        if again:
            cached._variants.clear()
        try:
            pure = cached._pure or cached._taken_apart(made)
            cached._pure = pure
            arguments = [live[i] if i in live and i not in pure.written else value for i, value in enumerate(made)]
            cached._run(arguments)
        except _NotCompiled:
            return False
        except WrongAnswer:
            if cached._latest is not None and not cached._latest.watch.are_same(arguments):
                return False  # A weight was changed between both runs.
            raise
        with self._lock:
            self._pure = pure
            self._variants |= cached._variants
            self._latest = cached._latest or self._latest
            self._is_eager = {**cached._is_eager, **self._is_eager}
        return True

    def _report(self, lines: Sequence[str], seconds: float) -> None:
        if "say" not in self._settings and seconds > PATIENCE_S and lines:
            count = len(self._graph.graph.nodes)
            print(f"collage: a graph of {count} operators for torch.compile: {lines[-1]}", file=sys.stderr, flush=True)
        for line in lines:
            self._tell(line)


class _FromCache(BackgroundGraph):
    """A graph with everything that another one has, and with what is in the cache."""

    def __init__(self, of: BackgroundGraph) -> None:
        super().__init__(of._graph, *of._given)
        self._pure, self._settings, self._graph_key = of._pure, of._settings, of._graph_key
        self._is_named, self._changes = of._is_named, of._changes.copy()
        self._variants, self._is_eager = dict(of._variants), dict(of._is_eager)

    def _run(self, arguments: Sequence[Any]) -> list[Any] | None:
        return CompiledGraph._run(self, arguments)

    def _taken_apart(self, arguments: Sequence[Any]) -> PureGraph:
        if (pure := self._known(arguments)) is None:
            raise _NotCompiled
        return pure

    def _compile(self, pure: PureGraph, arguments: Sequence[Any], bound: Sequence[int]) -> Variant:
        return CompiledGraph._compile(self, pure, arguments, bound)

    def _made(self, *_: Any) -> Variant:
        raise _NotCompiled

    def _variant(self, pure: PureGraph, arguments: Sequence[Any]) -> Variant:
        variant = super()._variant(pure, arguments)
        if variant.key is not None and (facts := self._cache.facts(variant.key)) is not None:
            self._heed(variant, facts)
        return variant

    def _prepare_run(self, variant: Variant, lengths: tuple[int, ...]) -> None:
        if not self._is_raced(lengths):
            raise _NotCompiled

    def _note_lengths(self, variant: Variant) -> None:
        """Do nothing: the cache has told it."""

    def _warn(self, reason: str) -> None:
        """Do nothing: the next call warns."""
