"""oneDNN's functions for native kernels, through PyTorch: convolutions, products, attention, recurrent layers.

The table of torch calls computes them and fuses groups. This module lists the operators that are worth a call.
Convolutions are channels-last in memory on both sides, since that is how oneDNN writes them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from collage.target import Target
from collage.toolchains import LoadOptions
from collage_extern.functions import BoundFunction, ExternFunction, ExternLibrary
from collage_torch.kernel import check_by_running, quiet, torch_build
from collage_torch.threads import import_torch, set_threads, use_threads

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.pattern import Pattern, PatternLike

__all__ = ["library"]

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Gelu")


def library() -> ExternLibrary:
    """The functions, those that do more first.

    Raises:
        PackageNotFoundError: PyTorch, which brings oneDNN along, is not installed.
    """
    from collage.pattern import NonLeafExternUse, is_const, is_op, maybe, wildcard
    from collage.pattern.library import attention

    conv = is_op("Conv")(wildcard(), is_const(), maybe(is_const()))
    transposed = is_op("ConvTranspose")(wildcard(), is_const(), maybe(is_const()))
    product = is_op("MatMul")(wildcard(), is_const())
    gemm = is_op("Gemm")(wildcard(), is_const(), maybe(is_const()))
    linear = product | gemm | is_op("Add")(product, is_const())
    skip = ~is_const() & wildcard()
    windows: dict[str, PatternLike] = {
        "conv_add_relu": is_op("Relu")(is_op("Add")(conv, skip)),
        "conv_add": is_op("Add")(conv, skip),
        "conv_activation": _activation(conv),
        "conv": conv,
        "conv_transpose_activation": _activation(transposed),
        "conv_transpose": transposed,
    }
    others: dict[str, PatternLike] = {
        "attention": attention(),
        "linear_add": is_op("Add")(linear, skip),
        "linear_activation": _activation(linear),
        "linear": linear,
        "matmul": is_op("MatMul")(wildcard(), skip),
        "recurrent": is_op("LSTM", "GRU", "RNN")(wildcard(), is_const(), is_const(), ...),
    }
    functions = []
    for rows, channels_last in ((windows, True), (others, False)):
        for name, pattern in rows.items():
            pattern.add_graph_constraint(NonLeafExternUse(False))
            bind = partial(_bind, channels_last=channels_last)
            refusal = _why_native if channels_last else _nothing_against
            functions.append(ExternFunction(f"onednn.{name}", pattern, bind, refusal, channels_last=channels_last))
    return ExternLibrary("onednn", torch_build(importlib.metadata.version("torch")), tuple(functions))


def _nothing_against(nodes: Sequence[ir.Node]) -> None:
    return None


def _why_native(nodes: Sequence[ir.Node]) -> str | None:
    """Filters of one channel have nothing for oneDNN's blocks of channels to do: measured, native loops take a third."""
    weight = next(node.inputs[1] for node in nodes if node.op_type in ("Conv", "ConvTranspose"))
    shape = weight.shape if weight is not None else None
    return "a filter from one channel to one is better native code" if shape and tuple(shape[:2]) == (1, 1) else None


def _activation(value: Pattern) -> Pattern:
    from collage.pattern import is_const, is_op

    swish = is_op("Mul")(value, is_op("Sigmoid")(value))
    return is_op(*_ACTIVATIONS)(value) | is_op("Clip")(value, is_const(), is_const()) | swish


def _bind(model: ir.Model, threads: int, channels_last: bool) -> BoundFunction:
    """The operators as a torch program, packed for their shapes.

    If channels are last in memory, torch gets views in which they are in second place.
    """
    torch = import_torch()
    program = _program(model, threads)

    def view(x: Any) -> Any:
        tensor = torch.from_dlpack(x.__dlpack__())
        return tensor.movedim(-1, 1) if channels_last else tensor

    def call(*tensors: Any) -> None:
        use_threads(threads)
        *inputs, out = map(view, tensors)
        with torch.inference_mode():
            out.copy_(program(*inputs)[0])

    return call


def _program(model: ir.Model, threads: int) -> Any:
    set_threads(Target("llvm"), LoadOptions(threads))
    from collage_torch.onednn.fusion import find_groups
    from collage_torch.ops import Program

    with quiet():
        program = Program(model, fuse=partial(find_groups, channels_last=True))
    check_by_running(program, model)  # The table tells only so what it does not take, such as an LSTM with peepholes.
    return program.forward
