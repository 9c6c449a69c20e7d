"""Facts about ONNX operators: the commutative ones, their kinds, and the defaults of their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from collage._errors import PatternError
from collage.pattern._attribute_defaults import depends_on_rank, stated_defaults

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


_STANDARD = frozenset(("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training"))


def is_standard(domain: str) -> bool:
    """Return True for ONNX's own domains, whose operators all have schemas."""
    return domain in _STANDARD


def version_of(domain: str, opset_imports: Mapping[str, int]) -> int:
    """Return the version of a domain that a model imports, or would have to import for a first node of it."""
    spellings = ("", "ai.onnx") if normal_domain(domain) == "" else (domain,)
    imported = next((opset_imports[name] for name in spellings if name in opset_imports), None)
    if imported is not None or not is_standard(domain):
        return imported or 1
    return max((s.since_version for s in onnx.defs.get_all_schemas() if s.domain == normal_domain(domain)), default=1)


def schema_of(node: ir.Node, opset_imports: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """Return the schema of a node's operator; None if ONNX, or the version that is imported, has none."""
    try:
        version = version_of(node.domain, opset_imports)
        return onnx.defs.get_schema(node.op_type, version, normal_domain(node.domain))
    except onnx.defs.SchemaError:
        return None


def formal_types(node: ir.Node, opset_imports: Mapping[str, int]) -> list[tuple[str, frozenset[ir.DataType] | None]]:
    """For each operand its type variable, empty if it has none, and the types that it may have; None if any."""
    schema = schema_of(node, opset_imports)
    found: list[tuple[str, frozenset[ir.DataType] | None]] = []
    for index in range(len(node.inputs)):
        if schema is None or not schema.inputs:
            found.append(("", None))
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        is_variable = (
            any(formal.type_str == c.type_param_str for c in schema.type_constraints) and formal.is_homogeneous
        )
        allowed = frozenset(_BY_NAME[text] for text in formal.types if text in _BY_NAME)
        found.append((formal.type_str if is_variable else "", allowed))
    return found


_BY_NAME = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}


def type_fault(node: ir.Node, dtypes: Sequence[ir.DataType | None], opset_imports: Mapping[str, int]) -> str:
    """Return the fault in the types of a node's operands (None if unknown); empty if there is none."""
    seen: dict[str, ir.DataType] = {}
    for index, (dtype, (variable, allowed)) in enumerate(zip(dtypes, formal_types(node, opset_imports), strict=True)):
        if dtype is not None and allowed is not None and dtype not in allowed:
            return f"{node.op_type} takes no {dtype.name} as operand {index}"
        if dtype is not None and variable and seen.setdefault(variable, dtype) != dtype:
            return f"{node.op_type} takes no {dtype.name} as operand {index} beside {seen[variable].name}"
    return ""


def commutes(node: ir.Node) -> bool:
    """Return True if the operator table declares the node's operator commutative."""
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


@lru_cache(maxsize=1)
def _attributes_of_history() -> Mapping[tuple[str, str], frozenset[str]]:
    """By domain and type, the names of all attributes that any version of a standard operator has."""
    found: dict[tuple[str, str], set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), set()).update(schema.attributes)
    return {operator: frozenset(names) for operator, names in found.items()}


def attribute_names(op_types: Sequence[str], domain: str) -> frozenset[str]:
    """Return the attributes that some version of these operators has; empty if one of them is not ONNX's own."""
    known = _attributes_of_history()
    if not op_types or any((domain, op_type) not in known for op_type in op_types):
        return frozenset()
    return frozenset[str]().union(*(known[domain, op_type] for op_type in op_types))


def attributes(node: ir.Node, opset_imports: Mapping[str, int]) -> dict[str, Any]:
    """The node's attributes with the defaults filled in: the schema's, and those that ONNX states in words."""
    version = node.version or opset_imports.get(node.domain) or opset_imports.get("")
    domain = normal_domain(node.domain)
    found = dict(_defaults(domain, node.op_type, version) if version else _agreed_defaults(domain, node.op_type))
    if domain == "" and depends_on_rank(node.op_type):
        found.update(stated_defaults(node, schema_of(node, opset_imports)))
    for name, attribute in node.attributes.items():
        found[name] = f"@{attribute.ref_attr_name}" if attribute.is_ref() else plain(attribute.value)
    return found
