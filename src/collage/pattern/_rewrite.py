"""Rewrite rules, and applying them to a model, once or to a fixed point.

The model that is given is never changed: rules work on a copy, and if anything is raised the copy is dropped. Each
single replacement is all or nothing too: it is built beside the graph, checked, and only then put in.
"""

from __future__ import annotations

import gc
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import onnx_ir as ir

from collage._errors import CollageError, PatternError
from collage.graph import PRIMITIVE, NameSupply, bodies, copy_model
from collage.pattern import _match, _numeric, _replace, _symmetry
from collage.pattern._base import Pattern, PatternLike
from collage.pattern._builder import Builder, NotApplicable
from collage.pattern._nodes import OpPattern
from collage.pattern._plan import Plan, compile_pattern
from collage.pattern._scope import Scope, label, scopes_of
from collage.pattern._solver import Budget, MatchBudgetExceeded, Solver
from collage.pattern._types import Types

Replacement = Mapping[PatternLike | ir.Value, ir.Value] | Iterable[tuple[PatternLike | ir.Value, ir.Value]]
"""Replacements: for a pattern, its node's first output is replaced; for a value, that value."""

MAX_DEPTH = 100
"""Most replacements of a replacement before a rewrite counts as endless.

The model's own nodes have depth 0, and the replacement of a match is one deeper than the shallowest node of the match. There
are finitely many nodes of each depth, so a rewrite without end gets ever deeper; one that moves through a large model
slowly does not.
"""

# So many sets of alike parts are listed and ranked; each takes about a millisecond. More are taken one after the other.
MAX_LISTED = 2000
MAX_ORDERS = 24
"""Most assignments of interchangeable patterns to one set of nodes that a rule gets."""

GROWTH = 4
"""Largest growth of a model, as a factor, before a rewrite counts as endless."""


class RewriteLoop(PatternError):
    """Rules undo each other, or feed themselves, so that rewriting has no end.

    Attributes:
        rules: Names of the rules that take part, in the order of their first application in the loop.
    """

    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Application:
    """The result of one match.

    Attributes:
        rule: Name of the rule.
        nodes: Names of the matched nodes.
        new_nodes: Names of the nodes put in their place; empty if nothing was changed.
        reason: The reason why nothing was changed; None if it was.
    """

    rule: str
    nodes: tuple[str, ...]
    new_nodes: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """A rewritten model and how it came about.

    Attributes:
        model: The new model.
        applied: Replacements, in order.
        refused: Matches of the last round that were left alone, with reasons.
        rounds: Number of passes of the rules over the model.
    """

    model: ir.Model
    applied: tuple[Application, ...]
    refused: tuple[Application, ...]
    rounds: int

    def to_text(self) -> str:
        """Return the replacements that were made and those that were not, one line each."""
        lines = [f"{a.rule}: {', '.join(a.nodes)} -> {', '.join(a.new_nodes) or 'nothing new'}" for a in self.applied]
        lines += [f"{a.rule}: {', '.join(a.nodes)} left alone: {a.reason}" for a in self.refused]
        return "\n".join(lines)


class RewriteRule(ABC):
    """One rewrite: a pattern, and the replacement of its matches. Subclass it, set ``pattern``, write ``callback``.

    Attributes:
        name: Name in messages and in the metadata of new nodes; the class's name unless set.
        pattern: The pattern to find.
        fuzzy_ops: Operator types that the match may skip.
        keeps_used_nodes: True if matched nodes that are used elsewhere may stay beside their replacement, so that work
            is done twice. False refuses such a match.
    """

    name: str = ""
    pattern: PatternLike
    fuzzy_ops: tuple[str, ...] = ()
    keeps_used_nodes: bool = False

    @abstractmethod
    def callback(self, match: _match.Match, op: Builder) -> Replacement | None:
        """Build the replacement of one match.

        Args:
            match: The matched nodes and values. ``match[pattern]`` and ``match["name"]`` give values, ``match.node(pattern)``
                nodes. Nothing of it may be changed.
            op: Makes new nodes: ``op.Conv(x, w, kernel_shape=[1, 1])``.

        Returns:
            One pair (old value, new value) for each value that is used outside the match; None for no change.

        Raises:
            NotApplicable: No change is wanted; the error has the reason.
        """

    def __call__(self, model: ir.Model, iterative: bool = False) -> ir.Model:
        """The model with this rule applied: to every match once, or until nothing matches any more."""
        return self.apply(model, iterative=iterative).model

    def apply(self, model: ir.Model, iterative: bool = False) -> RewriteResult:
        """Apply the rule as a call does; also return where it was applied, and where it was not and why."""
        return rewrite(model, [self], iterative=iterative)

    @property
    def label(self) -> str:
        """The name, or else the class's name."""
        return self.name or type(self).__name__


def rewrite(
    model: ir.Model,
    rules: RewriteRule | Sequence[RewriteRule],
    *,
    iterative: bool = True,
    disabled: Iterable[str] = (),
    verify: bool = False,
    budget: int | None = None,
    in_place: bool = False,
) -> RewriteResult:
    """Applies rules to every graph, body and function of a model.

    Args:
        model: The model; it is not changed. So a dry run is a run whose result's model is not used.
        rules: The rules; where two match, the earlier one comes first.
        iterative: True repeats until no rule changes anything; False goes over the model once.
        disabled: Labels of rules to leave out.
        verify: True runs the matched nodes and their replacement on random inputs, and refuses a replacement with other
            results.
        budget: Search steps allowed for each rule in each graph, None takes the default. A search that needs more is
            stopped: what it found is rewritten, and an entry of ``refused`` says so.
        in_place: True changes the model that is given, which saves the time of a copy. If anything is raised, it is left with the
            replacements that were made until then.

    Raises:
        RewriteLoop: The rules have no fixed point.
        PatternError: A rule's callback failed, or returned something other than a replacement. Or no rule has a disabled label.
    """
    if not isinstance(model, ir.Model):
        raise PatternError(f"rewrite() takes an onnx_ir.Model, not a {type(model).__name__}")
    rules = [rules] if isinstance(rules, RewriteRule | type) else list(rules)
    for rule in rules:
        if not isinstance(rule, RewriteRule):
            raise PatternError(f"{rule!r} is not a rule; give instances of subclasses of RewriteRule")
        if not isinstance(getattr(rule, "pattern", None), PatternLike):
            raise PatternError(f"rule {rule.label!r} has no pattern; set self.pattern in its __init__")
    wanted = _enabled(rules, disabled)
    with _collector_paused():
        return _rewritten(model if in_place else copy_model(model), wanted, iterative, verify, budget)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the collection of cycles: for the objects of a copy, it would look at all others several times.

    By ``benchmarks.pattern_speed``, a rule on 6,000 nodes takes 0.70 s in place of 1.15 s.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _rewritten(
    model: ir.Model, wanted: Sequence[RewriteRule], iterative: bool, verify: bool, budget: int | None
) -> RewriteResult:
    run = _Run(model, [(rule, compile_pattern(rule.pattern)) for rule in wanted], verify, budget)
    seen: dict[str, int] = {}
    limit = GROWTH * run.size + 1000
    rounds = 0
    while True:
        rounds += 1
        count = len(run.applied)
        run.refused.clear()
        run.sweep()
        if len(run.applied) == count or not iterative:
            break
        if rounds > 1:  # Most rewrites end after the first. One without end comes back to a later model too.
            since = seen.setdefault(_fingerprint(model, run.tensors), len(run.applied))
            if since < len(run.applied):
                raise _loop(run.applied[since:], "came back to a model that it had before")
        if run.deepest > MAX_DEPTH or run.size > limit:
            raise _loop(run.applied[count:], f"found no end in {rounds} rounds, at {run.size} nodes")
    return RewriteResult(run.model, tuple(run.applied), tuple(run.refused), rounds)


def _enabled(rules: list[RewriteRule], disabled: Iterable[str]) -> list[RewriteRule]:
    off = {disabled} if isinstance(disabled, str) else set(disabled)
    labels = [rule.label for rule in rules]
    if unknown := sorted(off.difference(labels)):
        raise PatternError(f"no rule is called {unknown[0]!r}; there are {', '.join(labels)}")
    return [rule for rule in rules if rule.label not in off]


class _Run:
    """The state of one rewrite."""

    def __init__(
        self, model: ir.Model, rules: list[tuple[RewriteRule, Plan]], verify: bool, budget: int | None
    ) -> None:
        self.model = model
        self.verify = verify
        self.budget = budget
        self.types = Types(model)
        self.rules = rules
        self.applied: list[Application] = []
        self.refused: dict[Application, None] = {}
        self.tensors: dict[int, object] = {}
        self.deepest = 0
        self._depths: dict[ir.Node, int] = {}
        graphs = [scope.graph for scope in scopes_of(model)]
        self.size = sum(map(len, graphs))
        self.names = NameSupply(reserved=_names(graphs))

    def sweep(self) -> None:
        """Goes over the model once, rule by rule; functions that are kernels are left alone."""
        kernels = {f.graph for f in self.model.functions.values() if PRIMITIVE in f.metadata_props}
        for rule, plan in self.rules:
            for scope in list(scopes_of(self.model, rule.fuzzy_ops)):
                if scope.graph not in kernels:
                    self._apply(rule, plan, scope)

    def _apply(self, rule: RewriteRule, plan: Plan, scope: Scope) -> None:
        if scope.nodes != tuple(scope.graph):
            scope.graph.sort()
            scope = scope.renewed()
        budget = Budget(rule.pattern, scope, self.budget)
        rewritten: set[ir.Node] = set()  # with what replaced them
        tried: set[tuple[object, ...]] = set()
        # One match for each set of nodes first: where that is refused, another assignment may still apply.
        modes = (_match.SETS, "all") if _symmetry.classes(plan) else ("all",)
        for mode in modes:
            touched: set[ir.Value] = set()
            orders: Counter[frozenset[ir.Node]] = Counter()
            matches, is_cut = self._found(rule, plan, scope, budget, mode)
            if is_cut and mode == _match.SETS:
                scope = self._one_by_one(rule, plan, scope, rewritten)
                budget = Budget(rule.pattern, scope, self.budget)
                continue
            # Not only disjoint matches: where one is refused, others that overlap with it may still apply.
            for found in matches:
                assignment = (found.root, *map(found.node_of.get, plan.order))
                places = frozenset(found.nodes)
                is_enough = len(modes) > 1 and orders[places] >= MAX_ORDERS
                if is_enough or assignment in tried or not rewritten.isdisjoint(places):
                    continue
                tried.add(assignment)
                orders[places] += 1
                current: _match.Match | None = found
                if touched and touched.intersection(_values_of(found)):
                    current = _again(found, plan, scope)
                if current is not None:
                    edit = self._checked(rule, current, scope)
                    if edit is not None:
                        touched |= edit.gone if plan.is_local else edit.touched
                        rewritten.update(found.nodes, edit.new_nodes)
                        scope = self._commit(rule, current, edit, scope)

    def _found(
        self, rule: RewriteRule, plan: Plan, scope: Scope, budget: Budget, mode: str
    ) -> tuple[list[_match.Match], bool]:
        """The matches in the order in which they are tried; and True if they are not all."""
        matches: list[_match.Match] = []
        most = MAX_LISTED if mode == _match.SETS else None
        try:
            matches += islice(_match.iterate_in(plan, scope, mode, budget), most)
            is_cut = len(matches) == most
        except MatchBudgetExceeded:
            is_cut = True
            if mode != _match.SETS:
                which = "the search for further assignments" if matches else "the search"
                self._stopped(
                    rule, f"{which} was stopped after {budget.steps} steps, with {len(matches)} matches found"
                )
        return _match.ranked(matches, scope), is_cut

    def _one_by_one(self, rule: RewriteRule, plan: Plan, scope: Scope, rewritten: set[ir.Node]) -> Scope:
        """Apply a rule to the first match that it takes, and so on, if there are too many matches to list.

        Each search begins anew, without the nodes that were rewritten, so most sets of many alike parts are never looked at.

        Returns:
            The scope after that.
        """
        refused: set[tuple[object, ...]] = set()
        while True:
            budget, made = Budget(rule.pattern, scope, self.budget), False
            try:
                for found in _match.iterate_in(plan, scope, _match.SETS, budget, rewritten):
                    assignment = (found.root, *map(found.node_of.get, plan.order))
                    if assignment in refused or not rewritten.isdisjoint(found.nodes):
                        continue
                    edit = self._checked(rule, found, scope)
                    if edit is None:
                        refused.add(assignment)
                        continue
                    rewritten.update(found.nodes, edit.new_nodes)
                    scope, made = self._commit(rule, found, edit, scope), True
                    break
            except MatchBudgetExceeded:
                self._stopped(
                    rule, f"the search was stopped after {budget.steps} steps without a match that the rule takes"
                )
            if not made:
                return scope

    def _stopped(self, rule: RewriteRule, reason: str) -> None:
        self.refused[Application(rule.label, (), reason=reason)] = None

    def _checked(self, rule: RewriteRule, match: _match.Match, scope: Scope) -> _replace.Edit | None:
        """The replacement of one match, or None if the rule or a check refuses it."""
        builder = Builder(rule.label, self.names.fresh)
        try:
            replaced = _replacement(rule, match, builder)
            if not replaced:
                raise NotApplicable("the rule makes no change here")
            edit = _replace.plan_edit(
                match, builder, replaced, scope, self.types, keeps_used_nodes=rule.keeps_used_nodes
            )
            if self.verify:
                _numeric.check(edit, match, scope)
            return edit
        except NotApplicable as refusal:
            builder.discard()
            self.refused[Application(rule.label, _names_of(match.nodes), reason=str(refusal))] = None
            return None

    def _commit(self, rule: RewriteRule, match: _match.Match, edit: _replace.Edit, scope: Scope) -> Scope:
        imports = [self.model.graph.opset_imports, scope.opset_imports]
        names = _names_of(match.nodes)
        depth = 1 + min(self._depths.get(node, 0) for node in match.nodes)
        self.deepest = max(self.deepest, depth)
        for node in (*match.nodes, *edit.new_nodes):
            self._depths[node] = max(depth, self._depths.get(node, 0))
        scope = _replace.commit(edit, rule.label, imports, self.names.fresh, scope, self.model.ir_version >= 4)
        self.types.forget_calls(edit.new_nodes)
        self.applied.append(Application(rule.label, names, _names_of(edit.new_nodes)))
        self.size += len(edit.new_nodes) - len(edit.removed)
        return scope


def _names_of(nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    return tuple(label(node) for node in nodes)


def _replacement(rule: RewriteRule, match: _match.Match, builder: Builder) -> dict[ir.Value, ir.Value]:
    """Return the replacements that the callback returns, an empty mapping if it makes no change.

    Raises:
        PatternError: The callback failed, or returned something other than a replacement.
    """
    where = f"rule {rule.label!r} at {match!r}"
    try:
        result = rule.callback(match, builder)
    except (NotApplicable, CollageError):
        raise
    except Exception as error:
        raise PatternError(f"{where} failed: {type(error).__name__}: {error}") from error
    if result is None or isinstance(result, bool):
        return {}
    expected = f"{where} must return pairs of a pattern or value and a new value, or None"
    if not isinstance(result, Mapping | Iterable) or isinstance(result, str | ir.Value | ir.Node):
        raise PatternError(f"{expected}, not {result!r}")
    replaced: dict[ir.Value, ir.Value] = {}
    for pair in result.items() if isinstance(result, Mapping) else result:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], ir.Value):
            raise PatternError(f"{expected}, not {pair!r}")
        old, new = pair
        if isinstance(old, PatternLike):
            if old not in match:
                raise PatternError(f"{where} replaces {old!r}, which is not a part of the match")
            old = match[old]
        if not isinstance(old, ir.Value):
            raise PatternError(f"{expected}, not {pair!r}")
        if old in replaced:
            raise PatternError(f"{where} replaces value {old.name!r} twice")
        if old is not new:
            replaced[old] = new
    return replaced


def _again(found: _match.Match, plan: Plan, scope: Scope) -> _match.Match | None:
    """Return the same match in the graph as it is now, None if it no longer exists."""
    if any(node.graph is not scope.graph for node in found.nodes):
        return None
    places: dict[Pattern, dict[ir.Node, None]] = {
        pattern: {node: None} for pattern, node in found.node_of.items() if isinstance(pattern, OpPattern)
    }
    solver = Solver(plan, scope, Budget(plan.root, scope), places)
    try:
        matches = _match.matches_at(solver, found.root)
        return next((m for m in matches if m.node_of == found.node_of), None)
    except MatchBudgetExceeded:
        return None


def _values_of(found: _match.Match) -> set[ir.Value]:
    made = (value for node in found.nodes for value in (*node.inputs, *node.outputs) if value is not None)
    return {*found.bound.values(), *made}


def _loop(applied: Iterable[Application], what: str) -> RewriteLoop:
    counts = Counter(application.rule for application in applied)
    rules = tuple(counts)
    listed = " -> ".join((*rules, rules[0])) if rules else ""
    error = RewriteLoop(
        f"rewriting {what}: {listed}. Let a rule refuse what another has made (match.node(p).metadata_props "
        f"names the rule under {_replace.RULE_KEY!r}), or apply the rules once (iterative=False)."
    )
    error.rules = rules
    return error


def _names(graphs: Iterable[ir.Graph]) -> set[str]:
    names: set[str] = set()
    for graph in graphs:
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            names.add(value.name or "")
        names.update(node.name or "" for node in graph)
    return names


def _fingerprint(model: ir.Model, tensors: dict[int, object]) -> str:
    """Return a digest of the model's computation that does not depend on names or on the order of nodes."""
    digests: dict[ir.Value, str] = {}
    parts = [_digest_graph(model.graph, digests, tensors)]
    parts += [f"{key}:{_digest_graph(f.graph, digests, tensors)}" for key, f in sorted(model.functions.items())]
    return _hash(*parts)


def _digest_graph(graph: ir.Graph, digests: dict[ir.Value, str], tensors: dict[int, object]) -> str:
    for index, value in enumerate(graph.inputs):
        digests[value] = f"input {index}"
    for value in graph.initializers.values():
        tensors[id(value.const_value)] = value.const_value
        digests.setdefault(value, f"constant {id(value.const_value)}")
    made: list[str] = []
    for node in Scope(graph).nodes:
        inner = [_digest_graph(body, digests, tensors) for body in bodies(node)]
        attributes = [f"{a.name}={a.value!r}" for a in node.attributes.values() if not _is_body(a)]
        inputs = ["" if value is None else digests.get(value, value.name or "") for value in node.inputs]
        digest = _hash(node.domain, node.op_type, *sorted(attributes), *inner, "|", *inputs)
        made.append(digest)
        digests.update({value: f"{digest}.{index}" for index, value in enumerate(node.outputs)})
    return _hash(*sorted(made), "|", *(digests.get(value, "") for value in graph.outputs))


def _is_body(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
