"""ONNX Runtime's contributed operators, as far as its optimisers make them, written in ONNX's own.

Who optimises a model with ONNX Runtime and saves it gets a file that only ONNX Runtime, and by halves OpenVINO, can read; and
ONNX infers no shape behind such an operator. Here each is a few lines of standard operators of opset 17, which knows
LayerNormalization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

__all__ = ["CONTRIBUTED", "Facts", "has_contributed", "is_contributed", "opset_to_write_in", "standard_form"]

CONTRIBUTED = "com.microsoft"
"""The domain of most of them; the others have none, like operators of ONNX that came later."""

_OLDEST_OPSET = 13
_STANDARD_OPSET = 17
_MASKED = -10000.0
"""What is added to a score that does not count, unless the node says otherwise."""

Facts = Callable[[str], "tuple[int, Sequence[int | None] | None]"]
"""Element type of a value, 0 where it is not known, and its lengths, None where the rank is not known."""


class _Undefined(Exception):
    """A node is of a form that is not written out here."""


def is_contributed(domain: str, op_type: str, version: int) -> bool:
    """Whether an operator of a model of an opset has a definition here."""
    if domain in ("", "ai.onnx"):
        return version < _LATER.get(op_type, 0)
    return domain == CONTRIBUTED and op_type in _DEFINITIONS and op_type not in _LATER


def has_contributed(model: ir.Model) -> bool:
    """Whether a model holds such an operator, in bodies too."""
    version = model.opset_imports.get("", 1)
    return any(is_contributed(node.domain, node.op_type, version) for node in model.graph.all_nodes())


def opset_to_write_in(version: int, operators: Iterable[tuple[str, int]]) -> int:
    """The opset in which a model of an older one means the same, and in which its contributed operators can be written out.

    Args:
        version: The model's opset.
        operators: Type of each node, and how many outputs it has.

    Returns:
        17, or the model's own where that is newer, or where there is no such opset.
    """
    if not _OLDEST_OPSET <= version < _STANDARD_OPSET:
        return version
    # Regions moved by half a pixel, and what training returns beside the result: all else that is new was added.
    changed = any(op_type == "RoiAlign" or (op_type == "BatchNormalization" and n > 1) for op_type, n in operators)
    return version if changed else _STANDARD_OPSET


def standard_form(
    node: onnx.NodeProto, version: int, facts: Facts, *, exact: bool = True
) -> list[onnx.NodeProto] | None:
    """Standard nodes that compute what a contributed one does; None where there are none, or a fact is missing.

    Args:
        node: Of a model that has ONNX's opset ``version``.
        version: From 17; see ``opset_to_write_in``.
        facts: What is known of the node's inputs.
        exact: If not, types and shapes of the outputs are all that counts, and fewer facts are needed.

    Returns:
        Nodes in order. Their names, and those of the values between them, begin with the name of the first output.
    """
    if version < _STANDARD_OPSET or not is_contributed(node.domain, node.op_type, version):
        return None
    body = _Body(node, version, facts, exact)
    try:
        made = _DEFINITIONS[node.op_type](body)
    except _Undefined:
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


class _Inputs(NamedTuple):
    """Projected heads of an attention: [N, heads, length, width] each."""

    query: str
    key: str
    value: str


class _Body:
    """The nodes of a definition, as they are written."""

    def __init__(self, node: onnx.NodeProto, version: int, facts: Facts, exact: bool) -> None:
        self.version = version
        self.exact = exact
        self.nodes: list[onnx.NodeProto] = []
        self._attributes: Mapping[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._inputs: list[str] = list(node.input)
        self._outputs: list[str] = list(node.output)
        self._facts = facts
        # Ids of words come first, and are not what is computed with.
        self._like = 2 if node.op_type == "EmbedLayerNormalization" else 0
        self._kind = facts(self.input(self._like))[0]
        self._prefix = next(name for name in node.output if name)

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node of one output."""
        return self.several(1, op_type, *inputs, **attributes)[0]

    def several(self, count: int, op_type: str, *inputs: str, **attributes: Any) -> list[str]:
        """Adds a node of several outputs."""
        name = f"{self._prefix}.{op_type}.{len(self.nodes)}"
        outputs = [f"{name}.{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name, **attributes))
        return outputs

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self._inputs) and bool(self._inputs[index])

    def wants(self, index: int) -> bool:
        """Whether an output is."""
        return index < len(self._outputs) and bool(self._outputs[index])

    def input(self, index: int) -> str:
        """The name of an input that must be given."""
        if not self.has(index):
            raise _Undefined
        return self._inputs[index]

    def get(self, name: str, default: Any) -> Any:
        """An attribute; texts are decoded."""
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def need(self, known: bool) -> None:
        """Gives up where something is not known, or not written out here, and the outputs' values count."""
        if self.exact and not known:
            raise _Undefined

    def attributes(self, *left_out: str) -> dict[str, Any]:
        """All attributes but some."""
        return {name: value for name, value in self._attributes.items() if name not in left_out}

    def rank(self, index: int) -> int | None:
        """Of an input, where it is known."""
        shape = self._facts(self.input(index))[1]
        return None if shape is None else len(shape)

    def length(self, index: int, axis: int) -> int:
        """Of an input along an axis; -1 where it is not known and need not be."""
        shape = self._facts(self.input(index))[1]
        length = None if shape is None or len(shape) <= axis else shape[axis]
        self.need(length is not None)
        return -1 if length is None else length

    def integers(self, *values: int) -> str:
        """A vector of int64."""
        return self._constant(np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """A scalar of int64."""
        return self._constant(np.array(value, np.int64))

    def number(self, value: float) -> str:
        """A scalar of the type that is computed in."""
        if self._kind:
            return self._constant(np.array(value, helper.tensor_dtype_to_np_dtype(self._kind)))
        return self.as_computed(self._constant(np.array(value, np.float32)))

    def as_computed(self, x: str) -> str:
        """A value in the type that is computed in; single precision where nothing tells it."""
        return self("Cast", x, to=self._kind) if self._kind else self("CastLike", x, self.input(self._like))

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        return self("Constant", value=numpy_helper.from_array(array))

    def mean(self, x: str) -> str:
        """Along the last axis, which stays."""
        if self.version >= 18:
            return self("ReduceMean", x, self.integers(-1), keepdims=1)
        return self("ReduceMean", x, axes=[-1], keepdims=1)

    def sliced(self, x: str, axis: int, start: int, end: int) -> str:
        """A part of a value along an axis."""
        return self("Slice", x, self.integers(start), self.integers(end), self.integers(axis))


def _fused_mat_mul(b: _Body) -> Sequence[str]:
    a, c = (_transposed(b, i, b.get(f"trans{x}", 0), b.get(f"transBatch{x}", 0)) for i, x in enumerate("AB"))
    return [_scaled(b, b("MatMul", a, c), b.get("alpha", 1.0))]


def _transposed(b: _Body, index: int, last_two: int, batch: int) -> str:
    x = b.input(index)
    if not (last_two or batch):
        return x
    rank = b.rank(index)
    if rank is None:
        b.need(False)
        if batch:
            raise _Undefined
        return b("Einsum", x, equation="...ij->...ji")
    if rank < 2:
        return x
    axes = list(range(rank))
    if batch:
        axes = [*axes[1:-1], 0, axes[-1]]
    if last_two:
        axes[-2:] = axes[:-3:-1]
    return b("Transpose", x, perm=axes)


def _scaled(b: _Body, x: str, factor: float) -> str:
    return x if factor == 1 else b("Mul", x, b.number(factor))


def _fused_gemm(b: _Body) -> Sequence[str]:
    activation = [name for name in b.attributes() if name.startswith("activation")]
    inputs = [b.input(i) for i in range(3) if b.has(i)]
    y = b("Gemm", *inputs, **b.attributes(*activation))
    parameters = [b.get(name, 0.0) for name in ("activation_alpha", "activation_beta") if name in activation]
    return [_activated(b, y, b.get("activation", ""), parameters)]


def _fused_conv(b: _Body) -> Sequence[str]:
    inputs = [b.input(0), b.input(1), *([b.input(2)] if b.has(2) else [])]
    y = b("Conv", *inputs, **b.attributes("activation", "activation_params"))
    if b.has(3):
        y = b("Add", y, b.input(3))
    return [_activated(b, y, b.get("activation", ""), b.get("activation_params", ()))]


def _activated(b: _Body, x: str, name: str, parameters: Sequence[float]) -> str:
    if not name:
        return x
    if name in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"):
        return b(name, x)
    if name in ("Elu", "LeakyRelu", "ThresholdedRelu") and len(parameters) == 1:
        return b(name, x, alpha=parameters[0])
    if name == "HardSigmoid" and len(parameters) == 2:
        return b(name, x, alpha=parameters[0], beta=parameters[1])
    if name == "Clip" and len(parameters) == 2:
        return b(name, x, *(b.number(limit) for limit in parameters))
    raise _Undefined


def _gelu(b: _Body) -> Sequence[str]:
    return [_gelu_of(b, b.input(0))]


def _bias_gelu(b: _Body) -> Sequence[str]:
    return [_gelu_of(b, b("Add", b.input(0), b.input(1)))]


def _gelu_of(b: _Body, x: str) -> str:
    if b.version >= 20:
        return b("Gelu", x)
    gate = b("Add", b("Erf", b("Mul", x, b.number(math.sqrt(0.5)))), b.number(1))
    return b("Mul", b("Mul", x, b.number(0.5)), gate)


def _fast_gelu(b: _Body) -> Sequence[str]:
    x = b("Add", b.input(0), b.input(1)) if b.has(1) else b.input(0)
    if b.version >= 20:
        return [b("Gelu", x, approximate="tanh")]
    cube = b("Mul", b("Mul", x, x), b("Mul", x, b.number(0.044715)))
    inner = b("Mul", b("Add", x, cube), b.number(math.sqrt(2 / math.pi)))
    return [b("Mul", b("Mul", x, b.number(0.5)), b("Add", b("Tanh", inner), b.number(1)))]


def _quick_gelu(b: _Body) -> Sequence[str]:
    x = b.input(0)
    return [b("Mul", x, b("Sigmoid", b("Mul", x, b.number(b.get("alpha", 1.702)))))]


def _simplified_layer_norm(b: _Body) -> Sequence[str]:
    b.need(b.get("axis", -1) in (-1, (b.rank(0) or 0) - 1))
    y, inverse = _divided_by_root_mean_square(b, b.input(0), b.input(1), b.get("epsilon", 1e-5))
    return [y, inverse]


def _skip_layer_norm(b: _Body) -> Sequence[str]:
    total = _sum_of(b, 0, 1, 4)
    bias = b.input(3) if b.has(3) else None
    return [*_normalised(b, total, b.input(2), bias, b.get("epsilon", 1e-12)), total]


def _skip_simplified_layer_norm(b: _Body) -> Sequence[str]:
    total = _sum_of(b, 0, 1, 3)
    y, inverse = _divided_by_root_mean_square(b, total, b.input(2), b.get("epsilon", 1e-12))
    return [y, "", inverse, total]


def _sum_of(b: _Body, *indices: int) -> str:
    total = b.input(indices[0])
    for index in indices[1:]:
        total = b("Add", total, b.input(index)) if b.has(index) else total
    return total


def _normalised(b: _Body, x: str, scale: str, bias: str | None, epsilon: float) -> list[str]:
    """Along the last axis; the mean and the inverse of the deviation come with it."""
    given = [x, scale] if bias is None else [x, scale, bias]
    return b.several(3, "LayerNormalization", *given, axis=-1, epsilon=epsilon)


def _divided_by_root_mean_square(b: _Body, x: str, scale: str, epsilon: float) -> tuple[str, str]:
    root = b("Sqrt", b("Add", b.mean(b("Mul", x, x)), b.number(epsilon)))
    inverse = b("Reciprocal", root)
    return b("Mul", b("Mul", x, inverse), scale), inverse


def _embed_layer_norm(b: _Body) -> Sequence[str]:
    ids, words, places = b.input(0), b.input(2), b.input(3)
    if b.has(8):
        place = b("Gather", places, b.input(8))
    else:
        length = b("Slice", b("Shape", ids), b.integers(1), b.integers(2))
        place = b("Unsqueeze", b("Slice", places, b.integers(0), length, b.integers(0)), b.integers(0))
    total = b("Add", b("Gather", words, ids), place)
    if b.has(1):
        total = b("Add", total, b("Gather", b.input(4), b.input(1)))
    y = _normalised(b, total, b.input(5), b.input(6), b.get("epsilon", 1e-12))[0]
    return [y, _mask_index(b, ids), total] if b.wants(1) or b.wants(2) else [y]


def _mask_index(b: _Body, ids: str) -> str:
    """How many words of each sequence count."""
    if b.has(7):
        return b("ReduceSum", b("Cast", b.input(7), to=onnx.TensorProto.INT32), b.integers(1), keepdims=0)
    count = b("Slice", b("Shape", ids), b.integers(0), b.integers(1))
    return b("ConstantOfShape", count, value=numpy_helper.from_array(np.zeros(1, np.int32)))


def _attention(b: _Body) -> Sequence[str]:
    """Input [N, S, D], weights [D, Hq + Hk + Hv], bias, mask, past [2, N, heads, P, width], addend to the scores."""
    if b.has(6) or b.get("do_rotary", 0) or b.get("past_present_share_buffer", 0):
        raise _Undefined
    widths = list(b.get("qkv_hidden_sizes", ())) or [b.length(1, 1) // 3] * 3
    if min(widths) < 1:
        raise _Undefined
    joint = b("MatMul", b.input(0), b.input(1))
    joint = b("Add", joint, b.input(2)) if b.has(2) else joint
    parts = b.several(3, "Split", joint, b.integers(*widths), axis=-1)
    heads = _Inputs(*(_heads(b, x, width) for x, width in zip(parts, widths, strict=True)))
    past = [b("Gather", b.input(4), b.integer(i), axis=0) for i in (0, 1)] if b.has(4) else []
    heads = _after_past(b, heads, past)
    y = _attended(b, heads, widths[0], widths[2], mask=3, addend=5)
    if not b.wants(1):
        return [y]
    both = [b("Unsqueeze", x, b.integers(0)) for x in (heads.key, heads.value)]
    return [y, b("Concat", *both, axis=0)]


def _multi_head_attention(b: _Body) -> Sequence[str]:
    """Query [N, S, H], key and value [N, T, H] or as heads, bias [2 H + Hv], mask, addend, past key and value."""
    if not (b.has(1) and b.has(2)) or any(map(b.has, (8, 9))) or b.rank(0) not in (3, None) or b.wants(3):
        raise _Undefined
    names = [b.input(i) for i in range(3)]
    width = b.length(0, 2)
    given_as_heads = b.rank(1) == 4
    value_width = b.length(2, 1) * b.length(2, 3) if given_as_heads else b.length(2, 2)
    widths = [width, width, value_width]
    if b.has(3) and min(widths) > 0:
        b.need(not given_as_heads)
        biases = b.several(3, "Split", b.input(3), b.integers(*widths), axis=0)
        names = [b("Add", x, bias) for x, bias in zip(names, biases, strict=True)]
    query = _heads(b, names[0], width)
    key, value = names[1:] if given_as_heads else (_heads(b, x, w) for x, w in zip(names[1:], widths[1:], strict=True))
    heads = _after_past(b, _Inputs(query, key, value), [b.input(i) for i in (6, 7) if b.has(i)])
    return [_attended(b, heads, width, value_width, mask=4, addend=5), heads.key, heads.value]


def _heads(b: _Body, x: str, width: int) -> str:
    """[N, S, heads * w] as [N, heads, S, w]."""
    count = b.get("num_heads", 0)
    if count < 1 or (width > 0 and width % count):
        raise _Undefined
    lengths = b.integers(0, 0, count, width // count if width > 0 else -1)
    return b("Transpose", b("Reshape", x, lengths), perm=[0, 2, 1, 3])


def _after_past(b: _Body, heads: _Inputs, past: Sequence[str]) -> _Inputs:
    if not past:
        return heads
    key, value = (b("Concat", old, new, axis=2) for old, new in zip(past, heads[1:], strict=True))
    return _Inputs(heads.query, key, value)


def _attended(b: _Body, heads: _Inputs, width: int, value_width: int, *, mask: int, addend: int) -> str:
    """[N, S, value_width]: values, weighted by how well keys fit queries."""
    scale = b.get("scale", 0.0) or 1 / math.sqrt(abs(width) / b.get("num_heads", 1))
    scores = b("MatMul", _scaled(b, heads.query, scale), b("Transpose", heads.key, perm=[0, 1, 3, 2]))
    if b.has(addend):
        scores = b("Add", scores, b.input(addend))
    if b.has(mask) and b.exact:
        scores = b("Add", scores, _penalties(b, mask))
    if b.get("unidirectional", 0) and b.exact:
        scores = b("Add", scores, _penalties_of_the_future(b, scores))
    weighted = b("MatMul", b("Softmax", scores, axis=-1), heads.value)
    return b("Reshape", b("Transpose", weighted, perm=[0, 2, 1, 3]), b.integers(0, 0, value_width))


def _penalties(b: _Body, mask: int) -> str:
    """Of [N, T] or [N, S, T], 1 where a key counts and 0 where it does not, for scores [N, heads, S, T]."""
    axes = {2: (1, 2), 3: (1,)}.get(b.rank(mask) or 0)
    if axes is None:
        raise _Undefined
    counts = b("Unsqueeze", b.as_computed(b.input(mask)), b.integers(*axes))
    return b("Mul", b("Sub", b.number(1), counts), b.number(b.get("mask_filter_value", _MASKED)))


def _penalties_of_the_future(b: _Body, scores: str) -> str:
    """[S, T]: for keys that come after a query, whose own is the last but S - 1 - i."""
    shape = b("Slice", b("Shape", scores), b.integers(2), b.integers(4))
    queries, keys = (b.sliced(shape, 0, i, i + 1) for i in (0, 1))
    rows = b("Unsqueeze", _counted(b, queries), b.integers(1))
    later = b("Greater", _counted(b, keys), b("Add", rows, b("Sub", keys, queries)))
    return b("Mul", b.as_computed(later), b.number(b.get("mask_filter_value", _MASKED)))


def _counted(b: _Body, length: str) -> str:
    """0, 1, ... up to a length, a vector of one element."""
    zero, one = (b.integer(i) for i in (0, 1))
    return b("Range", zero, b("Squeeze", length, b.integers(0)), one)


_DEFINITIONS: Mapping[str, Callable[[_Body], Sequence[str]]] = {
    "Attention": _attention,
    "BiasGelu": _bias_gelu,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_mat_mul,
    "Gelu": _gelu,
    "MultiHeadAttention": _multi_head_attention,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
    "TransposeMatMul": _fused_mat_mul,
}

_LATER = {"LayerNormalization": _STANDARD_OPSET, "SimplifiedLayerNormalization": math.inf}
"""Operators that ONNX Runtime writes without a domain before ONNX has them: the first opset that does."""
