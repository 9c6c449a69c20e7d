"""ONNX Runtime's kernels in coarser types: 8-bit integers, calibrated or not, and narrow weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collage._errors import Unsupported
from collage.toolchains.sdk.int8_model import in_int8, products_in_floats
from collage.toolchains.sdk.int8_placement import Int8Style
from collage.toolchains.sdk.model_files import one_line, save_kernel
from collage.toolchains.sdk.narrow_weights import with_narrow_weights
from collage.toolchains.sdk.precisions import NARROW_BITS

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target

__all__ = ["save_reduced"]

_STYLE = Int8Style(
    products=frozenset(("Conv", "Gemm", "MatMul")),
    between=frozenset(("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid")),
    carriers=frozenset(
        ("Flatten", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
    ),
    whole=True,
    float_results=frozenset(("Gemm", "MatMul")),
    rounds_biases=True,
)
"""Transposed convolutions and most activations are computed in floats."""

_DYNAMIC = ["MatMul", "Gemm"]
"""The quantiser splits the latter into products and sums first, so both names are needed."""


def save_reduced(kernel: ir.Model, target: Target, workspace: Path) -> tuple[tuple[str, ...], list[int]]:
    """Write a kernel in the precision of a target.

    Returns:
        Names of all files that belong to it, and positions of the products that are computed in floats all the same.

    Raises:
        Unsupported: Nothing in it would be computed in that precision, or it cannot be.
    """
    precision = target.option("precision")
    if precision == "int8-dynamic":
        return (_save_dynamic(kernel, workspace),), []
    made = with_narrow_weights(kernel, NARROW_BITS[precision]) if precision in NARROW_BITS else in_int8(kernel, _STYLE)
    return save_kernel(made, workspace, f".{precision}"), products_in_floats(kernel, made)


def _save_dynamic(kernel: ir.Model, workspace: Path) -> str:
    """Write a kernel with its matrix products in 8 bits: weights ahead, activations as they come; the file's name."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    path = workspace / save_kernel(kernel, workspace, ".float")[0]
    try:
        proto = onnx.load(path, load_external_data=False)
        if not any(node.op_type in _DYNAMIC for node in proto.graph.node):
            raise Unsupported(f"onnxruntime quantises {', '.join(_DYNAMIC)}, and there is none")
        # The quantiser transposes the weights of some Gemm, and believes the shapes that it finds.
        weights = {tensor.name for tensor in proto.graph.initializer}
        told = [value for value in proto.graph.value_info if value.name not in weights]
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(told)
        onnx.save(proto, path)
        made = path.with_name(path.name.replace(".float.onnx", ".int8-dynamic.onnx"))
        quantize_dynamic(path, made, op_types_to_quantize=_DYNAMIC, per_channel=True)
        quantised, noted = onnx.load(made), {node.output[0]: node.metadata_props for node in proto.graph.node}
        for node in quantised.graph.node:
            del node.metadata_props[:]
            node.metadata_props.extend(noted.get(node.output[0], ()))
        onnx.save(quantised, made)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"onnxruntime cannot quantise the kernel: {one_line(error)}") from error
    finally:
        path.unlink()
    return made.name
