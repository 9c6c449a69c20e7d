"""A graph of ``torch.compile``, exported to ONNX, compiled when it is first called, and called with tensors.

It computes what PyTorch computes, effects on buffers and inputs included, or leaves the graph to PyTorch, and one warning says so
and why: gradients, random numbers, what cannot be exported or compiled, and results that differ from PyTorch's. Lengths at which
PyTorch is faster are left to it too. Errors of the user are raised to the caller.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from collage._errors import CollageError, InputError, ModelError, UsageError, WrongAnswer
from collage.integrations._eager_evidence import eager_evidence
from collage.integrations._eager_race import lengths_alike, race_with_eager
from collage.integrations._graph_cache import GraphCache, GraphFacts, VariantFacts, fingerprint
from collage.integrations._graph_inputs import with_lengths
from collage.integrations._length_guards import hold
from collage.integrations._torch_graph import PureGraph, exported_bound, weights_of
from collage.integrations._torch_options import torch_settings
from collage.integrations._weight_watch import FrozenWeights, WeightWatch
from collage.numerics.judge import Evidence, judge
from collage.runtime import Executable
from collage.runtime._tensors import as_numpy, as_torch
from collage.system.forks import in_forks
from collage.system.machine import this_machine

__all__ = [
    "CHECKED_CALLS",
    "KEPT_LENGTHS",
    "MOST_RACES",
    "PATIENCE_S",
    "CompiledGraph",
    "Variant",
    "pure_graph",
]

Call = Callable[..., Any]

_logger = logging.getLogger(__name__)

PATIENCE_S = 3.0
"""A line reports progress if compiling takes longer."""

CHECKED_CALLS = 2
"""Number of first calls with new lengths whose results are compared with PyTorch's."""

_STATIC_LENGTHS = 2
"""The largest number of compiled graphs of the same code that differ only in fixed lengths."""

_SEEN: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
"""The lengths for which graphs of the same code, with the same weights, were compiled."""

KEPT_LENGTHS = 1024
"""Sets of lengths that the cache remembers of a graph."""

MOST_RACES = 64
"""Races with PyTorch that a graph has at most, each for lengths of another order of magnitude."""


@dataclass(slots=True)
class Variant:
    """A graph, compiled with the values of some of its arguments.

    Attributes:
        executable: The compiled graph.
        varying: Positions of the arguments that it takes.
        watch: The arguments whose values it has.
        guards: Conditions on the arguments that it takes.
        tolerance: The tolerance.
        key: Its name in the cache, None if it is not kept.
        suited: Lengths for which it is known if it was compiled for these.
        checked: Sets of lengths at which results were compared.
        specialised: Lengths for which a plan of their own was compiled, whether it was kept or not.
        spent_s: Seconds that calls with such lengths took.
        settled: Lengths at which nothing is left to compare or to decide.
    """

    executable: Executable
    varying: list[int]
    watch: WeightWatch | FrozenWeights
    guards: tuple[str, ...]
    tolerance: float
    key: str | None = None
    suited: dict[tuple[int, ...], bool] = field(default_factory=dict)
    checked: set[tuple[int, ...]] = field(default_factory=set)
    specialised: tuple[tuple[int, ...], ...] = ()
    spent_s: dict[tuple[int, ...], float] = field(default_factory=dict)
    settled: set[tuple[int, ...]] = field(default_factory=set)

    def changed(self, arguments: Sequence[Any]) -> list[int]:
        """Return positions of arguments that have other values than it was compiled with."""
        if self.watch.are_same(arguments):
            return []
        positions, is_late = self.watch.changed(arguments)
        if is_late:
            warnings.warn(
                "collage: a weight was changed in a way that PyTorch does not count, such as through tensor.data; results "
                f"of up to {self.watch.pieces} calls before this one were computed with the old value",
                RuntimeWarning,
                stacklevel=7,
            )
        return positions


class CompiledGraph:
    """A graph, compiled once for each set of weights that it is called with.

    Dynamo makes a module's parameters and buffers arguments of the graph, and calls the same graph for another module of
    the same code. Those that the graph does not write to become constants. When one was changed or replaced since, the graph
    is compiled again. One that was changed twice stays an input.
    """

    _keeps_changed = False
    """The cache gets graphs whose weights were changed, too."""

    def __init__(self, graph: torch.fx.GraphModule, options: Mapping[str, Any], mode: str | None) -> None:
        self._graph = graph
        self._frame = getattr(torch._guards.CompileContext.current_compile_id(), "frame_id", None)
        self._given = options, mode
        self._lock = threading.RLock()
        _graphs.add(self)
        self._is_left = False
        self._said: set[str] = set()
        self._pure: PureGraph | None = None
        self._settings: dict[str, Any] = {}
        self._graph_key: str | None = None
        self._changes: Counter[int] = Counter()
        self._variants: dict[tuple[int, ...], Variant] = {}
        self._latest: Variant | None = None
        self._is_eager: dict[tuple[int, ...], bool] = {}  # By lengths alike: PyTorch won the race.

    def unlock(self) -> None:
        """Make the lock anew in a fork, which lacks the thread that may hold it."""
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph.

        Raises:
            UsageError: Options that make no sense.
        """
        results = self.run_compiled(arguments)
        return self._graph.forward(*arguments) if results is None else results

    def run_compiled(self, arguments: Sequence[Any]) -> list[Any] | None:
        """Return the graph's outputs, or None if PyTorch is to run this call.

        Raises:
            UsageError: Options that make no sense.
        """
        if self._is_left:
            return None
        try:
            return self._run_settled(arguments) or self._run(arguments)
        except UsageError:
            raise
        except CollageError as error:
            # If PyTorch fails too, such as on an index outside of a tensor, the caller has its error, and other calls run.
            results: list[Any] = self._graph.forward(*arguments)
            self._leave(str(error))
            return results

    def _run_settled(self, arguments: Sequence[Any]) -> list[Any] | None:
        """Return the outputs in as few steps as can be if nothing is left to decide about such a call, and None otherwise."""
        variant, pure = self._latest, self._pure
        if variant is None or pure is None or not variant.settled or not variant.watch.are_same(arguments):
            return None
        if pure.lengths(arguments) not in variant.settled:
            return None
        return pure.finish(arguments, self._computed(pure, variant, arguments))

    def _settle(self, pure: PureGraph, variant: Variant, lengths: tuple[int, ...]) -> None:
        """Note that nothing is left to decide about calls with such lengths, if it is so."""
        is_checked = lengths in variant.checked or len(variant.checked) >= CHECKED_CALLS
        if (
            is_checked
            and variant.suited[lengths]
            and not pure.written
            and not self._is_eager.get(lengths_alike(lengths))
        ):
            if len(variant.settled) >= KEPT_LENGTHS:
                variant.settled.clear()
            variant.settled.add(lengths)

    def _run(self, arguments: Sequence[Any]) -> list[Any] | None:
        """Return the graph's outputs, or None if PyTorch is to run it this time."""
        with self._lock:
            if self._pure is None:
                self._pure = self._taken_apart(arguments)
            pure = self._pure
            lengths = pure.lengths(arguments)
            if not pure.has_work or self._is_eager.get(lengths_alike(lengths)):
                return None
            if pure.overlaps(arguments):
                self._warn("it writes to memory that another of its inputs has too")
                return None
            variant = self._variant(pure, arguments)
            if lengths not in variant.suited:
                variant.suited[lengths] = self._stands(pure, variant, arguments)
                self._note_lengths(variant)
        if not variant.suited[lengths]:
            self._warn("the exported graph is not valid for these lengths")
            return None
        self._prepare_run(variant, lengths)
        computed = self._computed(pure, variant, arguments)
        self._check(pure, variant, arguments, computed)
        results = pure.finish(arguments, computed)
        if self._is_to_race(lengths):
            self._race(pure, variant, lengths, arguments)
        self._settle(pure, variant, lengths)
        return results

    def _prepare_run(self, variant: Variant, lengths: tuple[int, ...]) -> None:
        """Do nothing: such a call may compare results, and race with PyTorch."""

    def _taken_apart(self, arguments: Sequence[Any]) -> PureGraph:
        self._accept(arguments)
        pure = self._known(arguments) or pure_graph(self._graph, arguments)
        self._note_graph(pure)
        return pure

    def _accept(self, arguments: Sequence[Any]) -> None:
        """Raise an error if the options make no sense, or the arguments have another form than compiled graphs take."""
        _check_arguments(arguments)
        self._settings = torch_settings(*self._given)
        self._check_lengths(arguments)

    def _is_to_race(self, lengths: tuple[int, ...]) -> bool:
        """Return True once for all similar lengths, unless the user switched comparisons off."""
        alike = lengths_alike(lengths)
        with self._lock:
            is_new = alike not in self._is_eager and len(self._is_eager) < MOST_RACES
            if is_new := is_new and self._settings["options"].finals:
                self._is_eager[alike] = False
        return is_new

    def _race(self, pure: PureGraph, variant: Variant, lengths: tuple[int, ...], arguments: Sequence[Any]) -> None:
        """Test if PyTorch is faster at such lengths. If it is, leave them to PyTorch."""

        def own() -> list[Any]:
            return [value.clone() if i in pure.written else value for i, value in enumerate(arguments)]

        try:
            race = race_with_eager(self._run, lambda given: self._graph.forward(*given), own)
        except (CollageError, RuntimeError) as error:  # The call itself has its results.
            from collage.frontend._torch import reason_of  # Late: a graph from the cache needs no library for models.

            self._note_lengths(variant)
            self._tell(f"cannot be compared with eager PyTorch: {reason_of(error)}")
            return
        self._is_eager[lengths_alike(lengths)] = race.eager_wins
        self._note_lengths(variant)
        self._tell(
            f"{'eager PyTorch is kept' if race.eager_wins else 'what was compiled runs'} at lengths such as {lengths}: "
            f"{1e3 * race.compiled_s:.3f} ms compiled, {1e3 * race.eager_s:.3f} ms eager, "
            f"{race.ratio:.2f} times as long ({race.interval.low:.2f} to {race.interval.high:.2f})"
        )

    def _tell(self, line: str) -> None:
        """Log the decision, and report it to a user that asked for a report."""
        line = f"a graph of {len(self._graph.graph.nodes)} operators for torch.compile: {line}"
        _logger.info("%s", line)
        if "say" in self._settings:
            self._settings["say"](line)

    def _stands(self, pure: PureGraph, variant: Variant, arguments: Sequence[Any]) -> bool:
        return pure.allows(arguments) and hold(variant.guards, [arguments[i] for i in variant.varying])

    @cached_property
    def _cache(self) -> GraphCache | None:
        folder = self._settings["cache_dir"]
        return None if folder is None else GraphCache(folder, self._settings["targets"], self._settings["options"])

    def _known(self, arguments: Sequence[Any]) -> PureGraph | None:
        """Return the graph as an earlier process took it apart, None if none did."""
        if self._cache is None:
            return None
        if self._graph_key is None:
            if (graph := fingerprint(self._graph, weights_of(self._graph, arguments))) is None:
                return None
            self._graph_key = self._cache.graph_key(graph)
        if (facts := self._cache.graph(self._graph_key)) is None:
            return None
        with suppress(CollageError, LookupError):
            return PureGraph(self._graph, arguments, facts)
        return None

    def _note_graph(self, pure: PureGraph) -> None:
        if self._cache is not None and self._graph_key is not None:
            self._cache.note(self._graph_key, GraphFacts(tuple(pure.returns), tuple(pure.written), pure.guards))

    def _note_lengths(self, variant: Variant) -> None:
        if self._cache is not None and variant.key is not None:
            suited = [lengths for lengths, answer in variant.suited.items() if answer]
            facts = VariantFacts(
                variant.tolerance,
                variant.guards,
                tuple(suited[:KEPT_LENGTHS]),
                _here(),
                tuple(self._is_eager.items()),
                variant.specialised,
            )
            self._cache.note(variant.key, facts)

    def _key(self, arguments: Sequence[Any], bound: Sequence[int]) -> str | None:
        """Return the name of the graph with some constants in the cache; None if it is not to be kept."""
        if self._cache is None or self._graph_key is None or (self._changes and not self._keeps_changed):
            return None
        return self._cache.variant_key(self._graph_key, bound, [arguments[i] for i in bound])

    def _variant(self, pure: PureGraph, arguments: Sequence[Any]) -> Variant:
        """Return the graph with the constants of these arguments, compiled if there is none."""
        if self._latest is None or not self._latest.watch.are_same(arguments):
            self._latest = self._fitting(pure, arguments)
        return self._latest

    def _fitting(self, pure: PureGraph, arguments: Sequence[Any]) -> Variant:
        bound = self._bound(pure, arguments)
        key = tuple(id(arguments[i]) for i in bound)
        if key in self._variants:
            changes = {key: self._variants[key].changed(arguments)}
        else:
            changes = {known: variant.watch.gone() for known, variant in self._variants.items()}
        stale = {known: positions for known, positions in changes.items() if positions}
        for known, positions in stale.items():
            self._changes.update(positions)
            del self._variants[known]
        if stale:
            return self._fitting(pure, arguments)
        if key not in self._variants:
            self._variants[key] = self._compile(pure, arguments, bound)
        return self._variants[key]

    def _bound(self, pure: PureGraph, arguments: Sequence[Any]) -> list[int]:
        """Return which arguments are constants."""
        return [
            i
            for i in pure.takes
            if pure.is_weight(i)
            and i not in pure.written
            and self._changes[i] < 2
            and not arguments[i].is_inference()  # Their changes are not counted.
        ]

    def _compile(self, pure: PureGraph, arguments: Sequence[Any], bound: Sequence[int]) -> Variant:
        # Before anything else: what is changed from here on counts as changed.
        kind = FrozenWeights if self._settings["freezing"] else WeightWatch
        watch = kind({i: arguments[i] for i in bound})
        varying = [i for i in pure.takes if i not in bound]
        key = self._key(arguments, bound)
        if (kept := self._kept(varying, watch, key)) is not None:
            return kept
        return self._made(pure, arguments, varying, watch, key)

    def _made(
        self,
        pure: PureGraph,
        arguments: Sequence[Any],
        varying: list[int],
        watch: WeightWatch | FrozenWeights,
        key: str | None,
    ) -> Variant:
        """Export and compile the graph."""
        # Late: PyTorch imports this module to list its backends. The compiler takes seconds to import.
        from collage.compiler.pipeline import compile
        from collage.frontend import read_model
        from collage.measure.estimator import model_tolerance

        wanted, menu = self._settings["options"], self._settings["targets"]
        settings = {name: self._settings[name] for name in ("toolchains", "workers") if name in self._settings}
        began = time.monotonic()
        with _progress(len(self._graph.graph.nodes), "say" in self._settings):
            program, guards = exported_bound(pure, arguments, watch.positions)
            model = read_model(program)
            try:
                options = with_lengths(wanted, model, [arguments[i] for i in varying])
                executable = compile(model, menu, options=options, **settings)
            except InputError as error:
                if wanted.inputs or wanted.dims:
                    raise
                raise ModelError(f"its inputs cannot be measured with: {error}") from error
        self._tell(f"compiled in {time.monotonic() - began:.1f} s")
        tolerance = max(model_tolerance(model), options.accuracy_budget or 0)
        if self._cache is None or key is None or not self._cache.keep(key, executable):
            key = None
        # At these lengths it was exported, even if its conditions have a form that is not known here.
        suited = {pure.lengths(arguments): True}
        variant = Variant(executable, varying, watch, guards, tolerance, key, suited)
        self._note_lengths(variant)
        return variant

    def _kept(self, varying: list[int], watch: WeightWatch | FrozenWeights, key: str | None) -> Variant | None:
        """Return the graph as the cache has it; None if it does not."""
        if self._cache is None or key is None or (kept := self._cache.variant(key)) is None:
            return None
        facts, executable = kept
        variant = Variant(executable, varying, watch, facts.guards, facts.tolerance, key)
        self._heed(variant, facts)
        return variant

    def _heed(self, variant: Variant, facts: VariantFacts) -> None:
        """Use what another process, or another thread, noted about a compiled graph."""
        variant.suited.update(dict.fromkeys(facts.suited, True))
        variant.specialised = facts.specialised
        if facts.raced_on == _here():
            self._is_eager = {**dict(facts.raced), **self._is_eager}

    def _computed(self, pure: PureGraph, variant: Variant, arguments: Sequence[Any]) -> list[torch.Tensor]:
        inputs = [arguments[i] for i in variant.varying]
        try:
            results = variant.executable.run([value if _is_tensor(value) else np.int64(value) for value in inputs])
        except UsageError as error:
            raise ModelError(f"the exported graph does not accept its inputs: {error}") from error
        return pure.restored([as_torch(value) for value in results.values()])

    def _check(self, pure: PureGraph, variant: Variant, arguments: Sequence[Any], computed: Sequence[Any]) -> None:
        """Compare results with PyTorch's in the first calls.

        Raises:
            WrongAnswer: They differ.
        """
        lengths = pure.lengths(arguments)
        if lengths in variant.checked or len(variant.checked) >= CHECKED_CALLS:
            return
        own = [value.clone() if i in pure.written else value for i, value in enumerate(arguments)]
        outputs = pure.outputs_of(self._graph.forward(*own))
        right = [*(own[i] for i in pure.written), *outputs]
        evidence: Sequence[Evidence] = ()
        for number, (value, expected) in enumerate(zip(computed, right, strict=True)):
            if value.dtype != expected.dtype:
                raise WrongAnswer(f"the compiled graph returns {value.dtype}, not {expected.dtype}")
            found = judge(as_numpy(value), as_numpy(expected), variant.tolerance)
            if found.is_open:
                evidence = evidence or eager_evidence(self._graph.forward, pure, arguments, right)
                found = judge(as_numpy(value), as_numpy(expected), variant.tolerance, evidence=evidence[number])
            if not found.ok:
                raise WrongAnswer(f"the compiled graph and PyTorch's differ: {found.reason}")
        variant.checked.add(lengths)

    def _check_lengths(self, arguments: Sequence[Any]) -> None:
        """Raise ModelError if the same code was compiled for several other lengths, and so will be for more."""
        nodes = list(self._graph.graph.nodes)
        weights = weights_of(self._graph, arguments)
        if any(isinstance(value, int) for value in arguments):
            return  # Its lengths are symbolic.
        family = (
            self._frame,
            tuple((node.op, str(node.target)) for node in nodes),
            tuple(id(arguments[i]) for i in sorted(weights)),
        )
        seen = _SEEN.setdefault(family, set())
        lengths = tuple(tuple(value.shape) for i, value in enumerate(arguments) if i not in weights)
        if lengths not in seen and len(seen) >= _STATIC_LENGTHS:
            raise ModelError(
                f"it was compiled for {len(seen)} other sets of lengths; without dynamic=False, one compilation does for all"
            )
        seen.add(lengths)

    def _leave(self, reason: str) -> None:
        self._is_left = True
        self._latest = None
        self._variants.clear()
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"collage leaves a graph to PyTorch: {reason}", RuntimeWarning, stacklevel=4)


_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def _unlock_all() -> None:
    for graph in list(_graphs):
        graph.unlock()


in_forks(_unlock_all)


def pure_graph(graph: torch.fx.GraphModule, arguments: Sequence[Any], known: GraphFacts | None = None) -> PureGraph:
    """Return a graph without its side effects; raise ModelError if it cannot be taken apart."""
    try:
        return PureGraph(graph, arguments, known)
    except CollageError:
        raise
    except Exception as error:  # PyTorch's, about tensors of kinds that have no memory of their own.
        from collage.frontend._torch import reason_of  # Late for the same reason.

        raise ModelError(f"PyTorch cannot take it apart: {reason_of(error)}") from error


def _check_arguments(arguments: Sequence[Any]) -> None:
    for value in arguments:
        if _is_tensor(value) and (value.layout is not torch.strided or value.device.type != "cpu"):
            raise ModelError(f"it takes a {value.layout} tensor on {value.device}")


@contextmanager
def _progress(count: int, is_told: bool) -> Iterator[None]:
    """Say on stderr that a graph is being compiled, once, if that takes long and the user has no other report of it."""
    line = f"collage: compiling a graph of {count} operators for torch.compile, which can take minutes"
    timer = threading.Timer(PATIENCE_S, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    if not is_told:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _here() -> str:
    """Return the facts besides the graph that a race depends on: the machine, and PyTorch's number of threads."""
    return f"{this_machine().fingerprint} {torch.get_num_threads()}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
