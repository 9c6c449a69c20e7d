"""ONNX Runtime's contributed operators, as far as its optimisers and builders make them, written in ONNX's own.

A model that ONNX Runtime optimised and saved can be read by ONNX Runtime alone, and in part by OpenVINO. ONNX infers no
shapes after such an operator. Here each is a few lines of standard operators of opset 17, which has LayerNormalization.
So are ONNX's own operators for transformers, which came later and are read by as few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import onnx
import onnx.defs
import onnx_ir as ir

from collage.frontend._nodes import all_nodes
from collage.frontend.contrib_ops._attention import ATTENTION
from collage.frontend.contrib_ops._decoder import DECODER
from collage.frontend.contrib_ops._forerunners import FORERUNNERS
from collage.frontend.contrib_ops._fused import FUSED
from collage.frontend.contrib_ops._quantised import QUANTISED
from collage.frontend.contrib_ops._transformers import TRANSFORMERS
from collage.frontend.contrib_ops._writer import Body, Facts, Undefined

__all__ = [
    "ASSUMPTIONS",
    "CONTRIBUTED",
    "Assumption",
    "Facts",
    "give_domain",
    "has_contrib_ops",
    "is_contributed",
    "opset_to_write_in",
    "standard_form",
    "take_domain",
]

CONTRIBUTED = "com.microsoft"
"""The domain of most of them; the others have none, like operators of ONNX that came later."""


class Assumption(NamedTuple):
    """An operand whose elements must all be a sum of lengths, or a standard form is not right.

    Attributes:
        operand: Place of the operand.
        lengths: Places of operands, and axes of theirs. An operand that is left out has none.
        offset: A number that is added to the sum.
    """

    operand: int
    lengths: tuple[tuple[int, int], ...]
    offset: int


_SEQUENCES = ((0, 1), (3, 2))
ASSUMPTIONS: Mapping[str, tuple[Assumption, ...]] = {
    "GroupQueryAttention": (Assumption(5, _SEQUENCES, -1), Assumption(6, _SEQUENCES, 0)),
}
"""Operators whose standard form is right under assumptions alone.

Of attention with a cache: each sequence fills its part of the past, so no key in it is padding, and the cache grows.
"""

_OLDEST_OPSET = 13
_STANDARD_OPSET = 17
_NOT_AS_DEFINED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    StopIteration,
    TypeError,
    ValueError,
)
"""Errors that missing outputs and attributes of wrong types lead to. These are not checked before."""

_DEFINITIONS = {**FORERUNNERS, **FUSED, **ATTENTION, **DECODER, **QUANTISED}
_WITHOUT_DOMAIN = {
    "LayerNormalization": _STANDARD_OPSET,
    "SimplifiedLayerNormalization": math.inf,
    "QLinearConv": math.inf,
    "QLinearMatMul": math.inf,
}
"""Operators without a domain, and before which opset they need a standard form: what ONNX Runtime writes before ONNX has it, and
what ONNX has and hardly any toolchain reads.
"""


def is_contributed(domain: str, op_type: str, version: int) -> bool:
    """Return True if an operator that ONNX Runtime writes has a standard form here, and a model of this opset needs it."""
    if domain in ("", "ai.onnx"):
        return version < _WITHOUT_DOMAIN.get(op_type, 0)
    return domain == CONTRIBUTED and op_type in _DEFINITIONS and op_type not in _WITHOUT_DOMAIN


def has_standard_form(domain: str, op_type: str, version: int) -> bool:
    """Return True if an operator is contributed, or ONNX's for transformers: few toolchains read either."""
    return is_contributed(domain, op_type, version) or (domain in ("", "ai.onnx") and op_type in TRANSFORMERS)


def has_contrib_ops(model: ir.Model) -> bool:
    """Return True if a model or one of its bodies holds an operator that has a standard form here."""
    version = model.opset_imports.get("", 1)
    return any(has_standard_form(node.domain, node.op_type, version) for node in model.graph.all_nodes())


def give_domain(proto: onnx.ModelProto) -> None:
    """Put operators that ONNX Runtime writes without a domain into its own, in place: ONNX's tools know no such operators."""
    version = next((opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), 1)
    found = [
        node
        for node in all_nodes(proto.graph.node)
        if node.op_type in _WITHOUT_DOMAIN
        and is_contributed(node.domain, node.op_type, version)
        and not onnx.defs.has(node.op_type, version, "")
    ]
    for node in found:
        node.domain = CONTRIBUTED
    if found and all(opset.domain != CONTRIBUTED for opset in proto.opset_import):
        proto.opset_import.add(domain=CONTRIBUTED, version=1)


def take_domain(proto: onnx.ModelProto) -> None:
    """Undo ``give_domain`` in place, also in a model that an ONNX tool returned."""
    for node in all_nodes(proto.graph.node):
        if node.domain == CONTRIBUTED and node.op_type in _WITHOUT_DOMAIN:
            node.domain = ""


def opset_to_write_in(version: int, operators: Iterable[tuple[str, int]]) -> int:
    """Return an opset in which an older model means the same, and in which its contributed operators can be written out.

    Args:
        version: The model's opset.
        operators: Type of each node, and how many outputs it has.

    Returns:
        17, or the model's own if that is newer, or if there is no such opset.
    """
    if not _OLDEST_OPSET <= version < _STANDARD_OPSET:
        return version
    # Regions moved by half a pixel, and what training returns beside the result: all else that is new was added.
    changed = any(op_type == "RoiAlign" or (op_type == "BatchNormalization" and n > 1) for op_type, n in operators)
    return version if changed else _STANDARD_OPSET


def standard_form(
    node: onnx.NodeProto, version: int, facts: Facts, *, exact: bool = True, assuming: bool = False
) -> list[onnx.NodeProto] | None:
    """Older standard nodes that compute the same as one; None if there are none, or a fact is missing.

    Args:
        node: A node of a model that has ONNX's opset ``version``.
        version: Opset from 17 on; see ``opset_to_write_in``.
        facts: The known facts about the node's inputs.
        exact: If not, types and shapes of the outputs are all that counts, and fewer facts are needed.
        assuming: The nodes may be right under ``ASSUMPTIONS`` alone.

    Returns:
        Nodes in order. Their names, and those of the values between them, begin with the name of the first output.
    """
    if version < _STANDARD_OPSET or not has_standard_form(node.domain, node.op_type, version):
        return None
    is_onnx = node.domain != CONTRIBUTED and node.op_type in TRANSFORMERS
    definitions = TRANSFORMERS if is_onnx else _DEFINITIONS
    try:
        body = Body(node, version, facts, exact, assuming)
        made = definitions[node.op_type](body)
    except (Undefined, *_NOT_AS_DEFINED):
        return None
    wanted = [(name, value) for name, value in zip(node.output, made, strict=False) if name]
    if not all(value for _, value in wanted) or any(node.output[len(made) :]):
        return None
    inner = {name for each in body.nodes for name in each.output}
    renamed = {value: name for name, value in reversed(wanted) if value in inner}
    for name, value in wanted:
        if renamed.get(value) != name:  # An input that is passed on, or a value that is two outputs.
            body("Identity", value)
            renamed[body.nodes[-1].output[0]] = name
    for each in body.nodes:
        for names in (each.input, each.output):
            names[:] = [renamed.get(name, name) for name in names]
    return body.nodes
