"""The node patterns: operators, leaves, and how they combine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import PatternError
from collage.graph import OpKind
from collage.pattern import _operators, _predicates
from collage.pattern._base import Pattern, pattern_of, register_operands
from collage.pattern._predicates import Predicate

Operand = Pattern | EllipsisType


class OpPattern(Pattern):
    """A node: of given operator types, or any that passes the predicates, with patterns for its operands.

    Attributes:
        op_types: Operator types, empty for any.
        domain: Their domain.
        operands: Patterns of the operands, ``...`` for any number of further ones; None if they do not matter.
        commutative: True or False overrides the operator table, None follows it.
    """

    def __init__(
        self,
        op_types: tuple[str, ...],
        domain: str = "",
        operands: tuple[Operand, ...] | None = None,
        commutative: bool | None = None,
        predicates: tuple[Predicate, ...] = (),
    ) -> None:
        super().__init__(predicates=predicates)
        self.op_types = op_types
        self.domain = _operators.normal_domain(domain)
        self.operands = operands
        self.commutative = commutative
        self._operators = tuple(o for o in operands or () if isinstance(o, OpPattern) and o.op_types)
        register_operands(self, self.children)

    def __call__(self, *operands: Any) -> OpPattern:
        """The operator on these operands: patterns, numbers, None for an absent one, ``...`` for any further ones."""
        if self.operands is not None:
            raise PatternError(f"{self!r} has operands already")
        if self.constraints:
            raise PatternError(f"{self!r} is already related to other patterns; give it operands first")
        given = tuple(operand if operand is ... else pattern_of(operand).last for operand in operands)
        new = OpPattern(self.op_types, self.domain, given, self.commutative, self.predicates)
        new.name = self.name
        return new

    def _check_attributes(self, names: Iterable[str]) -> None:
        known = _operators.attribute_names(self.op_types, self.domain)
        for name in names if known else ():
            # Toolchains may mark standard operators with attributes of their own; what resembles ONNX's is misspelt.
            if name not in known and (near := difflib.get_close_matches(name, known, n=1)):
                raise PatternError(f"{' or '.join(self.op_types)} has no attribute {name!r}; did you mean {near[0]!r}?")

    @property
    def children(self) -> tuple[Pattern, ...]:
        """The operands' patterns."""
        return tuple(operand for operand in self.operands or () if isinstance(operand, Pattern))

    @property
    def has_gaps(self) -> bool:
        """True if ``...`` stands among the operands."""
        return any(operand is ... for operand in self.operands or ())

    def commutes(self, node: ir.Node) -> bool:
        """Return True if operands may be permuted when this pattern meets this node."""
        return _operators.commutes(node) if self.commutative is None else self.commutative

    def accepts_type(self, node: ir.Node) -> bool:
        """Return True if the node is of one of the operator types."""
        return not self.op_types or (
            node.op_type in self.op_types and _operators.normal_domain(node.domain) == self.domain
        )

    def fits_operands(self, makers: Sequence[ir.Node]) -> bool:
        """Return True if a node's operands are made by operators of the types that the operands of the pattern name."""
        return all(any(operand.accepts_type(maker) for maker in makers) for operand in self._operators)

    def clone(self, child: Callable[[Pattern], Pattern]) -> OpPattern:
        """See the base class."""
        operands = self.operands
        if operands is not None:
            operands = tuple(child(operand) if isinstance(operand, Pattern) else operand for operand in operands)
        return OpPattern(self.op_types, self.domain, operands, self.commutative, self.predicates)

    def describe(self) -> str:
        """See the base class."""
        types = " or ".join(self.op_types) or "operator"
        if self.operands is None:
            return types
        return f"{types}({', '.join(_short(operand) for operand in self.operands)})"


class LeafPattern(Pattern):
    """A value, whatever makes it: wildcards, constants, inputs."""

    def __init__(self, text: str, name: str | None = None, predicates: tuple[Predicate, ...] = ()) -> None:
        super().__init__(name, predicates)
        self.text = text

    def clone(self, child: Callable[[Pattern], Pattern]) -> LeafPattern:
        """See the base class."""
        return LeafPattern(self.text, None, self.predicates)

    def describe(self) -> str:
        """See the base class."""
        return self.text


class AbsentPattern(Pattern):
    """An optional operand that is not there."""

    def clone(self, child: Callable[[Pattern], Pattern]) -> AbsentPattern:
        """See the base class."""
        return AbsentPattern()

    def describe(self) -> str:
        """See the base class."""
        return "absent"


class OutputPattern(Pattern):
    """One output of a node with several."""

    def __init__(self, base: Pattern, index: int) -> None:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise PatternError(f"{base!r}[{index!r}]: outputs are counted from 0; names are for matches, match['x']")
        super().__init__()
        self.base, self.index = base, index

    @property
    def children(self) -> tuple[Pattern, ...]:
        """The node's pattern."""
        return (self.base,)

    def clone(self, child: Callable[[Pattern], Pattern]) -> OutputPattern:
        """See the base class."""
        new = OutputPattern(child(self.base), self.index)
        new.predicates = self.predicates
        return new

    def describe(self) -> str:
        """See the base class."""
        return f"{self.base.describe()}[{self.index}]"


class OrPattern(Pattern):
    """One of several patterns. Constraints within an alternative hold where it is chosen."""

    def __init__(self, alternatives: Iterable[Pattern]) -> None:
        super().__init__()
        flat: list[Pattern] = []
        for alternative in alternatives:
            plain = isinstance(alternative, OrPattern) and not (alternative.constraints or alternative.predicates)
            if isinstance(alternative, OrPattern) and plain and alternative.name is None:
                flat.extend(alternative.alternatives)
            else:
                flat.append(alternative)
        self.alternatives: tuple[Pattern, ...] = tuple(flat)

    def clone(self, child: Callable[[Pattern], Pattern]) -> OrPattern:
        """See the base class."""
        new = OrPattern(child(alternative) for alternative in self.alternatives)
        new.predicates = self.predicates
        return new

    def describe(self) -> str:
        """See the base class."""
        return "(" + " | ".join(alternative.describe() for alternative in self.alternatives) + ")"


class AndPattern(Pattern):
    """Several patterns for one and the same value."""

    def __init__(self, parts: Iterable[Pattern]) -> None:
        super().__init__()
        self.parts = tuple(parts)

    @property
    def children(self) -> tuple[Pattern, ...]:
        """The parts."""
        return self.parts

    def clone(self, child: Callable[[Pattern], Pattern]) -> AndPattern:
        """See the base class."""
        new = AndPattern(child(part) for part in self.parts)
        new.predicates = self.predicates
        return new

    def describe(self) -> str:
        """See the base class."""
        return "(" + " & ".join(part.describe() for part in self.parts) + ")"


class NotPattern(Pattern):
    """A value that a pattern does not match. It binds like a wildcard."""

    def __init__(self, refused: Pattern) -> None:
        super().__init__()
        self.refused = refused

    def clone(self, child: Callable[[Pattern], Pattern]) -> NotPattern:
        """See the base class."""
        new = NotPattern(child(self.refused))
        new.predicates = self.predicates
        return new

    def describe(self) -> str:
        """See the base class."""
        return f"~{self.refused.describe()}"


def _short(operand: Operand) -> str:
    if operand is ...:
        return "..."
    if isinstance(operand, OpPattern):
        return (" or ".join(operand.op_types) or "operator") + ("(...)" if operand.operands else "")
    if isinstance(operand, LeafPattern):
        return operand.name or operand.text
    return operand.name or "one of several" if isinstance(operand, OrPattern) else "a pattern"


# ---------------------------------------------------------------------- what users write


def is_op(*op_types: str, domain: str = "", commutative: bool | None = None) -> OpPattern:
    """A node of one of these ONNX operator types. Call the result to give patterns for its operands.

    Args:
        op_types: Operator types such as ``Conv``; several mean any of them.
        domain: Domain of the operators; the standard one by default.
        commutative: True if operands may be permuted; None follows the operator table.

    Raises:
        PatternError: There is no operator type, or one is not a text.
    """
    if not op_types:
        raise PatternError("is_op() needs an operator type, such as is_op('Conv'); any_op() matches every node")
    for op_type in op_types:
        if not isinstance(op_type, str):
            meant = ", ".join(map(repr, op_type if isinstance(op_type, list | tuple | set) else ["Conv"]))
            raise PatternError(f"is_op() takes operator types, not {op_type!r}; write is_op({meant})")
    return OpPattern(op_types, domain, None, commutative)


def any_op() -> OpPattern:
    """Any node."""
    return OpPattern(())


def wildcard(name: str | None = None) -> LeafPattern:
    """Any value. Two wildcards may stand for the same value; one wildcard used twice stands for one value."""
    return LeafPattern("any value", name)


def is_const(value: Any = None, name: str | None = None) -> LeafPattern:
    """A constant, known before the model runs: an initializer or a Constant node's output.

    Args:
        value: A number (a tensor of one element), or a list or array of numbers (a tensor of that shape). Integers are
            compared exactly, others to five digits, or to what the constant's type can tell apart.
        name: Name of the capture.

    Raises:
        PatternError: The value is not a number, nor a list or array of numbers.
    """
    try:
        is_number = (
            value is None or np.asarray(value).dtype.kind in "biufcV"
        )  # V: NumPy's view of bfloat16 and the like
    except ValueError:  # lists of different lengths
        is_number = False
    if not is_number:
        hint = f"is_const(name={value!r}) names a capture" if isinstance(value, str) else "give equally long lists"
        raise PatternError(f"is_const() takes a number, or a list or array of numbers, not {value!r}; {hint}")
    predicate = _predicates.constant_is(value)
    return LeafPattern(predicate.text, name, (predicate,))


def is_input(name: str | None = None) -> LeafPattern:
    """An input of the graph. ``name`` is the name of the capture, not of the input."""
    predicate = _predicates.input_is()
    return LeafPattern(predicate.text, name, (predicate,))


def absent() -> AbsentPattern:
    """An optional operand that is not given; ``None`` among the operands means the same."""
    return AbsentPattern()


def maybe(pattern: Pattern) -> Pattern:
    """An optional operand that, if given, matches."""
    return pattern | absent()


def repeat(body: Callable[[Pattern], Pattern], source: Pattern, least: int, most: int) -> Pattern:
    """``body`` applied to ``source`` between ``least`` and ``most`` times, each time with fresh patterns.

    Args:
        body: Makes the pattern of one repetition from the pattern before it.
        source: The pattern before the first repetition.
        least: Least number of repetitions.
        most: Largest number of repetitions.

    Raises:
        PatternError: The numbers are negative, or ``most`` is less than ``least``.
    """
    if not 0 <= least <= most:
        raise PatternError(f"repeat from {least} to {most} times makes no sense")
    pattern = source
    for _ in range(most - least):
        pattern = source | body(pattern)
    for _ in range(least):
        pattern = body(pattern)
    return pattern


def is_injective() -> OpPattern:
    """A node whose every output element comes from one place: elementwise, broadcast, and injective operators."""
    return OpPattern((), predicates=(_predicates.kind_is("an injective operator", *_INJECTIVE),))


def is_reduce() -> OpPattern:
    """A commutative reduction along some axes."""
    return OpPattern((), predicates=(_predicates.kind_is("a reduction", OpKind.COMM_REDUCE),))


def is_out_fusible() -> OpPattern:
    """A node such as a convolution, into which elementwise operators on its output can be fused."""
    predicate = _predicates.kind_is("an operator with a fusible output", OpKind.OUT_ELEMWISE_FUSABLE)
    return OpPattern((), predicates=(predicate,))


def is_elementwise() -> OpPattern:
    """A node that maps each element by itself."""
    return OpPattern((), predicates=(_predicates.kind_is("an elementwise operator", OpKind.ELEMWISE),))


_INJECTIVE = (OpKind.ELEMWISE, OpKind.BROADCAST, OpKind.INJECTIVE)
