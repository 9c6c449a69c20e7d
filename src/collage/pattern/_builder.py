"""The builder of replacements: a rule makes the nodes and constants of one replacement with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import PatternError
from collage.graph import used_values

_Number = np.ndarray[Any, Any] | np.generic | Sequence[Any] | float


class NotApplicable(Exception):
    """Raised by a rule's callback: this match is not to be rewritten, and why. Returning None says the same."""


class Builder:
    """Makes the nodes of one replacement. They join the graph only if the whole replacement passes its checks.

    Attributes:
        label: The label of the rule.
        nodes: The new nodes, in order.
        constants: The new initializers.
        plain: Constants made of numbers without an element type, each with its number and the requested name.
    """

    def __init__(self, label: str, fresh: Callable[[str], str]) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.plain: dict[ir.Value, tuple[Any, str]] = {}
        self.label = label
        self._fresh = fresh

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[:1].isupper():
            raise AttributeError(f"op.{op_type}: operator types begin with a capital; see also op.node, op.constant")
        return lambda *inputs, **attributes: self.node(op_type, *inputs, **attributes)

    def node(
        self,
        op_type: str,
        *inputs: ir.Value | _Number | None,
        domain: str = "",
        outputs: int = 1,
        like: ir.Node | None = None,
        **attributes: Any,
    ) -> Any:
        """A new node.

        Args:
            op_type: Operator type.
            inputs: Its operands; None for an absent one. Numbers, lists and arrays become constants.
            domain: Domain of the operator.
            outputs: Number of outputs.
            like: A node whose attributes are taken over; ``attributes`` come on top.
            attributes: Attribute values as Python values.

        Returns:
            The output's value, or a tuple of values if there are several.
        """
        operands = [self._operand(op_type, value) for value in inputs]
        attrs = dict(like.attributes) if like is not None else {}
        attrs.update({a.name: a for a in ir.convenience.convert_attributes(attributes)})
        made = [ir.Value(name=self._fresh(f"{self.label}_{op_type}")) for _ in range(outputs)]
        node = ir.Node(
            domain, op_type, operands, list(attrs.values()), outputs=made, name=self._fresh(f"{self.label}_{op_type}")
        )
        self.nodes.append(node)
        return made[0] if outputs == 1 else tuple(made)

    def _operand(self, op_type: str, value: Any) -> ir.Value | None:
        if value is None or isinstance(value, ir.Value):
            return value
        if isinstance(value, bool | int | float | list | tuple | np.ndarray | np.generic):
            return self.constant(value)
        hint = "match[pattern] gives a node's value" if isinstance(value, ir.Node) else "op.constant(...) makes one"
        raise PatternError(f"op.{op_type}: a {type(value).__name__} is not a value; {hint}")

    def constant(self, content: _Number, name: str = "constant") -> ir.Value:
        """A new initializer; its name is made unique.

        Args:
            content: An array, whose element type is kept; or a number or lists of numbers, which take the element type
                of the operands beside them, or of the value that they replace.
            name: A wish for its name.
        """
        array, unique = np.asarray(content), self._fresh(f"{self.label}_{name}")
        is_plain = _is_plain(content)
        if is_plain and array.dtype.kind == "f":
            array = array.astype(np.float32)
        tensor = ir.tensor(array, name=unique)
        value = ir.Value(name=unique, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        self.constants.append(value)
        if is_plain:
            self.plain[value] = content, name
        return value

    def keep_only(self, results: Iterable[ir.Value]) -> None:
        """Drop nodes that the results do not need."""
        needed: set[ir.Value] = set(results)
        kept: list[ir.Node] = []
        for node in reversed(self.nodes):
            if needed.isdisjoint(node.outputs):
                _forget_inputs(node)
            else:
                kept.append(node)
                needed.update(used_values(node))
        self.nodes = kept[::-1]
        self.constants = [value for value in self.constants if value in needed]

    def discard(self) -> None:
        """Remove the built nodes, so that values of the graph no longer list them as users."""
        for node in self.nodes:
            _forget_inputs(node)


def _is_plain(content: Any) -> bool:
    """Return True for Python's numbers, and lists of them, which have no element type of their own."""
    if isinstance(content, list | tuple):
        return all(_is_plain(item) for item in content)
    return isinstance(content, bool | int | float) and not isinstance(content, np.generic)


def _forget_inputs(node: ir.Node) -> None:
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
