"""NumExpr as a toolchain of Collage: chains of element-wise operators on float32, evaluated in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.target import Target
from collage.toolchains import (
    Availability,
    Compiled,
    Kernel,
    LoadOptions,
    OptionValues,
    Support,
    ToolchainBase,
    Unsupported,
    check_options,
    load_threads,
    save_kernel,
)

EXPRESSIONS: Mapping[str, str] = {
    "Abs": "abs({0})",
    "Add": "({0} + {1})",
    "Cos": "cos({0})",
    "Div": "({0} / {1})",
    "Exp": "exp({0})",
    "Log": "log({0})",
    "Mul": "({0} * {1})",
    "Neg": "(-{0})",
    "Reciprocal": "(1 / {0})",
    "Relu": "where({0} < 0, 0, {0})",  # and not maximum, so that NaN stays NaN
    "Sigmoid": "(1 / (1 + exp(-{0})))",
    "Sin": "sin({0})",
    "Sqrt": "sqrt({0})",
    "Sub": "({0} - {1})",
    "Tanh": "tanh({0})",
}
"""What NumExpr evaluates in one pass. Shapes follow NumPy's rules, which are ONNX's."""

LONGEST = 4000
"""Characters of an expression. A value that is used twice occurs twice in it; NumExpr finds that out again."""


class NumexprToolchain(ToolchainBase):
    """Compiles element-wise kernels for NumExpr."""

    name = "numexpr"
    targets = ("llvm -libs=numexpr",)
    options = {"threads": "number of threads (default: NumExpr's own); one number for the whole process"}
    # NumExpr merges what it is given into one pass: large kernels are worth offering.
    optimises_whole_graphs = True

    def option_values(self, target: Target) -> OptionValues:
        """A whole number from 1, for the one option."""
        return {"threads": None}

    def availability(self) -> Availability:
        """Whether NumExpr can be imported."""
        try:
            import numexpr
        except ImportError as error:
            return Availability(False, reason=str(error), remedy="pip install numexpr")
        return Availability(True, numexpr.__version__, f"numexpr {numexpr.__version__}", ("CPU",))

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Asked for every operator of a model; a refusal says why, and must not raise."""
        reason = _refusal(node)
        return Support(reason is None, reason)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Keeps the kernel as ONNX: NumExpr compiles in microseconds, when it is loaded."""
        check_options(target, self.option_values(target))
        for node in kernel.graph:
            if (reason := _refusal(node)) is not None:
                raise Unsupported(reason)
        _check_types([*kernel.graph.inputs, *kernel.graph.outputs, *kernel.graph.initializers.values()])
        _expressions(kernel.graph)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), save_kernel(kernel, workspace), inputs, outputs, portable=True)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """One NumExpr program for each output; constants are bound here, once."""
        import numexpr

        check_options(target, self.option_values(target))
        numexpr.set_num_threads(load_threads(target, options) or numexpr.detect_number_of_cores())
        return _Programs(ir.load(workspace / compiled.files[0]).graph)


class _Programs:
    reuses_outputs = False

    def __init__(self, graph: ir.Graph) -> None:
        import numexpr

        kind = numexpr.necompiler.kind_to_type["float"]
        self._constants = [np.array(v.const_value.numpy()) for v in graph.initializers.values() if v.const_value]
        names = [f"v{i}" for i in range(len(graph.inputs) + len(self._constants))]
        self._programs = []
        for text in _expressions(graph):
            places = [i for i, name in enumerate(names) if f"{name}_" in text]
            # A program of nothing but a variable is none to NumExpr; adding nothing copies it.
            program = numexpr.NumExpr(f"{text} + 0", signature=[(f"{names[i]}_", kind) for i in places])
            self._programs.append((program, places))

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        values = [*inputs, *self._constants]
        return [_evaluate(program, [values[i] for i in places]) for program, places in self._programs]


def _evaluate(program: Any, values: Sequence[Any]) -> Any:
    shape = np.broadcast_shapes(*(value.shape for value in values))
    if 0 in shape:
        return np.empty(shape, np.float32)
    return np.asarray(program(*values, order="C", casting="safe", ex_uses_vml=False))


def _expressions(graph: ir.Graph) -> list[str]:
    """One expression for each output, over ``v0_``, ``v1_``, ...: the inputs, and then the initializers."""
    texts = {value: f"v{i}_" for i, value in enumerate([*graph.inputs, *graph.initializers.values()])}
    for node in graph:
        text = EXPRESSIONS[node.op_type].format(*(texts[value] for value in node.inputs if value is not None))
        if len(text) > LONGEST:
            raise Unsupported(f"numexpr: an expression of more than {LONGEST} characters, at {node.name!r}")
        texts[node.outputs[0]] = text
    return [texts[value] for value in graph.outputs]


def _refusal(node: ir.Node) -> str | None:
    if node.domain or node.op_type not in EXPRESSIONS:
        return f"numexpr does not compute {node.op_type}"
    try:
        _check_types([*(value for value in node.inputs if value is not None), *node.outputs])
    except Unsupported as refusal:
        return str(refusal)
    return None


def _check_types(values: Iterable[ir.Value]) -> None:
    for value in values:
        dtype = value.dtype if value.const_value is None else value.const_value.dtype
        if dtype not in (None, ir.DataType.FLOAT):
            raise Unsupported(f"numexpr: only float32 is compiled here, and {value.name!r} is {dtype}")
