"""What patterns know about ONNX operators: which commute, which kind they are, and what their attributes default to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from collage._errors import PatternError

COMMUTATIVE_OPS: frozenset[tuple[str, str]] = frozenset(
    ("", op)
    for op in (
        [
            "Add",
            "And",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseXor",
            "Equal",
            "Max",
            "Mean",
            "Min",
            "Mul",
            "Or",
            "Sum",
            "Xor",
        ]
    )
)
"""Operators, as (domain, type), whose operands may be permuted; ``is_op(..., commutative=True)`` adds more."""


def normal_domain(domain: str) -> str:
    """The domain with the two spellings of the standard one made equal."""
    return "" if domain == "ai.onnx" else domain


def commutes(node: ir.Node) -> bool:
    """Whether the operator table declares the node's operator commutative."""
    return (normal_domain(node.domain), node.op_type) in COMMUTATIVE_OPS


@lru_cache(maxsize=4096)
def _defaults(domain: str, op_type: str, version: int) -> Mapping[str, Any]:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    defaults = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type:
            defaults[name] = plain(onnx.helper.get_attribute_value(attribute.default_value))
    return defaults


@lru_cache(maxsize=4096)
def _agreed_defaults(domain: str, op_type: str) -> Mapping[str, Any]:
    """The defaults that an operator has in every opset, for graphs of which the opset is not known.

    Raises:
        PatternError: Opsets differ in them.
    """
    known = [
        _defaults(domain, op_type, version)
        for version in range(1, onnx.defs.onnx_opset_version() + 1)
        if onnx.defs.has(op_type, version, domain)
    ]
    for name in dict.fromkeys(name for defaults in known for name in defaults):
        values = [defaults[name] for defaults in known if name in defaults]
        if any(value != values[0] for value in values):
            raise PatternError(
                f"the default of {name!r} of {op_type} depends on the opset, and nothing leads from this graph to its "
                "opset: search the model, or name it with within=model"
            )
    return known[-1] if known else {}


def plain(value: Any) -> Any:
    """An attribute's value in a form that compares by ``==``: sequences as tuples, text as str, floats as float32."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(np.float32(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(plain(item) for item in value)
    if isinstance(value, ir.TensorProtocol):
        return (tuple(value.shape.numpy()), value.dtype, value.tobytes())
    return value


def attributes(node: ir.Node, opset_imports: Mapping[str, int]) -> dict[str, Any]:
    """The node's attributes with the schema's defaults filled in."""
    version = node.version or opset_imports.get(node.domain) or opset_imports.get("")
    domain = normal_domain(node.domain)
    found = dict(_defaults(domain, node.op_type, version) if version else _agreed_defaults(domain, node.op_type))
    for name, attribute in node.attributes.items():
        found[name] = f"@{attribute.ref_attr_name}" if attribute.is_ref() else plain(attribute.value)
    return found
