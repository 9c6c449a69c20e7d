"""Networks of convolutions over one length, computed as networks over images of height 1.

TVM's layouts and schedules are those of images. A tensor [N, C, L] is one of [N, C, 1, L] for a convolution, and stays that for
all element-wise operators between convolutions: changes of the layout on both sides of each convolution would take about as
long as the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

__all__ = ["Images"]

_HEIGHT = 2
"""The axis of the image's height."""

_RANK = 3
_AXES = {0: 0, 1: 1, 2: 3}
# Not `Max` and `Min`: the order of their operands decides what becomes of NaN.
_COMMUTATIVE = frozenset(("Add", "Mul", "Sum"))
# Not by kind of operator: `Trilu` is element-wise by kind, and depends on the last two axes.
_ELEMENTWISE = _COMMUTATIVE | frozenset(
    "Abs Ceil Celu Clip Cos Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Max Mish".split()  # noqa: SIM905
    + "Min Neg PRelu Pow Reciprocal Relu Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Swish Tanh ThresholdedRelu".split()  # noqa: SIM905
)
_LOOPS = frozenset(("ConvTranspose", "Pad"))
"""Operators that become loops, of which ``ConvertLayout`` knows nothing: they compute channels first."""
_LISTS = ("kernel_shape", "strides", "dilations")
Convert = Callable[[list[Any], dict[str, Any]], Any]
"""A conversion of an operator, from its operands and its attributes."""


class Images:
    """The images of which tensors [N, C, L] are views.

    Args:
        bb: Relax's builder.
    """

    def __init__(self, bb: Any) -> None:
        self._bb = bb
        self._images: dict[Any, Any] = {}
        self._channels_last = set[Any]()

    def __contains__(self, x: Any) -> bool:
        """True if a variable is a view of an image."""
        return x in self._images

    def convert(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], convert: Convert) -> Any | None:
        """Convert an operator on tensors [N, C, L] as one on images.

        Args:
            op_name: The operator.
            inputs: Its operands.
            attrs: Its attributes.
            convert: The conversion of the same operator on images.

        Returns:
            Its result in three dimensions, or several; None if images cannot take part in the operator.
        """
        if op_name in ("Conv", "ConvTranspose"):
            given = self._of_convolution(inputs, attrs)
        elif any(_is_var(x) and x in self._images for x in inputs):
            given = self._of_others(op_name, inputs, attrs)
        else:
            given = None
        if given is None:
            return None
        operands, attrs = given
        if op_name in _COMMUTATIVE:
            # TVM computes in the layout of the first operand. Behind a convolution it is that of vectors.
            operands.sort(key=lambda x: not self._has_channels_last(x))
        found = convert(onnx_input(operands), attrs)
        if isinstance(found.ty, relax.TupleType):
            whole = found if isinstance(found, relax.Tuple) else self._bb.emit(found)
            fields = [self._bb.emit(relax.TupleGetItem(whole, i)) for i in range(len(found.ty.fields))]
            return relax.Tuple([self._narrowed(field) for field in fields])
        view = self._narrowed(found)
        if op_name == "Conv" or (op_name not in _LOOPS and any(map(self._has_channels_last, operands))):
            self._channels_last.add(self._images[view])
        return view

    def _of_convolution(self, inputs: list[Any], attrs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
        if any(x is None or x.ty.ndim != _RANK for x in inputs[:2]):
            return None
        x = self._image_of(inputs[0])
        if x is None:
            x = self._bb.normalize(relax.op.expand_dims(inputs[0], _HEIGHT))
        widened = {name: [1, *attrs[name]] for name in _LISTS if name in attrs}
        if "output_padding" in attrs:
            widened["output_padding"] = [0, *attrs["output_padding"]]
        if "output_shape" in attrs:
            widened["output_shape"] = [1, *attrs["output_shape"][-1:]]
        if "pads" in attrs:
            begin, end = attrs["pads"]
            widened["pads"] = [0, begin, 0, end]
        return [x, self._of_weight(inputs[1]), *inputs[2:]], {**attrs, **widened}

    def _of_weight(self, weight: Any) -> Any:
        if isinstance(weight, tvm.ir.GenericConst):
            return relax.const(np.expand_dims(weight.value.numpy(), _HEIGHT), str(weight.ty.dtype))
        return self._bb.normalize(relax.op.expand_dims(weight, _HEIGHT))

    def _of_others(
        self, op_name: str, inputs: list[Any], attrs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        first, *others = inputs
        if op_name in _ELEMENTWISE:
            images = [self._operand(x) for x in inputs]
            is_whole = all(image is not None or x is None for image, x in zip(images, inputs, strict=True))
            return (images, attrs) if is_whole else None
        if op_name == "Concat":
            images = [self._image_of(x) for x in inputs]
            return (
                None
                if any(image is None for image in images)
                else (images, {**attrs, "axis": _AXES[attrs["axis"] % _RANK]})
            )
        image = self._image_of(first)
        if image is None:
            return None
        if op_name == "Split":
            return [image, *others], {**attrs, "axis": _AXES[attrs.get("axis", 0) % _RANK]}
        if op_name == "Pad" and (pads := _constant([*others, None][0])) is not None and pads.size == 2 * _RANK:
            if any(x is not None for x in others[2:]):  # axes
                return None
            widened = np.insert(pads, [_HEIGHT, _RANK + _HEIGHT], 0)
            return [image, relax.const(widened, "int64"), *others[1:]], attrs
        if op_name == "Slice" and len(others) > 2 and (axes := _constant(others[2])) is not None:
            widened = np.array([_AXES[int(axis) % _RANK] for axis in axes], np.int64)
            return [image, *others[:2], relax.const(widened, "int64"), *others[3:]], attrs
        return None

    def _operand(self, x: Any) -> Any | None:
        """Return an operand that broadcasts to images as ``x`` does to their views; None if there is none."""
        if (values := _constant(x)) is None:
            return self._image_of(x)
        if values.ndim > _RANK:
            return None
        return x if values.ndim < 2 else relax.const(np.expand_dims(values, -2), str(x.ty.dtype))

    def _has_channels_last(self, image: Any) -> bool:
        return _is_var(image) and image in self._channels_last

    def _image_of(self, x: Any) -> Any | None:
        return self._images.get(x) if _is_var(x) else None

    def _narrowed(self, image: Any) -> Any:
        # A second variable of the same value would end the layout that a change of layouts gave it.
        whole = image if _is_var(image) else self._bb.emit(image)
        view = self._bb.emit(relax.op.squeeze(whole, [_HEIGHT]))
        self._images[view] = whole
        return view


def _is_var(x: Any) -> bool:
    return isinstance(x, relax.Var)


def _constant(x: Any) -> np.ndarray | None:
    return x.value.numpy() if isinstance(x, tvm.ir.GenericConst) else None
