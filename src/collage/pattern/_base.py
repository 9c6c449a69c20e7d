"""The methods and operators that every pattern has, and the sequences that they make.

Refining a pattern (``has_attr``, a call, ``|``) gives a new pattern. Relating patterns (``^``, ``>>``, ``attr_eq``,
``extern_use``) records a constraint on those that take part, and any of them then stands for the whole.

Methods that make node patterns, or search for matches, import ``_nodes`` and ``_match`` late. Both need the base
classes of this file. ``pyproject.toml`` lists these imports as the exceptions of the contract against circles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx_ir as ir

from collage._errors import PatternError
from collage.pattern import _constraints
from collage.pattern._predicates import Predicate, attr_is, dtype_is, rank_is, shape_is
from collage.pattern._scope import GraphLike

if TYPE_CHECKING:
    from collage.pattern._match import Match


class PatternLike:
    """A pattern, or a sequence of patterns that is used as one."""

    @property
    def first(self) -> Pattern:
        """The pattern that producers connect to."""
        raise NotImplementedError

    @property
    def last(self) -> Pattern:
        """The pattern that users connect to."""
        raise NotImplementedError

    @property
    def elements(self) -> tuple[Pattern, ...]:
        """The patterns in the order in which data flows through them."""
        raise NotImplementedError

    def __call__(self, *operands: Any) -> Pattern:
        """Give an operator its operands.

        Raises:
            PatternError: The pattern is not an operator.
        """
        raise PatternError(f"{self!r} takes no operands; is_op('Conv')(...) and any_op()(...) do")

    __array_ufunc__ = None  # NumPy's numbers and arrays leave arithmetic with patterns to the patterns

    # ------------------------------------------------------------------ use and def

    def used_by(self, user: PatternLike, index: int | None = None) -> Seq:
        """``self ^ user``: the user has this value as an operand, as operand number ``index`` if given."""
        relate(_constraints.UsedBy(self.last, pattern_of(user).first, index))
        return Seq(*self.elements, *user.elements)

    def only_used_by(self, user: PatternLike, index: int | None = None) -> PdomSeq:
        """``self >> user``: ``used_by`` with the condition that nothing else uses this value, neither an output nor a body."""
        relate(_constraints.OnlyUsedBy(self.last, pattern_of(user).first, index))
        return PdomSeq(*self.elements, *user.elements)

    def oub(self, user: PatternLike) -> PatternLike:
        """``only_used_by``, returning the producer, as ``oub`` of the Relax proposal does."""
        self.only_used_by(user)
        return self

    def fork_to(self, *users: PatternLike | Iterable[Any]) -> PatternLike:
        """This value is used by each of the users (by the first pattern of a sequence). Returns the producer."""
        for user in flatten(users):
            self.used_by(user)
        return self

    def dominates(self, parent: PatternLike, path: Pattern | None = None) -> PatternLike:
        """Every way from ``parent`` leads to this node, and only through nodes that match ``path`` (None: any nodes).

        Walking back from this node's inputs, every computed value is made by ``parent``, or by a node that matches
        ``path`` and gets something from ``parent`` in turn. Inputs and constants on the way are passed over. ``parent``
        and the nodes in between have no other use. Returns this pattern.
        """
        from collage.pattern._nodes import wildcard

        relate(_constraints.Dominates(self.first, parent.last, wildcard() if path is None else path))
        return self

    def __xor__(self, user: PatternLike) -> Seq:
        return self.used_by(user)

    def __gt__(self, user: PatternLike) -> Seq:
        return self.used_by(user)

    def __rshift__(self, user: PatternLike) -> PdomSeq:
        return self.only_used_by(user)

    def __bool__(self) -> NoReturn:
        raise PatternError(
            "a pattern is neither true nor false. Python reads `a > b > c` as `(a > b) and (b > c)`: write "
            "`a ^ b ^ c`, `(a > b) > c` or `Seq(a, b, c)`. For `not p`, `p and q`, `p or q` "
            "write `~p`, `p & q`, `p | q`."
        )

    # ------------------------------------------------------------------ constraints

    def attr_eq(self, *others: PatternLike | Iterable[Any], names: Sequence[str] | None = None) -> PatternLike:
        """Attributes equal those of the others, element by element between sequences.

        Args:
            others: Patterns or sequences as long as this one.
            names: Attributes to compare; None means all. Defaults of the operator's schema are filled in first.
        """
        attr_eq(self, *others, names=names)
        return self

    def uniq(self) -> PatternLike:
        """The value has exactly one user: the first pattern that uses it. A second use raises PatternError."""
        if not self.last.is_unique:
            self.last.is_unique = True
            relate(_constraints.Uniq(self.last))
            users = list(dict.fromkeys(self.last.known_users))
            self.last.known_users.clear()
            for user in users:
                _note_use(self.last, user)
        return self

    def extern_use(self, must: bool | None) -> PatternLike:
        """Demand (True), forbid (False) or allow (None, the default) uses of this value outside the match."""
        _constraints.check_mode(must)
        self.last.constraints[:] = [c for c in self.last.constraints if not isinstance(c, _constraints.ExternUse)]
        relate(_constraints.ExternUse(self.last, must))
        return self

    def no_consumer(self, excluded: Pattern) -> PatternLike:
        """Universal exclusion: no user of this value matches ``excluded`` (``a ^ ~b`` asks for one that does not)."""
        relate(_constraints.NoConsumer(self.last, excluded), on=(self.last,))
        return self

    def same_shape(self, *others: PatternLike) -> PatternLike:
        """Shapes are known and equal; a symbolic dimension equals only itself."""
        relate(_constraints.SameShape((self.last, *(other.last for other in others))))
        return self

    def distinct(self, *others: PatternLike) -> PatternLike:
        """The values differ pairwise (wildcards may coincide unless told not to)."""
        relate(_constraints.Distinct((self.last, *(other.last for other in others))))
        return self

    def add_graph_constraint(self, constraint: _constraints.NonLeafExternUse) -> PatternLike:
        """Add a constraint on the whole pattern that this pattern is a part of.

        Raises:
            PatternError: It is not a graph constraint.
        """
        if not isinstance(constraint, _constraints.NonLeafExternUse):
            raise PatternError(
                f"{constraint!r} is not a graph constraint; there is _constraints.NonLeafExternUse(True or False)"
            )
        self.last.constraints.append(constraint)
        return self

    # ------------------------------------------------------------------ operands and arithmetic

    def __add__(self, other: Any) -> Pattern:
        return _arithmetic("Add", self, other)

    def __radd__(self, other: Any) -> Pattern:
        return _arithmetic("Add", other, self)

    def __sub__(self, other: Any) -> Pattern:
        return _arithmetic("Sub", self, other)

    def __rsub__(self, other: Any) -> Pattern:
        return _arithmetic("Sub", other, self)

    def __mul__(self, other: Any) -> Pattern:
        return _arithmetic("Mul", self, other)

    def __rmul__(self, other: Any) -> Pattern:
        return _arithmetic("Mul", other, self)

    def __truediv__(self, other: Any) -> Pattern:
        return _arithmetic("Div", self, other)

    def __rtruediv__(self, other: Any) -> Pattern:
        return _arithmetic("Div", other, self)

    def __pow__(self, other: Any) -> Pattern:
        return _arithmetic("Pow", self, other)

    def __matmul__(self, other: Any) -> Pattern:
        return _arithmetic("MatMul", self, other)

    def __neg__(self) -> Pattern:
        return _arithmetic("Neg", self)

    # ------------------------------------------------------------------ combinations

    def __or__(self, other: PatternLike) -> Pattern:
        from collage.pattern._nodes import OrPattern

        return OrPattern((self.last, pattern_of(other).last))

    def __and__(self, other: PatternLike) -> Pattern:
        from collage.pattern._nodes import AndPattern

        return AndPattern((self.last, pattern_of(other).last))

    def __invert__(self) -> Pattern:
        from collage.pattern._nodes import NotPattern

        return NotPattern(self.last)

    def optional(self, wrap: Callable[[Pattern], PatternLike]) -> Pattern:
        """This pattern, or the pattern that ``wrap`` builds on it."""
        return self | wrap(self.last)

    # ------------------------------------------------------------------ matching

    def match(
        self,
        at: ir.Node | ir.Value,
        *,
        fuzzy_ops: Iterable[str] = (),
        budget: int | None = None,
        within: GraphLike | ir.Model | None = None,
    ) -> Match | None:
        """Matches with this pattern (the last one of a sequence) at a node or value.

        Args:
            at: The node or value that the pattern's root must match. A node stands for its first output.
            fuzzy_ops: Operator types that may be skipped, such as ``Cast``; only their first input is followed.
            budget: Search steps allowed; None takes the default.
            within: The model, or a graph around. It is needed only for a body of a control-flow node that captures
                nothing and so does not lead to the graphs around it, which have its opset.

        Returns:
            The match with the most nodes, ties broken by the nodes' order in the graph, or None.

        Raises:
            MatchBudgetExceeded: The search grew beyond its budget.
        """
        from collage.pattern import _match

        return _match.match(self, at, fuzzy_ops, budget, within)

    def find_all(
        self,
        graph: GraphLike | ir.Model,
        mode: str = "all",
        *,
        fuzzy_ops: Iterable[str] = (),
        budget: int | None = None,
        within: GraphLike | ir.Model | None = None,
    ) -> list[Match]:
        """Return every match in a graph. In a model, its main graph, bodies and functions are searched separately.

        Args:
            graph: The graph or model to search.
            mode: ``all``: one match for each assignment of node patterns to nodes. ``sets``: the same, in one order of
                parts that are alike and interchangeable. ``maximal``: one for each set of nodes that is not part of a
                larger match. ``disjoint``: no node twice, larger matches first.
            fuzzy_ops: As for ``match``.
            budget: Search steps allowed per graph; None takes the default.
            within: As for ``match``, where ``graph`` is a body.

        Raises:
            MatchBudgetExceeded: The search grew beyond its budget; its ``found`` holds the matches so far.
        """
        from collage.pattern import _match

        return _match.find_all(self, graph, mode, fuzzy_ops, budget, within)


class Pattern(PatternLike):
    """One place of a pattern graph: it stands for one value, or for one node.

    Two pattern objects are different places even if they look alike; the same object used twice is one place.

    Attributes:
        name: Name of the capture, or None.
        predicates: Tests of the value itself.
        constraints: The constraints that relate this pattern to others.
        is_unique: Set by ``uniq``.
        known_users: Patterns that were built upon this one, in order.
    """

    def __init__(self, name: str | None = None, predicates: tuple[Predicate, ...] = ()) -> None:
        self.name = name
        self.predicates = predicates
        self.constraints: list[_constraints.Constraint | _constraints.NonLeafExternUse] = []
        self.is_unique = False
        self.known_users: list[Pattern] = []

    @property
    def first(self) -> Pattern:
        """This pattern."""
        return self

    @property
    def last(self) -> Pattern:
        """This pattern."""
        return self

    @property
    def elements(self) -> tuple[Pattern, ...]:
        """This pattern."""
        return (self,)

    @property
    def children(self) -> tuple[Pattern, ...]:
        """Patterns that must match wherever this one does: operands, parts of a conjunction."""
        return ()

    def clone(self, child: Callable[[Pattern], Pattern]) -> Pattern:
        """A fresh pattern of the same meaning over other children, with predicates, without name or constraints."""
        raise NotImplementedError

    def describe(self) -> str:
        """The pattern as text, without predicates."""
        raise NotImplementedError

    def __repr__(self) -> str:
        tests = "".join(f" with {predicate.text}" for predicate in self.predicates)
        name = f"{self.name}: " if self.name else ""
        return f"<{name}{self.describe()}{tests}>"

    # ------------------------------------------------------------------ refinements: each gives a new pattern

    def _refined(self, *predicates: Predicate, name: str | None = None) -> Pattern:
        if self.constraints:
            raise PatternError(
                f"{self!r} is already related to other patterns; a refinement makes a new pattern that would not be. "
                "Refine first (has_attr, has_dtype, named, a call), then relate (^, >>, attr_eq, uniq)."
            )
        new = self.clone(lambda child: child)
        new.predicates = (*self.predicates, *predicates)
        new.name = name or self.name
        return new

    def named(self, name: str) -> Pattern:
        """The same pattern with a name. ``match[name]`` is the value that it matched."""
        return self._refined(name=name)

    def has_attr(self, attributes: dict[str, Any] | None = None, **more: Any) -> Pattern:
        """The node has these attribute values among others; defaults count, also those that ONNX states in words.

        Raises:
            PatternError: A misspelt attribute: no version of these standard operators has it, and one is called nearly that.
        """
        wanted = {**(attributes or {}), **more}
        self._check_attributes(wanted)
        return self._refined(*(attr_is(name, value) for name, value in wanted.items()))

    def _check_attributes(self, names: Iterable[str]) -> None:
        """Refuse names of attributes that nothing at this place can have."""

    def with_attr(self, name: str, value: Any) -> Pattern:
        """``has_attr`` for one attribute, as the Relax proposal writes it."""
        return self.has_attr({name: value})

    def has_dtype(self, dtype: ir.DataType | str) -> Pattern:
        """The value's element type is known and equal, such as ``FLOAT``, ``float32`` or ``np.float32``."""
        return self._refined(dtype_is(dtype))

    def has_shape(self, shape: Sequence[int | str | None]) -> Pattern:
        """The value's shape is known and equal; None accepts any dimension, a text a symbolic one of that name.

        Raises:
            PatternError: The shape is not a list of dimensions.
        """
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise PatternError(f"has_shape() takes a list of dimensions, such as [1, None, 'h'], not {shape!r}")
        return self._refined(shape_is(tuple(shape)))

    def has_rank(self, rank: int) -> Pattern:
        """The value's rank is known and equal."""
        return self._refined(rank_is(rank))

    def where(self, test: Callable[[ir.Value], bool], text: str) -> Pattern:
        """The value passes a test of your own; ``text`` names it in messages.

        Raises:
            PatternError: The test cannot be called.
        """
        if not callable(test):
            raise PatternError(f"where() takes a function of a value, and a text that names it, not {test!r}")
        return self._refined(Predicate(text, lambda _scope, value, _node: bool(test(value)), is_local=False))

    def __getitem__(self, index: int) -> Pattern:
        """Output number ``index`` of the node. Without an index, an operand is the node's first output."""
        from collage.pattern._nodes import OutputPattern

        return OutputPattern(self, index)

    def __iter__(self) -> NoReturn:
        raise PatternError(f"{self!r} is not a sequence; write p[0], p[1] for the outputs of an operator")


class Seq(PatternLike):
    """Patterns each used by the next. As an operand, or to match, it stands for its last element.

    ``a ^ b`` and ``a > b`` give one; ``Seq(a, b, c)`` relates elements that are not related yet.

    Raises:
        PatternError: There are no parts.
    """

    _constraint: type[_constraints.UsedBy] = _constraints.UsedBy

    def __init__(self, *parts: PatternLike) -> None:
        if not parts:
            raise PatternError("a sequence needs at least one pattern")
        for producer, user in pairwise(parts):
            if not _related(producer.last, user.first):
                relate(self._constraint(producer.last, user.first, None))
        self._elements = tuple(element for part in parts for element in part.elements)

    @property
    def first(self) -> Pattern:
        """The first element."""
        return self._elements[0]

    @property
    def last(self) -> Pattern:
        """The last element."""
        return self._elements[-1]

    @property
    def elements(self) -> tuple[Pattern, ...]:
        """All elements in the order of data flow."""
        return self._elements

    def __getitem__(self, index: int) -> Pattern:
        return self._elements[index]

    def __getattr__(self, name: str) -> NoReturn:
        """Explain that sequences have no refinements, and how to refine a member."""
        hint = "; refine its elements before they are related" if hasattr(Pattern, name) else ""
        raise AttributeError(f"a sequence of patterns has no {name!r}{hint}")

    def __len__(self) -> int:
        return len(self._elements)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._elements))})"


class PdomSeq(Seq):
    """Patterns each used by nothing but the next, so that each post-dominates those before it."""

    _constraint = _constraints.OnlyUsedBy


def pattern_of(thing: Any) -> PatternLike:
    """Read an operand: a pattern, a sequence, a number or list (a constant of that value), or None (absent)."""
    from collage.pattern._nodes import absent, is_const

    if isinstance(thing, PatternLike):
        return thing
    if thing is None:
        return absent()
    if isinstance(thing, (int, float, list, tuple, np.ndarray, np.generic)):
        return is_const(thing)
    raise PatternError(f"{thing!r} is not a pattern; write is_op(...), wildcard(), is_const(), a number, or None")


def flatten(things: Iterable[Any]) -> list[PatternLike]:
    """Patterns out of nested tuples and lists, as ``make`` and ``attr_eq`` return them."""
    found: list[PatternLike] = []
    for thing in things:
        if isinstance(thing, PatternLike):
            found.append(thing)
        elif isinstance(thing, (tuple, list)):
            found.extend(flatten(thing))
        else:
            raise PatternError(f"{thing!r} is not a pattern")
    return found


def attr_eq(*patterns: PatternLike | Iterable[Any], names: Sequence[str] | None = None) -> tuple[PatternLike, ...]:
    """Demand equal attributes of the patterns' nodes; sequences are compared element by element.

    Args:
        patterns: Patterns, or sequences of equal length.
        names: Attributes to compare; None means all.

    Returns:
        The patterns.

    Raises:
        PatternError: The sequences have different lengths.
    """
    compared = flatten(patterns)
    lengths = {len(pattern.elements) for pattern in compared}
    if len(lengths) > 1:
        raise PatternError(f"attr_eq compares sequences element by element, but their lengths are {sorted(lengths)}")
    for column in zip(*(pattern.elements for pattern in compared), strict=True):
        relate(_constraints.AttrEq(tuple(column), None if names is None else tuple(names)))
    return tuple(compared)


def where_all(patterns: Iterable[Any], test: Callable[..., bool], text: str) -> tuple[PatternLike, ...]:
    """The values that the patterns match pass a test together, such as one of their shapes.

    Args:
        patterns: The patterns; of a sequence its last element.
        test: Called with a value for each pattern, in order.
        text: Completes "must be so that ..." in messages.

    Returns:
        The patterns.

    Raises:
        PatternError: There are fewer than two patterns, or the test is not a function.
    """
    related = flatten(patterns)
    if len(related) < 2 or not callable(test):
        raise PatternError("where_all relates several patterns by a function; for one there is p.where(test, text)")
    relate(_constraints.Relation(tuple(pattern.last for pattern in related), test, text))
    return tuple(related)


def register_operands(user: Pattern, operands: Iterable[Pattern]) -> None:
    """Tell operands which pattern uses them, for ``uniq``."""
    for operand in dict.fromkeys(operands):
        _note_use(operand, user)


def relate(constraint: _constraints.Constraint, on: tuple[Pattern, ...] | None = None) -> None:
    """Record a constraint on the patterns that take part, or on those of ``on`` only."""
    for pattern in dict.fromkeys(on or constraint.patterns):
        pattern.constraints.append(constraint)
    if isinstance(constraint, _constraints.UsedBy):
        _note_use(constraint.producer, constraint.user)


def _related(producer: Pattern, user: Pattern) -> bool:
    return any(
        isinstance(constraint, _constraints.UsedBy) and constraint.producer is producer and constraint.user is user
        for constraint in producer.constraints
    )


def _note_use(producer: Pattern, user: Pattern) -> None:
    base = getattr(producer, "base", None)
    if base is not None:  # The user of an output is a user of the node that makes it.
        _note_use(base, user)
    if user in producer.known_users:
        return
    if producer.is_unique and producer.known_users:
        raise PatternError(
            f"{producer!r} is uniq(), and {producer.known_users[0]!r} uses it already; {user!r} would be a second user"
        )
    producer.known_users.append(user)
    if producer.is_unique:
        constraint = _constraints.OnlyUsedBy(producer, user, None)
        producer.constraints.append(constraint)
        user.constraints.append(constraint)


def _arithmetic(op_type: str, *operands: Any) -> Pattern:
    from collage.pattern._nodes import is_op

    return is_op(op_type)(*operands)
