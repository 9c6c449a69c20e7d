"""Replace groups of operators that exporters write by the single ONNX operator.

Numbers in the pieces that define the operator must be those of its definition: exponents, halves and ones to the bit, and
irrational numbers such as the root of 2 within one rounding of the type that they are written in. Parameters of the
operator, such as an epsilon, are carried over to the bit.

The operator rounds less often than its pieces. In the type's units in the last place, results stay within

| operator | units |
|---|---|
| LayerNormalization | 16 of ``(1 + max(abs(x)) / deviation) * abs(scale) + abs(bias)``, row by row |
| RMSNormalization | 16 of the result |
| Gelu | 8 of ``x`` |

as long as nothing in the pieces leaves the range of the type. In float16 a square does so from 256 on. Attention, which is not
part of the default preparation, is as precise as the toolchain's kernel. Of a row that a mask hides wholly by minus infinity,
the pieces make NaN, and a kernel may make zeros.

Applied where the model's opset has the operator. The default preparation does it from level 3 only: the pieces can be
spread over several kernels, and the toolchains that gain most by the whole recognise it themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from collage.graph import constant_tensor
from collage.pattern import (
    Builder,
    Match,
    NonLeafExternUse,
    NotApplicable,
    Pattern,
    PatternLike,
    RewriteRule,
    is_const,
    is_op,
    rewrite,
    wildcard,
)
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._marks import marked_functions_hidden
from collage.transform._pass_kinds import ModulePass
from collage.transform._sequential import Sequential

__all__ = [
    "RecogniseAttention",
    "RecogniseGelu",
    "RecogniseLayerNorm",
    "RecogniseOperators",
    "RecogniseRMSNorm",
]

_Replacement = dict[PatternLike | ir.Value, ir.Value]

_HALF_TO_SINGLE = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""Types that the normalisations take and compute in single precision at least; of doubles they would lose digits."""


_HIDES = -1e30
"""A number up to this one stays what it is if an ordinary score is added: the score is lost in the rounding."""


def RecogniseOperators() -> Sequential:
    """The recognitions of operators that every toolchain of the menu takes, which is all but Attention."""
    members = [RecogniseLayerNorm(), RecogniseRMSNorm(), RecogniseGelu()]
    return Sequential(members, opt_level=3, name="RecogniseOperators")


class _Recognise(ModulePass):
    """Applies rewrite rules until none matches."""

    rules: Sequence[type[RewriteRule]]

    def __init__(self) -> None:
        super().__init__(PassInfo(type(self).__name__, opt_level=3, required=("InferType",)))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Rewrites the model."""
        with marked_functions_hidden(model):
            rewrite(model, [rule() for rule in self.rules], in_place=True)
        return model


class _LayerNorm(RewriteRule):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axes."""

    def __init__(self) -> None:
        x = wildcard("x")
        self.mean = is_op("ReduceMean")(x, ...)
        centred = is_op("Sub")(x, self.mean)
        self.variance = is_op("ReduceMean")(_square_of(centred), ...)
        self.pattern = _closed(_scaled(_divided(centred, _root_of(self.variance)), with_bias=True))

    def callback(self, match: Match, op: Builder) -> _Replacement:
        """LayerNormalization of ``x``."""
        dims = _normalised_dims(match, self.mean)
        if _normalised_dims(match, self.variance) != dims:
            raise NotApplicable("mean and variance are taken over different axes")
        operands = [_affine_operand(match, op, "scale", dims)]
        if "bias" in match:
            operands.append(_affine_operand(match, op, "bias", dims))
        epsilon = _number(match["epsilon"])
        return {match.root: op.LayerNormalization(match["x"], *operands, axis=-len(dims), epsilon=epsilon)}


class _RMSNorm(RewriteRule):
    """``x / sqrt(mean(x * x) + epsilon) * scale`` over the last axes."""

    def __init__(self) -> None:
        x = wildcard("x")
        self.mean = is_op("ReduceMean")(_square_of(x), ...)
        self.pattern = _closed(_scaled(_divided(x, _root_of(self.mean)), with_bias=False))

    def callback(self, match: Match, op: Builder) -> _Replacement:
        """RMSNormalization of ``x``."""
        dims = _normalised_dims(match, self.mean)
        scale, epsilon = _affine_operand(match, op, "scale", dims), _number(match["epsilon"])
        return {match.root: op.RMSNormalization(match["x"], scale, axis=-len(dims), epsilon=epsilon)}


class _ErfGelu(RewriteRule):
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""

    def __init__(self) -> None:
        x = wildcard("x")
        root = is_op("Div")(x, _about(math.sqrt(2))) | is_op("Mul")(x, _about(math.sqrt(0.5)))
        self.pattern = _closed(_gated(x, is_op("Add")(is_op("Erf")(root), _exactly(1.0))))

    def callback(self, match: Match, op: Builder) -> _Replacement:
        """Gelu of ``x``."""
        _check_same_shape(match)
        return {match.root: op.Gelu(match["x"])}


class _TanhGelu(RewriteRule):
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``."""

    def __init__(self) -> None:
        x = wildcard("x")
        square = is_op("Mul")(x, x) | is_op("Pow")(x, _exactly(2.0))
        cube = is_op("Pow")(x, _exactly(3.0)) | is_op("Mul")(square, x)
        inner = is_op("Add")(x, is_op("Mul")(cube, _about(0.044715)))
        tanh = is_op("Tanh")(is_op("Mul")(inner, _about(math.sqrt(2 / math.pi))))
        self.pattern = _closed(_gated(x, is_op("Add")(tanh, _exactly(1.0))))

    def callback(self, match: Match, op: Builder) -> _Replacement:
        """Gelu of ``x``, approximated as it was."""
        _check_same_shape(match)
        return {match.root: op.Gelu(match["x"], approximate="tanh")}


class _Attention(RewriteRule):
    """``softmax(q k^T * scale + mask) v`` with as many heads of keys as of queries; [N, heads, length, width]."""

    def __init__(self) -> None:
        q, k, v, mask = wildcard("q"), wildcard("k"), wildcard("v"), wildcard("mask")
        self.keys = is_op("Transpose")(k)
        # PyTorch's exporter of today puts batch and heads together, swaps the last two axes, and takes them apart again.
        self.merged = is_op("Reshape")(k, wildcard())
        self.swapped = is_op("Transpose").has_attr(perm=(0, 2, 1))(self.merged)
        self.parted = is_op("Reshape")(self.swapped, wildcard())
        scores = _times(is_op("MatMul")(_times(q, "q_scale"), _times(self.keys | self.parted, "k_scale")), "scale")
        masked = is_op("Add")(scores.last, mask)
        # Scores that are hidden by a condition, and all but those that are kept by one.
        hidden = is_op("Where")(wildcard("hidden"), is_const(name="fill"), scores.last)
        kept = is_op("Where")(wildcard("kept"), scores.last, is_const(name="fill"))
        self.softmax = is_op("Softmax")(scores | masked | hidden | kept)
        self.pattern = _closed(is_op("MatMul")(self.softmax, v))

    def callback(self, match: Match, op: Builder) -> _Replacement:
        """Attention on ``q``, ``k``, ``v``."""
        q, k, v = match["q"], match["k"], match["v"]
        dims = [] if k.shape is None else list(k.shape)
        if self.keys in match:
            perm = list(match.node(self.keys).attributes.get_ints("perm", ()))
        else:
            dims = _swapped_dims(k, match[self.merged], match[self.parted])
            perm = [0, 1, 3, 2]
        if match.node(self.softmax).attributes.get_int("axis", -1) not in (-1, 3):
            raise NotApplicable("the softmax is not along the keys")
        scores = _scores_dims(q, dims, v, perm)
        masks = _masks(match, op, scores)
        scale = math.prod(_factor(match, name) for name in ("scale", "q_scale", "k_scale"))
        if not 0 < scale < math.inf:
            raise NotApplicable(f"the scores are scaled by {scale}, which the operator does not do")
        if k.shape is not None and len(k.shape) > len(dims):
            k = op.Reshape(k, np.array([0, *dims[1:]], dtype=np.int64))
        swapped = [perm[0], perm[1], perm[3], perm[2]]
        keys = k if swapped == [0, 1, 2, 3] else op.Transpose(k, perm=swapped)
        return {match.root: op.Attention(q, keys, v, *masks, scale=scale)}


class RecogniseLayerNorm(_Recognise):
    """LayerNormalization, from opset 17."""

    rules = (_LayerNorm,)


class RecogniseRMSNorm(_Recognise):
    """RMSNormalization, from opset 23."""

    rules = (_RMSNorm,)


class RecogniseGelu(_Recognise):
    """Gelu, exact or by tanh, from opset 20."""

    rules = (_ErfGelu, _TanhGelu)


class RecogniseAttention(_Recognise):
    """Attention, from opset 23; not every toolchain takes it."""

    rules = (_Attention,)


def _closed(pattern: Pattern) -> Pattern:
    pattern.add_graph_constraint(NonLeafExternUse(False))
    return pattern


def _exactly(number: float) -> Pattern:
    """A constant of one element, which is that number to the bit."""
    return is_const().where(lambda value: _distance(value, number) == 0, f"exactly {number}")


def _about(number: float) -> Pattern:
    """A constant of one element, which is that number but for one rounding of its type."""
    return is_const().where(lambda value: _distance(value, number) <= 1, f"{number} but for rounding")


def _distance(value: ir.Value, number: float) -> float:
    """Return the distance of a constant of one element from the nearest that its type has, in its relative precision."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1 or not (tensor.dtype.is_floating_point() or tensor.dtype.is_integer()):
        return math.inf
    array = tensor.numpy().reshape(-1)
    found, nearest = float(array[0]), float(np.asarray(number).astype(array.dtype))
    if found == nearest or not tensor.dtype.is_floating_point():
        return 0.0 if found == number or tensor.dtype.is_floating_point() else math.inf
    return abs(found - nearest) / (abs(nearest) * float(ml_dtypes.finfo(array.dtype).eps))


def _square_of(value: Pattern) -> Pattern:
    return is_op("Pow")(value, _exactly(2.0)) | is_op("Mul")(value, value)


def _root_of(value: Pattern) -> Pattern:
    return is_op("Sqrt")(is_op("Add")(value, is_const(name="epsilon")))


def _divided(value: Pattern, by: Pattern) -> Pattern:
    inverse = is_op("Reciprocal")(by) | is_op("Div")(_exactly(1.0), by)
    return is_op("Div")(value, by) | is_op("Mul")(value, inverse)


def _scaled(value: Pattern, *, with_bias: bool) -> Pattern:
    scaled = value.optional(lambda normal: is_op("Mul")(normal, is_const(name="scale")))
    return scaled.optional(lambda s: is_op("Add")(s, is_const(name="bias"))) if with_bias else scaled


def _gated(value: Pattern, gate: Pattern) -> Pattern:
    """``value / 2 * gate``, in whichever order it is multiplied."""
    half = _exactly(0.5)
    return (
        is_op("Mul")(is_op("Mul")(value, gate), half)
        | is_op("Mul")(is_op("Mul")(value, half), gate)
        | is_op("Mul")(value, is_op("Mul")(gate, half))
    )


def _times(value: Pattern, name: str) -> Pattern:
    """``value``, or it times the constant ``name``, or divided by the constant ``name_divisor``."""
    multiplied = is_op("Mul")(value, is_const(name=name))
    return value | multiplied | is_op("Div")(value, is_const(name=f"{name}_divisor"))


def _scores_dims(
    q: ir.Value, key_dims: Sequence[int | ir.SymbolicDim], v: ir.Value, perm: Sequence[int]
) -> list[int | ir.SymbolicDim]:
    """Batch, heads, length of the queries and of the keys, where all operands agree on them.

    Raises:
        NotApplicable: They do not fit, or may not: the operator does not broadcast, and has its own rule for fewer heads.
    """
    if q.dtype not in _HALF_TO_SINGLE:
        raise NotApplicable(f"the operator may compute in single precision, which is too little for {q.dtype}")
    if q.shape is None or v.shape is None or not len(q.shape) == len(key_dims) == len(v.shape) == len(perm) == 4:
        raise NotApplicable("queries, keys and values are not of shape [N, heads, length, width]")
    keys = [key_dims[axis] for axis in perm]
    if [q.shape[0], q.shape[1], keys[3]] != [keys[0], keys[1], v.shape[2]] or list(q.shape[:2]) != list(v.shape[:2]):
        raise NotApplicable(f"shapes {q.shape}, {keys} and {v.shape} differ in batch, heads or number of keys")
    dims = [q.shape[0], q.shape[1], q.shape[2], keys[3]]
    if not all(isinstance(dim, int) or dim.value is not None for dim in dims):
        raise NotApplicable("batch, heads or lengths are not known")
    return dims


def _swapped_dims(k: ir.Value, merged: ir.Value, parted: ir.Value) -> list[int | ir.SymbolicDim]:
    """Return batch, heads, length and width of keys of which exactly the last two axes are swapped.

    Batch and heads may be merged in between. The heads may be two axes: groups, and the queries that share one.

    Raises:
        NotApplicable: Something else is merged or parted, or a length is not known.
    """
    shape = [] if k.shape is None else list(k.shape)
    inner = [dim for dim in shape[1:] if isinstance(dim, int) and dim > 0]
    if len(shape) in (4, 5) and len(inner) == len(shape) - 1:
        heads, length, width = math.prod(inner[:-2]), inner[-2], inner[-1]
        between = None if merged.shape is None else list(merged.shape[1:])
        after = None if parted.shape is None else list(parted.shape[1:])
        if between == [length, width] and after == [heads, width, length]:
            return [shape[0], heads, length, width]
    raise NotApplicable(f"keys of shape {k.shape} become {merged.shape}, then {parted.shape}")


def _masks(match: Match, op: Builder, scores: Sequence[int | ir.SymbolicDim]) -> list[ir.Value]:
    """Return what is added to the scores: nothing, or one mask.

    Raises:
        NotApplicable: The mask does not fit, or hidden scores get a number that a sum would not round to.
    """
    for name in ("mask", "hidden", "kept"):
        if name not in match:
            continue
        _check_mask(match[name], scores)
        if name == "mask":
            return [match[name]]
        fill = match["fill"]
        if (lowest := _number(fill)) > _HIDES:
            raise NotApplicable(f"hidden scores are {lowest}, which is not far below all others")
        nothing = np.zeros((), fill.dtype.numpy() if fill.dtype is not None else np.float32)
        return [op.Where(match[name], *((fill, nothing) if name == "hidden" else (nothing, fill)))]
    return []


def _check_mask(mask: ir.Value, scores: Sequence[int | ir.SymbolicDim]) -> None:
    """Refuse masks that are shorter than the scores: Addition repeats them, but the operator hides the rest.

    Raises:
        NotApplicable: The mask is repeated along queries or keys, or not known to be of a shape that fits.
    """
    shape = [] if mask.shape is None else list(mask.shape)
    fits = all(dim in (1, of) for dim, of in zip(reversed(shape), reversed(scores), strict=False))
    if not 2 <= len(shape) <= 4 or shape[-2:] != list(scores[-2:]) or not fits:
        raise NotApplicable(f"the mask's shape {mask.shape} does not give each of the scores {scores} a number")


def _factor(match: Match, name: str) -> float:
    if name in match:
        return _number(match[name])
    return 1 / _number(match[f"{name}_divisor"]) if f"{name}_divisor" in match else 1.0


def _number(value: ir.Value) -> float:
    """The one number of a constant.

    Raises:
        NotApplicable: It holds several.
    """
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1:
        raise NotApplicable(f"{value.name!r} is not a single number")
    return float(tensor.numpy().reshape(-1)[0])


def _check_same_shape(match: Match) -> None:
    """Constants of one element may have a rank, which would raise that of the result."""
    shape, result = match["x"].shape, match.root.shape
    if shape is None or shape != result:
        raise NotApplicable(f"the result's shape {result} is not known to be the input's, {shape}")


def _normalised_dims(match: Match, mean: Pattern) -> tuple[int, ...]:
    """The lengths of the axes that a mean is taken over.

    Raises:
        NotApplicable: They are not the last ones, not of known length, or not kept; or the type would lose digits.
    """
    node, x = match.node(mean), match["x"]
    _check_same_shape(match)
    if x.dtype not in _HALF_TO_SINGLE:
        raise NotApplicable(f"the operator computes in single precision, which is too little for {x.dtype}")
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1:
        tensor = constant_tensor(node.inputs[1]) if node.inputs[1] is not None else None
        axes = tensor.numpy().reshape(-1).tolist() if tensor is not None else None
    if not axes or not node.attributes.get_int("keepdims", 1) or x.shape is None:
        raise NotApplicable("the mean is not over known axes that are kept")
    rank = len(x.shape)
    if sorted(axis % rank for axis in axes) != list(range(rank - len(axes), rank)):
        raise NotApplicable(f"axes {axes} are not the last ones of {rank}")
    dims = tuple(dim for dim in x.shape[-len(axes) :] if isinstance(dim, int))
    if len(dims) != len(axes):
        raise NotApplicable(f"the lengths of the axes {axes} are not known")
    return dims


def _affine_operand(match: Match, op: Builder, name: str, dims: tuple[int, ...]) -> ir.Value:
    """The constant called ``name`` in the shape that the operator needs; ones if there is none.

    Raises:
        NotApplicable: It is not one number per element of the normalised axes.
    """
    dtype = match["x"].dtype
    assert dtype is not None
    if name not in match:
        return op.constant(np.ones(dims, dtype.numpy()), name)
    tensor = constant_tensor(match[name])
    shape = tuple(tensor.shape.numpy()) if tensor is not None else ()
    if tensor is None or shape[-len(dims) :] != dims or any(dim != 1 for dim in shape[: -len(dims)]):
        raise NotApplicable(f"{name} {match[name].name!r} of shape {shape} is not one number per element of {dims}")
    return match[name] if shape == dims else op.constant(tensor.numpy().reshape(dims), name)
