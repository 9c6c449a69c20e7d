"""The table itself: which ONNX operator is which torch call.

An entry is a function of a ``Call`` (the node's attributes, decoded once) and its inputs. Inputs that say *how* rather
than *what* (the shape of Reshape, the axes of ReduceSum) are ``host`` inputs: they come as NumPy arrays, never as
tensors. Entries raise ``Unsupported`` for attributes that torch lacks, and never approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HOST_OPS", "OPS", "Call", "Entry", "host_op", "op"]

Function = Callable[..., Any]
"""``(call, *inputs)`` to a tensor, or to a tuple of them where the node has several outputs."""


@dataclass(slots=True)
class Call:
    """One node, as its entry sees it.

    Attributes:
        op_type: Name of the operator.
        version: Opset version of the model.
        attributes: Decoded attributes: ints, floats, strings, lists of them, NumPy arrays.
        outputs: Number of outputs that the node has. Trailing ones without readers are left out.
        frozen: Indices of the inputs that are constants of the kernel.
        memo: Results that an entry computed once from frozen inputs, with the other values that they were computed for.
    """

    op_type: str
    version: int
    attributes: Mapping[str, Any]
    outputs: int
    frozen: frozenset[int] = frozenset()
    memo: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def once(self, name: str, make: Callable[[], Any], *inputs: int, given: Any = None) -> Any:
        """Return the result of ``make``, computed once if all of ``inputs`` are constants, and again if ``given`` has changed."""
        if not self.frozen.issuperset(inputs):
            return make()
        known = self.memo.get(name)
        if known is None or known[0] != given:
            known = self.memo[name] = (given, make())
        return known[1]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table.

    Attributes:
        function: The kernel to call.
        host: Indices of its host inputs.
        host_constants: Indices of inputs that are host inputs where they are constants of one element, and tensors
            elsewhere.
    """

    function: Function
    host: frozenset[int] = frozenset()
    host_constants: frozenset[int] = frozenset()


OPS: dict[str, Entry] = {}
"""ONNX operator (default domain) to torch."""

HOST_OPS: dict[str, Function] = {}
"""Operators on shapes, as NumPy calls: results of Shape stay on the host, and may hold symbolic sizes."""


def op(*names: str, host: tuple[int, ...] = (), host_constants: tuple[int, ...] = ()) -> Callable[[Function], Function]:
    """Enter a function into the table under some operator names."""

    def enter(function: Function) -> Function:
        OPS.update(dict.fromkeys(names, Entry(function, frozenset(host), frozenset(host_constants))))
        return function

    return enter


def host_op(*names: str) -> Callable[[Function], Function]:
    """Enter a function on NumPy arrays into the table of operators on shapes."""

    def enter(function: Function) -> Function:
        HOST_OPS.update(dict.fromkeys(names, function))
        return function

    return enter
