"""Bfloat16 at the border of a kernel: inputs that become float32, and outputs that are rounded from it.

NumPy's arrays of bfloat16 do not speak DLPack, so the compiled kernel takes and returns their bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from collage.toolchains.sdk.model_files import elem_type

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ROUND", "WIDEN", "is_border_cast", "places_of_bfloat16", "rounded", "widened", "with_words"]

WIDEN, ROUND = "BitsToFloat", "FloatToBits"
"""Operators that make float32 of the bits of bfloat16, and bits of the nearest bfloat16 of float32."""

_NARROW, _WIDE, _BITS = "BFLOAT16", "FLOAT", "UINT16"
_NOT_A_NUMBER = 0x7FC0


def is_border_cast(node: ir.Node) -> bool:
    """Return True for a ``Cast`` from an input of bfloat16 to float32, or from float32 to an output of bfloat16."""
    return _widens(node) or _rounds(node)


def _types(node: ir.Node) -> tuple[str, ...]:
    found = (elem_type(value) for value in (*node.inputs, *node.outputs) if value is not None)
    return tuple("" if dtype is None else dtype.name for dtype in found)


def _widens(node: ir.Node) -> bool:
    is_cast = node.op_type == "Cast" and node.domain == "" and _types(node) == (_NARROW, _WIDE)
    return is_cast and node.inputs[0] is not None and node.inputs[0].is_graph_input()


def _rounds(node: ir.Node) -> bool:
    is_cast = node.op_type == "Cast" and node.domain == "" and _types(node) == (_WIDE, _NARROW)
    return is_cast and node.outputs[0].is_graph_output() and not node.outputs[0].uses()


def with_words(kernel: ir.Model) -> ir.Model:
    """Return a kernel whose inputs and outputs of bfloat16 are their bits, as far as only such casts touch them; else itself."""
    import onnx_ir as ir

    from collage.graph import copy_model

    if not any(map(is_border_cast, kernel.graph)):
        return kernel
    made = copy_model(kernel)
    for node in made.graph:
        value = node.inputs[0] if _widens(node) else node.outputs[0] if _rounds(node) else None
        if value is None or not all(map(_widens, (use.node for use in value.uses()))):
            continue
        casts = [use.node for use in value.uses()] or [node]
        for cast in casts:
            cast.op_type = WIDEN if value is cast.inputs[0] else ROUND
            cast.attributes.clear()
        value.type = ir.TensorType(ir.DataType[_BITS])
    return made


def places_of_bfloat16(values: Iterable[ir.Value]) -> list[int]:
    """Return the places of values of bfloat16 among others."""
    return [place for place, value in enumerate(values) if (found := elem_type(value)) and found.name == _NARROW]


def widened(bb: Any, x: Any) -> Any:
    """Return the float32 of bits of bfloat16 (uint16)."""
    from tvm import te

    from collage.toolchains.tvm.narrow_loops import as_float

    return bb.emit_te(
        lambda bits: te.compute(bits.shape, lambda *place: as_float(bits[*place]), name="widened"),
        x,
        primfunc_name_hint="widen",
    )


def rounded(bb: Any, x: Any) -> Any:
    """Return the bits (uint16) of the nearest bfloat16; of two that are as near, the even one."""
    from tvm import te, tirx

    def element(value: Any) -> Any:
        bits = tirx.reinterpret("uint32", value)
        odd = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
        upper = ((bits + tirx.const(0x7FFF, "uint32") + odd) >> tirx.const(16, "uint32")).astype("uint16")
        return tirx.Select(tirx.isnan(value), tirx.const(_NOT_A_NUMBER, "uint16"), upper)

    return bb.emit_te(
        lambda value: te.compute(value.shape, lambda *place: element(value[*place]), name="rounded"),
        x,
        primfunc_name_hint="round",
    )
