"""Operator kinds: how an operator may be fused with its neighbours.

TVM calls this attribute ``TOpPattern``. The kinds are ordered: a sub-graph is as hard to fuse as its hardest operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum

import onnx_ir as ir

from collage.graph._traversal import bodies, constant_tensor

__all__ = [
    "OpKind",
    "declared_kind",
    "is_shape_operand",
    "is_view",
    "known_operators",
    "main_op_type",
    "op_kind",
    "register_op_kind",
]


class OpKind(IntEnum):
    """The way in which the elements of an operator's output depend on those of its inputs."""

    ELEMWISE = 0
    """Output element i depends on element i of each input."""
    BROADCAST = 1
    """Elementwise, after broadcasting some inputs."""
    INJECTIVE = 2
    """Each output element is a copy of one input element: reshapes, slices, transpositions."""
    COMM_REDUCE = 3
    """A commutative reduction along some axes."""
    OUT_ELEMWISE_FUSABLE = 4
    """Anything that can take elementwise operators into its epilogue: convolutions, products, pools, norms."""
    OPAQUE = 5
    """Fused with nothing: data-dependent shapes, random numbers, control flow, sequences, strings."""


_TABLE: dict[tuple[str, str], OpKind] = {}


def register_op_kind(domain: str, op_type: str, kind: OpKind) -> None:
    """Declare the kind of an operator; a later declaration replaces an earlier one."""
    _TABLE["" if domain == "ai.onnx" else domain, op_type] = kind


def known_operators() -> frozenset[tuple[str, str]]:
    """Every (domain, operator) whose kind was declared."""
    return frozenset(_TABLE)


def declared_kind(domain: str, op_type: str) -> OpKind:
    """Return the kind of an operator, wherever it stands; operators that nothing declared are opaque."""
    return _TABLE.get(("" if domain == "ai.onnx" else domain, op_type), OpKind.OPAQUE)


def _declare(kind: OpKind, names: str, domain: str = "") -> None:
    for name in names.split():
        register_op_kind(domain, name, kind)


_declare(
    OpKind.ELEMWISE,
    "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu "
    "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid "
    "Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu",
)
_declare(
    OpKind.BROADCAST,
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike DequantizeLinear Div Equal Expand Greater "
    "GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu Pow QuantizeLinear RotaryEmbedding Sub Sum SwiGLU "
    "Where Xor",
)
_declare(
    OpKind.INJECTIVE,
    "BlackmanWindow CenterCropPad Concat ConstantOfShape Constant DepthToSpace EyeLike Flatten Gather GatherElements "
    "GatherND HammingWindow HannWindow MelWeightMatrix Pad Range Reshape Resize ReverseSequence Slice SpaceToDepth "
    "Split Squeeze Tile Transpose Unsqueeze Upsample",
)
_declare(
    OpKind.COMM_REDUCE,
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare",
)
_declare(
    OpKind.OUT_ELEMWISE_FUSABLE,
    "AffineGrid Attention AveragePool BatchNormalization CausalConvWithState Col2Im Conv ConvInteger ConvTranspose "
    "DeformConv Einsum Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization Hardmax "
    "InstanceNormalization LayerNormalization LinearAttention LogSoftmax LpNormalization LpPool MatMul MatMulInteger "
    "MaxPool MeanVarianceNormalization OneHot QLinearConv QLinearMatMul RMSNormalization RoiAlign MaxRoiPool Softmax",
)
_declare(
    OpKind.OPAQUE,
    "Bernoulli Compress ConcatFromSequence CumProd CumSum DFT Det Dropout DynamicQuantizeLinear GRU If ImageDecoder "
    "LRN LSTM Loop MaxUnpool Multinomial NegativeLogLikelihoodLoss NonMaxSuppression NonZero Optional "
    "OptionalGetElement OptionalHasElement RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike "
    "RegexFullMatch STFT Scan Scatter ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SequenceMap Shape Size SoftmaxCrossEntropyLoss SplitToSequence "
    "StringConcat StringNormalizer StringSplit TensorScatter TfIdfVectorizer TopK Unique",
)
_declare(OpKind.ELEMWISE, "Binarizer", "ai.onnx.ml")
_declare(OpKind.BROADCAST, "Imputer Scaler", "ai.onnx.ml")
_declare(OpKind.INJECTIVE, "ArrayFeatureExtractor FeatureVectorizer", "ai.onnx.ml")
_declare(OpKind.OUT_ELEMWISE_FUSABLE, "LinearRegressor Normalizer OneHotEncoder", "ai.onnx.ml")
_declare(
    OpKind.OPAQUE,
    "CastMap CategoryMapper DictVectorizer LabelEncoder LinearClassifier SVMClassifier SVMRegressor TreeEnsemble "
    "TreeEnsembleClassifier TreeEnsembleRegressor ZipMap",
    "ai.onnx.ml",
)
_declare(OpKind.OPAQUE, "FlexAttention", "ai.onnx.preview")
_declare(OpKind.OPAQUE, "Adagrad Adam Gradient Momentum", "ai.onnx.preview.training")

_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"})


def op_kind(node: ir.Node) -> OpKind:
    """The kind of an operator where it stands.

    Refines the declared kind twice. A broadcast whose operands all have the shape of its result is elementwise, as
    in TVM's FuseOps. An operator whose output shape depends on data that varies is opaque, as are operators with
    bodies and undeclared operators.
    """
    kind = _TABLE.get((node.domain, node.op_type), OpKind.OPAQUE)
    if kind is OpKind.BROADCAST and node.op_type != "Expand" and _keeps_shape(node):
        return OpKind.ELEMWISE
    if kind is not OpKind.OPAQUE and (_has_data_dependent_shape(node) or any(bodies(node))):
        return OpKind.OPAQUE
    return kind


_WORK = {
    OpKind.OUT_ELEMWISE_FUSABLE: 3,
    OpKind.OPAQUE: 2,
    OpKind.COMM_REDUCE: 1,
}
"""Order of kinds by the work that they usually are; all others are least."""


def main_op_type(op_types: Iterable[str]) -> str:
    """Return the type that a kernel of such operators is called after; empty if there are none.

    The most frequent type among the operators of the heaviest kind. Of several, the first.
    """
    counts = Counter(op_types)

    def work(op_type: str) -> tuple[int, int]:
        return _WORK.get(_TABLE.get(("", op_type), OpKind.OPAQUE), 0), counts[op_type]

    return max(counts, key=work, default="")  # Of equals, `max` returns the first, and counts keep the order.


def is_shape_operand(node: ir.Node, position: int) -> bool:
    """Return True if the values, not only the shape, of the input at ``position`` decide the shape of the output."""
    return node.domain == "" and position in _SHAPE_OPERANDS.get(node.op_type, ())


def is_view(node: ir.Node) -> bool:
    """Return True if the node moves no data: its output is its input under another shape, or a shape itself."""
    return node.domain == "" and node.op_type in _VIEWS


def _keeps_shape(node: ir.Node) -> bool:
    """Return True if every operand has the shape of the result. Constants of one element count as part of the operator."""
    shape = node.outputs[0].shape
    if shape is None or shape.has_unknown_dim():
        return False
    for value in node.inputs:
        if value is None or value.shape == shape:
            continue
        tensor = constant_tensor(value)
        if tensor is None or tensor.size != 1:
            return False
    return True


def _has_data_dependent_shape(node: ir.Node) -> bool:
    operands: Sequence[int] = _SHAPE_OPERANDS.get(node.op_type, ()) if node.domain == "" else ()
    if not operands or all(v.shape is not None and v.shape.is_static() for v in node.outputs):
        return False
    given = (node.inputs[i] for i in operands if i < len(node.inputs))
    return any(value is not None and constant_tensor(value) is None for value in given)
