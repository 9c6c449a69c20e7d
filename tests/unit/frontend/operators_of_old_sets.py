"""Models of one operator, in every operator set from 1 to 12 in which they are written like this.

Every operator of these sets that differs from that of set 13, in its definition or its text, is here with the attributes,
types and ranks on which the difference depends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

NEWEST = 12


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(-2, 2, shape), dtype)


def integers(*shape: int, most: int = 5, seed: int = 0, dtype: Any = np.int64) -> Array:
    return np.asarray(np.random.default_rng(seed).integers(0, most, shape), dtype)


def flags(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).integers(0, 2, shape), bool)


@dataclass(frozen=True)
class Case:
    """One way to write an operator.

    Attributes:
        operator: Its name.
        inputs: Its inputs; None for one that is left out.
        attributes: Its attributes.
        outputs: How many outputs are asked for.
        constants: Indices of the inputs that are initializers.
        sets: The first and the last operator set in which it can be written like this, if the definitions do not tell.
    """

    operator: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constants: tuple[int, ...] = ()
    sets: tuple[int, int] = (1, NEWEST)

    def versions(self) -> list[int]:
        """The operator sets whose definition has these attributes and so many inputs, outputs and types."""
        return [version for version in range(self.sets[0], self.sets[1] + 1) if self._is_defined(version)]

    def _is_defined(self, version: int) -> bool:
        try:
            schema = onnx.defs.get_schema(self.operator, version)
        except onnx.defs.SchemaError:
            return False
        given = len(self.inputs)
        required = {name for name, attribute in schema.attributes.items() if attribute.required}
        return (
            not schema.deprecated
            and required <= self.attributes.keys() <= schema.attributes.keys()
            and schema.min_input <= given <= schema.max_input
            and self.outputs <= schema.max_output
            and self._is_valid(version)
        )

    def _is_valid(self, version: int) -> bool:
        model = self.model(version)
        for output in model.graph.output:
            output.type.tensor_type.shape.SetInParent()  # The checker insists on one, and infers another one with content.
        try:
            onnx.checker.check_model(model)
            onnx.shape_inference.infer_shapes(self.model(version), check_type=True, strict_mode=version >= 7)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            return False
        return True

    def model(self, version: int, *, ranks: bool = True, fixed: bool = True) -> onnx.ModelProto:
        """The model in an operator set.

        Args:
            version: The operator set.
            ranks: The shapes of the inputs are declared.
            fixed: Their lengths are, too.
        """
        names = [f"i{number}" if array is not None else "" for number, array in enumerate(self.inputs)]
        inputs, initializers = [], []
        for number, array in enumerate(self.inputs):
            if array is None:
                continue
            if number in self.constants:
                initializers.append(numpy_helper.from_array(array, names[number]))
                if version >= 9:
                    continue
            lengths = (
                array.shape
                if fixed or number in self.constants
                else [f"{names[number]}_{k}" for k in range(array.ndim)]
            )
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(
                helper.make_tensor_value_info(
                    names[number], kind, lengths if ranks or number in self.constants else None
                )
            )
        outputs = [f"o{number}" for number in range(self.outputs)]
        node = helper.make_node(self.operator, names, outputs, **self.attributes)
        graph = helper.make_graph(
            [node], "g", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs], initializers
        )
        model = helper.make_model(
            graph, ir_version=3 if version < 9 else 4, opset_imports=[helper.make_opsetid("", version)]
        )
        return _with_types(model)

    def feeds(self) -> dict[str, Array]:
        return {
            f"i{number}": array
            for number, array in enumerate(self.inputs)
            if array is not None and number not in self.constants
        }


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Declares the types of the outputs, and no shapes."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, known in zip(model.graph.output, inferred.graph.output, strict=True):
        kind = known.type.tensor_type.elem_type or model.graph.input[0].type.tensor_type.elem_type
        if (
            named := next((a.s.decode() for a in model.graph.node[0].attribute if a.name == "to" and a.s), None)
        ) is not None:
            kind = onnx.TensorProto.DataType.Value(named)
        output.type.tensor_type.elem_type = kind
    return model


def cases() -> Iterator[Case]:
    yield from _elementwise()
    yield from _broadcast()
    yield from _reductions()
    yield from _normalisations()
    yield from _windows()
    yield from _products()
    yield from _shapes()
    yield from _indices()
    yield from _images()
    yield from _recurrences()


X = floats(2, 3, 4, 5)
_UNARY = "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Identity IsNaN Log Neg Reciprocal Relu Round"
_UNARY += (
    " Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh HardSigmoid Elu Selu LeakyRelu ThresholdedRelu Shrink Celu"
)


def _elementwise() -> Iterator[Case]:
    for operator in _UNARY.split():
        x = {"Acosh": 1.5 + np.abs(X), "Log": np.abs(X) + 0.1, "Sqrt": np.abs(X)}.get(operator, X / 2.5)
        yield Case(operator, (x.astype(np.float32),))
        yield Case(operator, (x.astype(np.float32)[0, 0, 0],))
    for operator in ("Abs", "Neg", "Sign", "Relu"):
        for dtype in (np.int32, np.int64, np.float64):
            yield Case(operator, (integers(3, 4, dtype=dtype) - dtype(2),))
    yield Case("Elu", (X,), {"alpha": 0.3})
    yield Case("Selu", (X,), {"alpha": 0.3, "gamma": 2.0})
    yield Case("LeakyRelu", (X,), {"alpha": 0.3})
    yield Case("HardSigmoid", (X,), {"alpha": 0.3, "beta": 0.4})
    yield Case("ThresholdedRelu", (X,), {"alpha": 0.3})
    yield Case("Shrink", (X,), {"bias": 0.1, "lambd": 0.4})
    yield Case("Not", (flags(3, 4),))
    yield Case("Relu", (X,), {"consumed_inputs": [0]})
    yield Case("Tanh", (X,), {"consumed_inputs": [0]})
    for bounds in ({}, {"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}):
        yield Case("Clip", (X,), bounds)
        yield Case("Clip", (np.array([-np.inf, -1, 0.25, 1, np.inf], np.float32),), bounds, sets=(6, 10))
    low, high = np.array(-0.5, np.float32), np.array(0.5, np.float32)
    for limits in ((low,), (low, high), (None, high)):
        yield Case("Clip", (X, *limits), sets=(11, 12))
        yield Case("Clip", (X, *limits), constants=(1, 2), sets=(11, 12))
    yield Case("Clip", (integers(3, 4, dtype=np.int32), np.array(1, np.int32), np.array(3, np.int32)), sets=(12, 12))
    for kind, code in (("FLOAT", 1), ("INT32", 6), ("INT64", 7), ("BOOL", 9), ("DOUBLE", 11), ("UINT8", 2)):
        for x in (np.abs(X), flags(3, 4), integers(3, 4), integers(3, 4, dtype=np.uint8)):
            yield Case("Cast", (x,), {"to": kind}, sets=(1, 5))
            yield Case("Cast", (x,), {"to": code}, sets=(6, NEWEST))
    for attributes in ({}, {"fmod": 1}):
        yield Case("Mod", (X, floats(5, seed=1)), {"fmod": 1})
        yield Case("Mod", (integers(3, 4, most=20) - 10, integers(4, seed=1) - 7), attributes)
    yield Case("IsInf", (np.float32([1, np.inf, -np.inf, np.nan]),))
    yield Case("IsInf", (np.float32([1, np.inf, -np.inf, np.nan]),), {"detect_negative": 0})
    yield Case("BitShift", (integers(3, 4, dtype=np.uint8), integers(4, dtype=np.uint8)), {"direction": "LEFT"})
    for outputs in (1, 2):
        for attributes in ({}, {"ratio": 0.3}, {"is_test": 1}, {"is_test": 1, "ratio": 0.3}):
            yield Case("Dropout", (X,), attributes, outputs)
        yield Case("Dropout", (X, np.array(0.4, np.float32)), {}, outputs, (1,))
        yield Case("Dropout", (X, np.array(0.4, np.float32), np.array(False)), {}, outputs, (1, 2))
    scale, zero = np.array(0.05, np.float32), np.array(100, np.uint8)
    yield Case("QuantizeLinear", (X, scale, zero))
    yield Case("QuantizeLinear", (X, scale))
    yield Case("DequantizeLinear", (integers(3, 4, most=200, dtype=np.uint8), scale, zero))
    yield Case("DynamicQuantizeLinear", (X,), outputs=3)


_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
_COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
_LOGICAL = ("And", "Or", "Xor")
_SIDES = (
    ((3,), 1),
    ((3, 4), 1),
    ((2, 3), 0),
    ((4,), 2),
    ((5,), 3),
    ((5,), None),
    ((4, 5), None),
    ((1,), None),
    ((2, 3, 4, 5), None),
)
_SIDES += (((), None), ((3,), -3), ((1, 1), None), ((3, 1, 1), None), ((1, 3), 0), ((2,), 0))


def _binary(operator: str, *shape: int, seed: int = 0) -> Array:
    if operator in _LOGICAL:
        return flags(*shape, seed=seed)
    if operator == "Pow":
        return np.asarray(np.abs(floats(*shape, seed=seed)))
    if operator == "Div":
        return np.asarray(np.abs(floats(*shape, seed=seed)) + np.float32(0.5))
    x = floats(*shape, seed=seed)
    return np.asarray(np.round(x)) if operator in _COMPARISONS else x


def _broadcast() -> Iterator[Case]:
    for operator in (*_ARITHMETIC, *_COMPARISONS, *_LOGICAL):
        left = _binary(operator, 2, 3, 4, 5)
        if operator == "Equal":
            left = left.astype(np.int32)
        for shape, axis in _SIDES:
            right = _binary(operator, *shape, seed=1).astype(left.dtype)
            attributes = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
            for constants in ((), (1,)):
                yield Case(operator, (left, right), attributes, constants=constants, sets=(1, 6))
            if axis is None:
                yield Case(operator, (left, right), sets=(7, NEWEST))
                yield Case(operator, (right, left), sets=(7, NEWEST))
        square = _binary(operator, 3, 3, 3, 3).astype(left.dtype)
        yield Case(
            operator,
            (square, _binary(operator, 3, seed=1).astype(left.dtype)),
            {"broadcast": 1, "axis": 1},
            sets=(1, 6),
        )
        yield Case(operator, (left, left.copy()), sets=(1, 6))
        yield Case(operator, (left, left.copy()), {"broadcast": 0}, sets=(1, 6))
    for operator in ("Add", "Sub", "Mul", "Div"):
        for dtype in (np.int32, np.int64, np.float64):
            left, right = integers(3, 4, most=9, dtype=dtype), 1 + integers(4, seed=1, dtype=dtype)
            yield Case(operator, (left, right), {"broadcast": 1}, sets=(1, 6))
            yield Case(operator, (left, right), sets=(7, NEWEST))
    yield Case("Pow", (np.abs(X), integers(5)), sets=(12, 12))
    for operator in ("Max", "Min", "Mean", "Sum"):
        for count in (1, 2, 3):
            yield Case(operator, tuple(floats(3, 4, seed=seed) for seed in range(count)))
        yield Case(operator, (X, floats(5, seed=1), floats(4, 1, seed=2)), sets=(8, NEWEST))
        yield Case(operator, (X, floats(2, 3, 4, 5, seed=1)), {"consumed_inputs": [0, 0]})
    for operator in ("Max", "Min"):
        yield Case(operator, (integers(3, 4), integers(4, seed=1)), sets=(12, 12))
    for last in (3, 5):
        x = floats(2, 3, 4, last)
        for constants in ((), (1,)):
            for shape in ((3,), (1,)):
                yield Case("PRelu", (x, floats(*shape, seed=1)), constants=constants, sets=(1, 6))
            for shape in ((last,), (1,), (3, 1, 1), (3, 4, last), ()):
                yield Case("PRelu", (x, floats(*shape, seed=1)), constants=constants, sets=(7, NEWEST))
    yield Case("PRelu", (floats(2, 3), floats(3, seed=1)))
    yield Case("Where", (flags(3, 1), floats(4), floats(3, 4, seed=1)))
    yield Case("Expand", (floats(3, 1), np.array([2, 3, 4])), constants=(1,))


def _reductions() -> Iterator[Case]:
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
        operator, x = f"Reduce{kind}", np.abs(X) + 0.1
        for axes in (None, [1], [0, 2], [3], [-1], [-2, 1]):
            for kept in ({}, {"keepdims": 0}):
                attributes = ({} if axes is None else {"axes": axes}) | kept
                yield Case(operator, (x,), attributes, sets=(1 if axes is None or min(axes) >= 0 else 11, NEWEST))
        yield Case(operator, (integers(2, 3, 4, dtype=np.int32) + np.int32(1),), {"axes": [1]})
    for operator in ("ArgMax", "ArgMin"):
        for x in (X, np.round(X), integers(2, 3, 4, dtype=np.int32)):
            for attributes in (
                {},
                {"axis": 1},
                {"axis": -1},
                {"axis": 2, "keepdims": 0},
                {"axis": 1, "select_last_index": 1},
            ):
                yield Case(operator, (x,), attributes, sets=(11 if attributes.get("axis") == -1 else 1, NEWEST))
    for axis in (0, 1, np.array([1])):
        for attributes in ({}, {"exclusive": 1}, {"reverse": 1}):
            yield Case("CumSum", (X, np.array(axis).astype(np.int64)), attributes, constants=(1,))


def _normalisations() -> Iterator[Case]:
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        for x in (floats(3, 4), floats(2, 3, 4), X, np.round(X), floats(7)):
            for axis in (None, *range(-x.ndim, x.ndim)):
                attributes = {} if axis is None else {"axis": axis}
                if axis is None and x.ndim == 1:
                    continue
                yield Case(operator, (x,), attributes, sets=(11 if axis is not None and axis < 0 else 1, NEWEST))
    scale, shift, mean, variance = (
        floats(3, seed=1),
        floats(3, seed=2),
        floats(3, seed=3),
        0.5 + np.abs(floats(3, seed=4)),
    )
    for x in (X, floats(2, 3), floats(2, 3, 4)):
        for attributes in (
            {},
            {"epsilon": 0.1},
            {"momentum": 0.5},
            {"spatial": 1},
            {"is_test": 1},
            {"is_test": 1, "spatial": 1},
        ):
            more: dict[str, Any] = {"consumed_inputs": [0, 0, 0, 1, 1]}
            for constants in ((), (1, 2, 3, 4)):
                yield Case("BatchNormalization", (x, scale, shift, mean, variance), attributes, constants=constants)
                yield Case(
                    "BatchNormalization", (x, scale, shift, mean, variance), attributes | more, constants=constants
                )
    each = [floats(3, 4, 5, seed=seed) for seed in range(4)]
    for attributes in ({"spatial": 0}, {"spatial": 0, "is_test": 1}):
        yield Case("BatchNormalization", (X, each[0], each[1], each[2], np.abs(each[3]) + 0.5), attributes)
    for attributes in ({}, {"is_test": 0}, {"spatial": 1}):
        yield Case("BatchNormalization", (X, scale, shift, mean, variance), attributes, outputs=5)
    yield Case("InstanceNormalization", (X, scale, shift))
    yield Case("InstanceNormalization", (X, scale, shift), {"epsilon": 0.1})
    yield Case("InstanceNormalization", (X, scale, shift), {"epsilon": 0.1, "consumed_inputs": [0, 0, 0]})
    yield Case("LRN", (floats(2, 7, 3, 3),), {"size": 3, "alpha": 0.1, "beta": 0.5, "bias": 2.0})
    for p in (1, 2):
        for axis in (-1, 1):
            yield Case("LpNormalization", (X,), {"axis": axis, "p": p})
    yield Case("MeanVarianceNormalization", (X,))
    yield Case("MeanVarianceNormalization", (X,), {"axes": [2, 3]})


def _windows() -> Iterator[Case]:
    x, x1, w = floats(2, 3, 7, 6), floats(2, 3, 9), floats(4, 3, 3, 2, seed=1)
    steps = ({}, {"strides": [2, 1]}, {"pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"})
    steps += ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "VALID"})
    for more in steps:
        for operator in ("AveragePool", "MaxPool", "LpPool"):
            yield Case(operator, (x,), {"kernel_shape": [3, 2], **more})
        for bias in ((), (floats(4, seed=2),)):
            yield Case("Conv", (x, w, *bias), more)
            yield Case("Conv", (x, w, *bias), {"kernel_shape": [3, 2], **more}, constants=(1, 2))
        yield Case("ConvTranspose", (x, floats(3, 4, 3, 2, seed=1)), more)
    for more in ({"ceil_mode": 1, "strides": [2, 2]}, {"ceil_mode": 1, "strides": [3, 2], "pads": [1, 0, 1, 1]}):
        yield Case("AveragePool", (x,), {"kernel_shape": [3, 2], **more})
        yield Case("MaxPool", (x,), {"kernel_shape": [3, 2], **more})
    yield Case("AveragePool", (x,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1})
    yield Case("MaxPool", (x,), {"kernel_shape": [3, 2], "dilations": [2, 1]})
    for more in ({}, {"storage_order": 1}, {"pads": [1, 0, 1, 1]}):
        yield Case("MaxPool", (x,), {"kernel_shape": [3, 2], **more}, outputs=2)
    yield Case("MaxPool", (integers(2, 3, 7, 6, most=99, dtype=np.uint8),), {"kernel_shape": [3, 2]})
    for operator in ("AveragePool", "MaxPool", "LpPool"):
        yield Case(operator, (x1,), {"kernel_shape": [3], "strides": [2]})
    for p in (1, 3, 1.0, 3.0):
        yield Case("LpPool", (x,), {"kernel_shape": [3, 2], "p": p})
    for operator in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield Case(operator, (x,))
    for p in (1, 1.0):
        yield Case("GlobalLpPool", (x,), {"p": p})
    yield Case("Conv", (floats(2, 4, 7), floats(4, 2, 3)), {"group": 2, "dilations": [2]})
    yield Case("ConvTranspose", (floats(2, 4, 7), floats(4, 3, 3)), {"group": 2, "strides": [2], "output_padding": [1]})
    yield Case("ConvTranspose", (x, floats(3, 4, 3, 2, seed=1)), {"strides": [2, 2], "output_shape": [15, 12]})
    yield Case(
        "MaxRoiPool", (floats(1, 2, 8, 8), np.float32([[0, 0, 0, 5, 5], [0, 1, 2, 7, 6]])), {"pooled_shape": [2, 2]}
    )
    boxes = np.float32([[0, 0, 5, 5], [1, 2, 7, 6]])
    yield Case("RoiAlign", (floats(1, 2, 8, 8), boxes, np.array([0, 0])), {"output_height": 2, "output_width": 3})
    places = np.array([[[[0, 3], [10, 15]]]])
    yield Case("MaxUnpool", (floats(1, 1, 2, 2), places), {"kernel_shape": [2, 2], "strides": [2, 2]})


def _products() -> Iterator[Case]:
    for left, right in (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (2, 4, 5)),
        ((4,), (4, 5)),
        ((2, 3, 4), (4,)),
    ):
        yield Case("MatMul", (floats(*left), floats(*right, seed=1)))
    yield Case("MatMul", (integers(3, 4, dtype=np.int32), integers(4, 5, dtype=np.int32)))
    a, b = floats(3, 4), floats(4, 5, seed=1)
    for shape in ((3, 5), (5,), (1, 5), (3, 1), (1,), ()):
        for more in ({}, {"alpha": 0.5, "beta": 2.0}, {"alpha": 0.5}):
            for constants in ((), (1, 2)):
                yield Case(
                    "Gemm", (a, b, floats(*shape, seed=2)), {"broadcast": 1, **more}, constants=constants, sets=(1, 6)
                )
                yield Case("Gemm", (a, b, floats(*shape, seed=2)), more, constants=constants, sets=(7, NEWEST))
    yield Case("Gemm", (a, b, floats(3, 5, seed=2)), sets=(1, 6))
    yield Case("Gemm", (a.T.copy(), b, floats(3, 5, seed=2)), {"transA": 1})
    yield Case("Gemm", (a, b.T.copy(), floats(3, 5, seed=2)), {"transB": 1, "beta": 0.0})
    yield Case("Gemm", (a, b), {"alpha": 0.5}, sets=(11, NEWEST))
    yield Case("Einsum", (a, b), {"equation": "ij,jk->ki"})
    small = integers(3, 4, most=200, dtype=np.uint8), integers(4, 5, most=200, dtype=np.uint8)
    yield Case("MatMulInteger", (*small, np.array(100, np.uint8), np.array(90, np.uint8)))
    yield Case("Det", (floats(2, 3, 3),))


def _shapes() -> Iterator[Case]:
    for operator in ("Shape", "Size", "NonZero"):
        yield Case(operator, (X,))
    for attributes in ({}, {"perm": [2, 0, 3, 1]}):
        yield Case("Transpose", (X,), attributes)
    for shape in ([6, 20], [0, -1], [2, 3, -1]):
        yield Case("Reshape", (X,), {"shape": shape}, sets=(1, 4))
        for constants in ((), (1,)):
            yield Case("Reshape", (X, np.array(shape)), constants=constants, sets=(5, NEWEST))
    for axis in (None, *range(-4, 5)):
        yield Case(
            "Flatten",
            (X,),
            {} if axis is None else {"axis": axis},
            sets=(11 if axis is not None and axis < 0 else 1, NEWEST),
        )
    yield Case("Flatten", (floats(3),), {"axis": 0}, sets=(1, NEWEST))
    for axes in ([0], [0, 2], [1], [-1], [-1, 0]):
        yield Case("Unsqueeze", (floats(3, 4),), {"axes": axes}, sets=(1 if min(axes) >= 0 else 11, NEWEST))
        yield Case("Unsqueeze", (np.array(3.0, np.float32),), {"axes": [0]})
    for axes in (None, [0], [0, 2], [-2]):
        attributes = {} if axes is None else {"axes": axes}
        yield Case(
            "Squeeze", (floats(1, 3, 1, 4),), attributes, sets=(1 if axes is None or min(axes) >= 0 else 11, NEWEST)
        )
    for axis in (None, 0, 1, 2, -1):
        attributes = {} if axis is None else {"axis": axis}
        first = 4 if axis is None else 11 if axis < 0 else 1
        x = floats(2, 3, 4), floats(2, 3, 4, seed=1)
        yield Case("Concat", x, attributes, sets=(1 if axis is None else first, 3 if axis is None else NEWEST))
        first = 1 if axis is None else first
        y = floats(4, 6, 8)
        yield Case("Split", (y,), attributes, 2, sets=(first if axis is None else max(first, 1), NEWEST))
        yield Case("Split", (y,), {"split": [1, (y.shape[axis or 0]) - 1], **attributes}, 2, sets=(first, NEWEST))
    yield Case("Split", (floats(4, 6), np.array([1, 3], np.float32)), {"axis": 0}, 2, constants=(1,), sets=(1, 1))
    starts: tuple[dict[str, Any], ...] = (
        {"starts": [1, 0], "ends": [3, 2]},
        {"axes": [1, 3], "starts": [1, -3], "ends": [1000, -1]},
    )
    starts += ({"axes": [2], "starts": [-2], "ends": [2**31 - 1]},)
    for given in starts:
        yield Case("Slice", (X,), given, sets=(1, 9))
        arrays = [np.array(given[name]) for name in ("starts", "ends", "axes") if name in given]
        for constants in ((), (1, 2, 3, 4)):
            yield Case("Slice", (X, *arrays), constants=constants, sets=(10, NEWEST))
    backwards = np.array([-1]), np.array([-99]), np.array([1]), np.array([-2])
    yield Case("Slice", (X, *backwards), constants=(1, 2, 3, 4), sets=(10, NEWEST))
    pads = [0, 0, 1, 2, 0, 0, 2, 1]
    for mode in (None, "constant", "edge", "reflect"):
        kind = {} if mode is None else {"mode": mode}
        for value in ({}, {"value": 1.5}):
            yield Case("Pad", (X,), {"paddings": pads, **kind, **value}, sets=(1, 1))
            yield Case("Pad", (X,), {"pads": pads, **kind, **value}, sets=(2, 10))
        yield Case("Pad", (X, np.array(pads)), kind, constants=(1,), sets=(11, NEWEST))
        yield Case("Pad", (X, np.array(pads), np.array(1.5, np.float32)), kind, constants=(1, 2), sets=(11, NEWEST))
    yield Case("Pad", (X,), {"pads": [0, 0, -1, 2, 0, 0, 2, -1]}, sets=(2, 10))
    yield Case("Tile", (floats(2, 3), np.array(2, np.float32), np.array(1, np.float32)), constants=(1, 2), sets=(1, 5))
    yield Case("Tile", (floats(2, 3), np.array([2, 3])), constants=(1,), sets=(6, NEWEST))
    yield Case(
        "ConstantOfShape", (np.array([2, 3]),), {"value": helper.make_tensor("v", 1, [1], [3.0])}, constants=(0,)
    )
    for more in ({}, {"k": 1}, {"dtype": 6}):
        yield Case("EyeLike", (floats(3, 4),), more)
    yield Case("Range", tuple(np.array(value, np.float32) for value in (1, 7, 2)))
    yield Case("Constant", (), {"value": helper.make_tensor("v", 1, [2], [3.0, 4.0])})


def _indices() -> Iterator[Case]:
    for index in (np.array([[0, 2], [1, 1]]), np.array(1), np.array([0, 1], np.int32), np.array([-1, 0])):
        for axis in (0, 1, 3, -1):
            yield Case(
                "Gather",
                (floats(3, 3, 3, 3), index),
                {"axis": axis},
                sets=(11 if axis < 0 or index.min() < 0 else 1, NEWEST),
            )
    rows, axes = np.array([[0, 1, 2, 0], [2, 2, 1, 1]]), (0, 1)
    for axis in axes:
        yield Case("GatherElements", (floats(3, 4), rows), {"axis": axis})
        yield Case(
            "Scatter", (floats(3, 4), rows[:, :2] // 2 + np.array([[0, 1], [1, 0]]), floats(2, 2)), {"axis": axis}
        )
        yield Case("ScatterElements", (floats(3, 4), np.array([[0, 1], [1, 0]]), floats(2, 2)), {"axis": axis})
    yield Case("GatherND", (X, np.array([[0, 1], [1, 2]])))
    yield Case("GatherND", (floats(2, 3, 4), np.array([[1], [2]])), {"batch_dims": 1})
    yield Case("ScatterND", (floats(4, 3), np.array([[1], [3]]), floats(2, 3, seed=1)))
    for axis in (None, 1, -1):
        attributes = {} if axis is None else {"axis": axis}
        yield Case("TopK", (X,), {"k": 2, **attributes}, 2, sets=(1, 9))
        for constants in ((), (1,)):
            yield Case("TopK", (X, np.array([2])), attributes, 2, constants=constants, sets=(10, NEWEST))
    yield Case("TopK", (X, np.array([2])), {"largest": 0}, 2, constants=(1,), sets=(11, NEWEST))
    for depth in (np.array(4), np.array([4])):
        for attributes in ({}, {"axis": 0}):
            yield Case("OneHot", (integers(3, 2), depth, np.float32([0.5, 2])), attributes, constants=(1,))
    yield Case("OneHot", (integers(3, 2) - 2, np.array(4), np.float32([0.5, 2])), constants=(1,), sets=(11, NEWEST))
    yield Case("Compress", (X, flags(3)), {"axis": 1})
    yield Case("Compress", (X, flags(60)))
    for more in ({}, {"sorted": 0}, {"axis": 1}):
        yield Case("Unique", (np.round(floats(3, 4)),), more, 4)
    boxes, scores = np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [2, 2, 3, 3]]]), np.float32([[[0.9, 0.8, 0.7]]])
    limits = np.array(3), np.array(0.5, np.float32), np.array(0.1, np.float32)
    for shape in ((), (1,)):
        yield Case(
            "NonMaxSuppression", (boxes, scores, *(limit.reshape(shape) for limit in limits)), constants=(2, 3, 4)
        )
    yield Case("ReverseSequence", (floats(4, 3, 2), np.array([1, 4, 2])))


def _images() -> Iterator[Case]:
    image = floats(1, 2, 4, 6)
    for mode in (None, "nearest", "bilinear"):
        kind = {} if mode is None else {"mode": mode}
        yield Case("Upsample", (image,), {"height_scale": 2.0, "width_scale": 3.0, **kind}, sets=(1, 6))
    for mode in (None, "nearest", "linear"):
        kind = {} if mode is None else {"mode": mode}
        for height, width in ((2.0, 3.0), (1.5, 1.0), (1.3, 2.7)):
            scales = [1.0, 1.0, height, width]
            yield Case("Upsample", (image,), {"scales": scales, **kind}, sets=(7, 8))
            for constants in ((), (1,)):
                yield Case("Upsample", (image, np.float32(scales)), kind, constants=constants, sets=(9, 9))
                yield Case("Resize", (image, np.float32(scales)), kind, constants=constants, sets=(10, 10))
        for height, width in ((0.5, 0.5), (0.7, 1.3), (0.6, 0.34)):
            for constants in ((), (1,)):
                yield Case(
                    "Resize", (image, np.float32([1, 1, height, width])), kind, constants=constants, sets=(10, 10)
                )
        yield Case("Upsample", (floats(4, 6),), {"scales": [2.0, 1.5], **kind}, sets=(7, 8))
        yield Case("Resize", (floats(4, 6), np.float32([0.5, 1.5])), kind, sets=(10, 10))
    nothing = np.float32([])
    for mode in ("nearest", "linear", "cubic"):
        for place in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn"):
            attributes = {"mode": mode, "coordinate_transformation_mode": place}
            yield Case(
                "Resize", (image, nothing, np.float32([1, 1, 1.5, 2])), attributes, constants=(1, 2), sets=(11, 12)
            )
            sizes = np.array([1, 2, 3, 9])
            yield Case("Resize", (image, nothing, nothing, sizes), attributes, constants=(1, 2, 3), sets=(11, 12))
    region = np.float32([0, 0, 0.2, 0.3, 1, 1, 0.8, 0.9])
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    yield Case("Resize", (image, region, np.float32([1, 1, 1.5, 2])), crop, constants=(1, 2), sets=(11, 12))
    for mode in (None, "DCR", "CRD"):
        yield Case("DepthToSpace", (floats(1, 8, 2, 3),), {"blocksize": 2} | ({} if mode is None else {"mode": mode}))
    yield Case("SpaceToDepth", (floats(1, 2, 4, 6),), {"blocksize": 2})


def _recurrences() -> Iterator[Case]:
    steps, batch, size, hidden = 4, 2, 3, 5
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for direction, ways in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            x, w = floats(steps, batch, size), floats(ways, gates * hidden, size, seed=1)
            r, b = floats(ways, gates * hidden, hidden, seed=2), floats(ways, 2 * gates * hidden, seed=3)
            attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
            start = floats(ways, batch, hidden, seed=4)
            for inputs in ((x, w, r), (x, w, r, b), (x, w, r, b, np.int32([4, 2])), (x, w, r, b, None, start)):
                constants = (1, 2, 3)
                yield Case(operator, inputs, attributes, 2, constants)
                yield Case(operator, inputs, {**attributes, "output_sequence": 1}, 2, constants)
        yield Case(operator, (x, w, r, b), {**attributes, "clip": 0.5}, 2, constants)
    yield Case(
        "GRU", (x, w[:, :15], r[:, :15]), {**attributes, "linear_before_reset": 1}, 2, constants, sets=(3, NEWEST)
    )
