"""Kernels that every toolchain is tried on, with inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Tensor

__all__ = ["COMMON", "DTYPES", "DYNAMIC", "EDGES", "INDICES", "SHARED", "SYMBOLIC", "KernelCase", "kernel"]


@dataclass(frozen=True)
class KernelCase:
    """A kernel in ONNX's text form, and inputs.

    Attributes:
        name: Name of the case, and of the kernel.
        text: A graph, ``(float[2] x) => (float[2] y) { y = Relu (x) }``.
        inputs: Inputs in order.
        weights: Values of names that the graph uses and does not define.
    """

    name: str
    text: str
    inputs: Sequence[Tensor]
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def model(self) -> ir.Model:
        """The kernel as toolchains get it."""
        return kernel(self.name, self.text, self.weights)


def kernel(name: str, text: str, weights: Mapping[str, Tensor] | None = None) -> ir.Model:
    """Build a kernel from a graph in ONNX's text form and values of its weights."""
    # Late: child processes that a test starts import this package too, and need none of it.
    import onnx
    import onnx.parser
    import onnx_ir as ir

    header = '<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>'
    proto = onnx.parser.parse_model(f"{header} {name} {text}")
    for weight, value in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, weight))
    for index, node in enumerate(proto.graph.node):
        node.name = f"node_{index}"
    return ir.serde.deserialize_model(proto)


def _numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _integers(*values: Any) -> Tensor:
    return np.array(values, np.int64)


_NOT_FINITE = np.array([np.nan, np.inf, -np.inf, 0, -1, 1], np.float32)

COMMON = (
    KernelCase(
        "conv_relu",
        "(float[1,3,16,16] x) => (float[1,8,16,16] y) {a = Conv <pads = [1,1,1,1]> (x, w, b) y = Relu (a)}",
        [_numbers(1, 3, 16, 16)],
        {"w": _numbers(8, 3, 3, 3, seed=1), "b": _numbers(8, seed=2)},
    ),
    KernelCase(
        "matmul",
        "(float[4,32] x) => (float[4,16] y) {a = MatMul (x, w) y = Add (a, b)}",
        [_numbers(4, 32)],
        {"w": _numbers(32, 16, seed=1), "b": _numbers(16, seed=2)},
    ),
    KernelCase("softmax", "(float[2,5,40] x) => (float[2,5,40] y) {y = Softmax <axis = -1> (x)}", [_numbers(2, 5, 40)]),
    KernelCase(
        "attention",
        """(float[2,6,8] q, float[2,6,8] k, float[2,6,8] v) => (float[2,6,8] y) {
            t = Transpose <perm = [0,2,1]> (k) s = MatMul (q, t)
            d = Mul (s, scale) p = Softmax (d) y = MatMul (p, v)}""",
        [_numbers(2, 6, 8, seed=seed) for seed in range(3)],
        {"scale": np.array(0.35, np.float32)},
    ),
    KernelCase(
        "reduce",
        "(float[3,4,5] x) => (float[3,1,5] m, float[3,4] s) "
        "{m = ReduceMean (x, one) s = ReduceMax <keepdims = 0> (x, two)}",
        [_numbers(3, 4, 5)],
        {"one": _integers(1), "two": _integers(2)},
    ),
    KernelCase(
        "gather",
        "(float[10,4] x, int64[2,3] i) => (float[2,3,4] y) {y = Gather (x, i)}",
        [_numbers(10, 4), _integers([0, 9, -1], [3, 3, 5])],
    ),
    KernelCase(
        "split",
        "(float[2,9] x) => (float[2,4] a, float[2,5] b) {a, b = Split <axis = 1> (x, sizes)}",
        [_numbers(2, 9)],
        {"sizes": _integers(4, 5)},
    ),
    KernelCase(
        "topk",
        "(float[3,20] x) => (float[3,4] v, int64[3,4] i) {v, i = TopK (x, k)}",
        [_numbers(3, 20)],
        {"k": _integers(4)},
    ),
    KernelCase(
        "batch_norm_pool",
        """(float[2,4,8,8] x) => (float[2,4,4,4] y) {
            n = BatchNormalization (x, scale, bias, mean, variance)
            y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (n)}""",
        [_numbers(2, 4, 8, 8)],
        {
            "scale": _numbers(4, seed=1),
            "bias": _numbers(4, seed=2),
            "mean": _numbers(4, seed=3),
            "variance": np.abs(_numbers(4, seed=4)) + 0.5,
        },
    ),
    KernelCase(
        "layer_norm_gelu",
        "(float[2,5,16] x) => (float[2,5,16] y) {n = LayerNormalization (x, s, b) y = Gelu (n)}",
        [_numbers(2, 5, 16)],
        {"s": _numbers(16, seed=1), "b": _numbers(16, seed=2)},
    ),
    KernelCase(
        "elementwise",
        "(float[4,32] x) => (float[4,32] y) {a = Mul (x, w) b = Tanh (a) y = Add (b, x)}",
        [_numbers(4, 32)],
        {"w": _numbers(32, seed=1)},
    ),
)
"""Kernels that any toolchain for neural networks is expected to take."""

_TWICE = _numbers(4, 16)

SHARED = (
    KernelCase(
        "sorted_and_used",
        """(float[3,20] x) => (float[3,4] v, int64[3,4] i, float[3,20] n, float[3,20] y) {
            n = Neg (x) v, i = TopK (n, k) y = Relu (n)}""",
        [_numbers(3, 20)],
        {"k": _integers(4)},
    ),
    KernelCase(
        "sorted_input",
        "(float[3,20] x) => (float[3,20] v, int64[3,20] i) {v, i = TopK (x, k)}",
        [_numbers(3, 20)],
        {"k": _integers(20)},
    ),
    KernelCase(
        "updated_and_used",
        """(float[4,16] x, int64[2,16] i, float[2,16] u) => (float[4,16] s, float[4,16] n, float[4,16] y) {
            n = Neg (x) s = ScatterElements (n, i, u) y = Add (s, n)}""",
        [_numbers(4, 16), _integers([0] * 16, [2] * 16), _numbers(2, 16, seed=1)],
    ),
    KernelCase(
        "overwritable_and_used",
        "(float[4,16] x) => (float[4,16] n, float[4,16] r, float[4,16] y) {n = Neg (x) r = Relu (n) y = Softmax (r)}",
        [_numbers(4, 16)],
    ),
    KernelCase(
        "nothing_to_do",
        """(float[4,16] x) => (float[4,16] n, float[4,16] a, float[4,16] b, float[4,16] c) {
            n = Neg (x) a = Add (n, zero) b = Slice (x, begin, end) c = Slice (n, begin, end)}""",
        [_numbers(4, 16)],
        {"zero": np.array(0, np.float32), "begin": _integers(0, 0), "end": _integers(4, 16)},
    ),
    KernelCase(
        "one_array_twice",
        "(float[4,16] x, float[4,16] z) => (float[4,16] s, float[4,16] y) {s = Sub (x, z) a = Exp (x) y = Mul (a, z)}",
        [_TWICE, _TWICE],
    ),
)
"""Kernels in which operators must not write over their inputs or return them, although they otherwise may. Right or refused."""

DYNAMIC = (
    (
        KernelCase("dynamic_softmax", "(float[N,8] x) => (float[N,8] y) {a = Exp (x) y = Softmax (a)}", []),
        [[_numbers(size, 8)] for size in (3, 1, 7, 3)],
    ),
    (
        KernelCase(
            "dynamic_matmul",
            "(float[N,M,8] x) => (float[N,M,4] y) {a = MatMul (x, w) y = Relu (a)}",
            [],
            {"w": _numbers(8, 4)},
        ),
        [[_numbers(n, m, 8)] for n, m in ((1, 5), (4, 2), (1, 5))],
    ),
    (
        KernelCase("dynamic_elementwise", "(float[N,8] x) => (float[N,8] y) {a = Neg (x) y = Exp (a)}", []),
        [[_numbers(size, 8)] for size in (3, 0, 7, 3)],
    ),
    (
        KernelCase(
            "dynamic_last",
            "(float[2,N,8] x) => (float[2,2,8] y) {a = Gather <axis = 1> (x, i) y = Relu (a)}",
            [],
            {"i": _integers(0, -1)},
        ),
        [[_numbers(2, size, 8)] for size in (6, 3, 9)],
    ),
    (
        KernelCase(
            "dynamic_expand",
            "(float[N,4] x, float[M,4] z) => (float[K,4] y) {s = Shape (z) a = Expand (x, s) y = Neg (a)}",
            [],
        ),
        [[_numbers(n, 4), _numbers(m, 4)] for n, m in ((5, 1), (1, 6), (3, 3))],
    ),
    (
        KernelCase("dynamic_product", "(float[3,N] x, float[N,5] z) => (float[3,5] y) {y = MatMul (x, z)}", []),
        [[_numbers(3, size), _numbers(size, 5)] for size in (4, 0, 6)],
    ),
    (
        KernelCase(
            "dynamic_sum",
            "(float[N,8] x) => (float[1,8] y) {a = Neg (x) y = ReduceSum (a, zero)}",
            [],
            {"zero": _integers(0)},
        ),
        [[_numbers(size, 8)] for size in (3, 0, 7)],
    ),
)
"""Kernels with symbolic dimensions, and several inputs for each; on empty inputs a kernel is right or refuses."""

SYMBOLIC = frozenset(case.name for case, _ in DYNAMIC)
"""Names of the kernels that a toolchain for fixed shapes refuses."""

EDGES = (
    KernelCase(
        "scalars",
        "(float x, float z) => (float y) {a = Add (x, z) y = Tanh (a)}",
        [np.array(1.5, np.float32), np.array(-3, np.float32)],
    ),
    KernelCase(
        "empty", "(float[0,4] x) => (float[0,2] y) {y = MatMul (x, w)}", [_numbers(0, 4)], {"w": _numbers(4, 2)}
    ),
    KernelCase("empty_elementwise", "(float[0,4] x) => (float[0,4] y) {a = Neg (x) y = Exp (a)}", [_numbers(0, 4)]),
    KernelCase(
        "not_finite",
        "(float[6] x) => (float[6] y, float[6] z) {y = Tanh (x) z = Add (x, x)}",
        [_NOT_FINITE],
    ),
    KernelCase("not_finite_relu", "(float[6] x) => (float[6] y) {y = Relu (x)}", [_NOT_FINITE]),
    KernelCase("not_finite_max", "(float[6] x) => (float y) {y = ReduceMax <keepdims = 0> (x)}", [_NOT_FINITE]),
    KernelCase(
        "not_finite_softmax",
        "(float[2,3] x) => (float[2,3] y) {y = Softmax (x)}",
        [np.array([[-np.inf, 0, 1], [np.nan, 0, 1]], np.float32)],
    ),
    KernelCase("passed_on", "(float[4] x) => (float[4] y, float[4] x) {y = Neg (x)}", [_numbers(4)]),
    KernelCase(
        "constant_output", "(float[2] x) => (float[2] y, float[3] c) {y = Neg (x)}", [_numbers(2)], {"c": _numbers(3)}
    ),
    KernelCase(
        "unused_input", "(float[2] u, float[2] x) => (float[2] y) {y = Neg (x)}", [_numbers(2), _numbers(2, seed=1)]
    ),
    KernelCase(
        "inner_output", "(float[4] x) => (float[4] z, float[4] y) {y = Exp (x) z = Identity (y)}", [_numbers(4)]
    ),
    KernelCase(
        "views",
        """(float[2,3,4] x) => (float[4,6] y) {
            a = Reshape (x, s) b = Transpose (a) c = Unsqueeze (b, zero) d = Squeeze (c, zero) y = Flatten (d)}""",
        [_numbers(2, 3, 4)],
        {"s": _integers(6, 4), "zero": _integers(0)},
    ),
    KernelCase(
        "copied_dimension",
        "(float[N,3,4] x) => (float[N,12] y) {y = Reshape (x, s)}",
        [_numbers(2, 3, 4)],
        {"s": _integers(0, -1)},
    ),
    KernelCase(
        "control_flow",
        """(bool c, float[3] x) => (float[3] y) {
            y = If (c) <then_branch = yes () => (float[3] a) {a = Neg (x)},
                        else_branch = no () => (float[3] b) {b = Exp (x)}>}""",
        [np.array(True), _numbers(3)],
    ),
)
"""Kernels with extreme tensors: scalars, empty ones, very long axes. A toolchain is right or refuses."""

INDICES = (
    (
        KernelCase("index_given", "(float[10,4] x, int64[2] i) => (float[2,4] y) {a = Gather (x, i) y = Tanh (a)}", []),
        [_integers(0, 9), _integers(-10, -1)],
        [_integers(0, 10), _integers(-11, 0), _integers(3, 2**32 + 3), _integers(0, -(2**63)), _integers(10**9, 0)],
    ),
    (
        KernelCase(
            "index_of_open_length", "(float[N,4] x, int32[1] i) => (float[1,4] y) {a = Gather (x, i) y = Tanh (a)}", []
        ),
        [np.array([9], np.int32), np.array([-10], np.int32)],
        [np.array([n], np.int32) for n in (10, -11, 2**31 - 1)],
    ),
    (
        KernelCase(
            "index_computed",
            "(float[10,4] x, int64[2] i) => (float[2,4] y) {a = Add (i, two) b = Gather (x, a) y = Tanh (b)}",
            [],
            {"two": _integers(2)},
        ),
        [_integers(0, 7), _integers(-12, -3)],
        [_integers(0, 8), _integers(-13, 0), _integers(0, 10**6)],
    ),
    (
        KernelCase(
            "index_of_floats",
            "(float[10,4] x, float[2,4] i) => (float[2,4] y) {a = Cast <to = 6> (i) b = GatherElements (x, a) y = Tanh (b)}",
            [],
        ),
        [np.full((2, 4), n, np.float32) for n in (0, 9.5, -10)],
        [np.full((2, 4), n, np.float32) for n in (10, -11, 1e6)],
    ),
    (
        KernelCase(
            "index_written",
            "(float[10,4] x, int64[2,1] i) => (float[10,4] y) {a = ScatterND (x, i, u) y = Tanh (a)}",
            [],
            {"u": _numbers(2, 4, seed=3)},
        ),
        [_integers([0], [9]), _integers([-1], [-10])],
        [_integers([0], [10]), _integers([-11], [3]), _integers([2**33], [0])],
    ),
    (
        KernelCase(
            "index_of_two_axes",
            "(float[10,4] x, int64[2,2] i) => (float[2] y) {n = Neg (i) a = GatherND (x, n) y = Tanh (a)}",
            [],
        ),
        [_integers([0, -3], [-9, 4]), _integers([10, 1], [1, 1])],
        [_integers([-3, -4], [0, 0]), _integers([0, 5], [0, 0]), _integers([11, 0], [0, 0])],
    ),
)
"""Kernels that take indices, the input ``i`` in range, and the same beyond it. Beyond, a kernel raises an error."""

DTYPES = (
    KernelCase(
        "bools",
        "(bool[4] x, bool[4] z) => (bool[4] y) {a = And (x, z) y = Not (a)}",
        [np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)],
    ),
    KernelCase("int64", "(int64[3] x) => (int64[3] y) {y = Add (x, x)}", [_integers(1, -2, 3)]),
    KernelCase("large_int64", "(int64[3] x) => (int64[3] y) {y = Add (x, x)}", [_integers(2**60 + 1, -2, 3)]),
    KernelCase(
        "large_int64_weight",
        "(int64[3] x) => (int64[3] y) {y = Add (x, w)}",
        [_integers(1, 2, 3)],
        {"w": _integers(2**40, 1, 2)},
    ),
    KernelCase(
        "slice_to_end",
        "(float[6] x) => (float[4] y) {y = Slice (x, s, e)}",
        [_numbers(6)],
        {"s": _integers(2), "e": _integers(np.iinfo(np.int64).max)},
    ),
    KernelCase("int32", "(int32[3] x) => (int32[3] y) {y = Mul (x, x)}", [np.array([1, -2, 3], np.int32)]),
    KernelCase("float64", "(double[3] x) => (double[3] y) {y = Add (x, x)}", [np.array([1 + 1e-12, 2, 3])]),
    KernelCase(
        "inner_float64",
        "(float[3] x) => (float[3] y) {a = Cast <to = 11> (x) b = Add (a, w) c = Sub (b, w) y = Cast <to = 1> (c)}",
        [np.array([1.25, 2.5, 3.5], np.float32)],
        {"w": np.array(1e10)},
    ),
    KernelCase(
        "inner_sequence",
        "(float[4] x) => (float[2] y) {s = SplitToSequence (x, two) y = SequenceAt (s, one)}",
        [_numbers(4)],
        {"two": np.array(2, np.int64), "one": np.array(1, np.int64)},
    ),
    KernelCase("sequence_length", "(seq(float) s) => (int64 n) {n = SequenceLength (s)}", [[_numbers(4)]]),  # type: ignore[list-item]
    KernelCase("float16", "(float16[8] x) => (float16[8] y) {y = Add (x, x)}", [_numbers(8, dtype=np.float16)]),
    KernelCase(
        "cast_to_bool",
        "(float[4] x) => (bool[4] y) {y = Greater (x, z)}",
        [_numbers(4)],
        {"z": np.zeros(1, np.float32)},
    ),
    KernelCase("uint8", "(uint8[4] x) => (float[4] y) {y = Cast <to = 1> (x)}", [np.array([0, 1, 128, 255], np.uint8)]),
    KernelCase(
        "quantise",
        "(float[6] x) => (int8[6] q, float[6] y) {q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)}",
        [_numbers(6)],
        {"s": np.array(0.05, np.float32), "z": np.array(0, np.int8)},
    ),
)
"""Element types. A toolchain is right or refuses; it never computes in another type without saying so."""
