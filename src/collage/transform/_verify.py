"""VerifyAfterEach: the instrument that names the first pass that breaks a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnx.shape_inference
import onnx_ir as ir

from collage._errors import PassError
from collage.frontend import make_inputs, skeleton
from collage.transform._context import PassContext, PassInstrument
from collage.transform._effects import is_random
from collage.transform._info import PassInfo
from collage.transform._validity import check_valid

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Evaluate", "VerifyAfterEach"]

Evaluate = Callable[[ir.Model, Mapping[str, Any]], Sequence[Any]]
"""Runs a model on inputs by name, and gives its outputs in order."""

_ABSOLUTE = 1e-6
_GIVEN, _RANDOM = "given inputs", "random inputs"
_Outputs = dict[str, Sequence[Any]]
"""Outputs by the kind of inputs."""
_Interface = tuple[list[tuple[str | None, str]], list[tuple[str | None, str]]]


class VerifyAfterEach(PassInstrument):
    """Checks the model after each pass, and raises an error that names the pass that broke it.

    The model must pass ONNX's checker, which demands that nodes are sorted; its types must fit each other; its
    inputs and outputs must keep their names and types; and its outputs must be those that it had before the pass.

    Outputs are compared on several sets of inputs, since a small constant counts only where all else is zero or equal:
    random ones, and the same with other numbers in the floating-point inputs. These are zeros, one number all along each row,
    and a cycle of zeros of both signs, of subnormal, small and large numbers.

    Args:
        numeric: Compare outputs. Models with random operators are not compared, nor are those that ``evaluate`` cannot run
            on random inputs to begin with: ``not_compared`` says why. Of the other sets, one that it cannot run is left out.
        tolerance: Largest error of an output, relative to the largest number in it. Integers must be equal.
        inputs: The one set of inputs to use; made up where not given.
        evaluate: Runs the model; ONNX's reference implementation by default, which is slow on large ones.

    Attributes:
        not_compared: Pairs of a pass's name and the reason why its outputs were not compared.
    """

    def __init__(
        self,
        *,
        numeric: bool = True,
        tolerance: float = 1e-4,
        inputs: Mapping[str, Array] | None = None,
        evaluate: Evaluate | None = None,
    ) -> None:
        self._numeric = numeric
        self._tolerance = tolerance
        self._inputs = inputs
        self._evaluate = evaluate or _by_reference
        self.not_compared: list[tuple[str, str]] = []
        self._before: list[tuple[_Interface, _Outputs | str]] = []
        self._latest: tuple[ir.Model, _Outputs | str] | None = None

    def enter_pass_ctx(self, context: PassContext) -> None:
        """Forgets models of earlier blocks."""
        self._before, self._latest = [], None

    def run_before_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Remember the interface and the outputs."""
        if self._latest is None or self._latest[0] is not model:
            self._latest = (model, self._outputs(model))
        self._before.append((_interface(model), self._latest[1]))

    def run_after_pass(self, model: ir.Model, info: PassInfo) -> None:
        """Check.

        Raises:
            PassError: The model is invalid, or its interface or outputs differ from those before the pass.
        """
        interface, expected = self._before.pop()
        if _interface(model) != interface:
            raise PassError(f"pass {info.name!r} changed the model's interface from {interface} to {_interface(model)}")
        try:
            check_valid(model)
            _check_types(model)
        except PassError as error:
            raise PassError(f"after pass {info.name!r}: {error}") from None
        if isinstance(expected, str):
            self.not_compared.append((info.name, expected))
            return
        actual = self._outputs(model, expected)
        if isinstance(actual, str):
            raise PassError(f"after pass {info.name!r} the model cannot be run any more: {actual}")
        for kind, outputs in expected.items():
            self._compare(model, info, kind, outputs, actual[kind])
        self._latest = (model, actual)

    def on_error(self, model: ir.Model, info: PassInfo, error: BaseException) -> None:
        """Forgets the pass."""
        self._before.pop()
        self._latest = None

    def _outputs(self, model: ir.Model, wanted: Collection[str] | None = None) -> _Outputs | str:
        """Return the outputs for each kind of inputs, or for the given kinds; or the reason why there are none."""
        if not self._numeric:
            return "comparing outputs is switched off"
        if any(is_random(node) for graph in model.graphs() for node in graph):
            return "the model has random operators"
        found: _Outputs = {}
        try:
            # Made up again each time, since they are the same for the same interface.
            sets = {_GIVEN: self._inputs} if self._inputs is not None else _kinds_of_inputs(make_inputs(model))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        for kind, inputs in sets.items():
            if wanted is not None and kind not in wanted:
                continue
            try:
                found[kind] = self._evaluate(model, inputs)
            except Exception as error:
                if wanted is not None or not found:
                    return f"{type(error).__name__}: {error}"
        return found

    def _compare(
        self, model: ir.Model, info: PassInfo, kind: str, expected: Sequence[Any], actual: Sequence[Any]
    ) -> None:
        for value, before, after in zip(model.graph.outputs, expected, actual, strict=True):
            if not (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)):
                continue
            reason = _difference(before, after, self._tolerance)
            if reason is not None:
                output = (
                    f"output {value.name!r}, for {kind}," if kind not in (_GIVEN, _RANDOM) else f"output {value.name!r}"
                )
                raise PassError(f"pass {info.name!r} changed the results of the model: {output} {reason}")


def _kinds_of_inputs(inputs: Mapping[str, Array]) -> dict[str, Mapping[str, Array]]:
    """Sets of inputs by the kind of floating-point values; all other inputs are the same in each."""
    kinds: dict[str, Callable[[Array], Array]] = {
        "zeros": np.zeros_like,
        "equal rows": _equal_rows,
        "extremes": _extremes,
    }
    if not any(_is_float(array) for array in inputs.values()):
        return {_RANDOM: inputs}
    return {
        _RANDOM: inputs,
        **{
            kind: {name: make(array) if _is_float(array) else array for name, array in inputs.items()}
            for kind, make in kinds.items()
        },
    }


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


def _equal_rows(array: Array) -> Array:
    """The first number of each row, all along it."""
    return np.broadcast_to(array[..., :1], array.shape).copy() if array.ndim and array.size else array


def _extremes(array: Array) -> Array:
    """Numbers of all magnitudes of a type whose fourth power the type can hold."""
    info = ml_dtypes.finfo(array.dtype)
    large = 2.0 ** (info.maxexp // 4)
    sizes = [0.0, float(info.smallest_subnormal), float(info.tiny), float(info.eps), 1.0, large]
    return np.resize(np.array([sign * size for size in sizes for sign in (1, -1)]), array.shape).astype(array.dtype)


def _by_reference(model: ir.Model, inputs: Mapping[str, Any]) -> Sequence[Any]:
    with np.errstate(all="ignore"):
        outputs: Sequence[Any] = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, dict(inputs))
    return outputs


def _difference(before: Array, after: Array, tolerance: float) -> str | None:
    """Return the difference between two arrays as a sentence, None if nothing that matters differs."""
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"was {before.dtype}{list(before.shape)} and is {after.dtype}{list(after.shape)}"
    if not np.issubdtype(before.dtype, np.inexact) and before.dtype.kind != "V":
        return None if np.array_equal(before, after) else "has other values"
    one, other = before.astype(np.complex128), after.astype(np.complex128)
    finite = np.isfinite(one)
    allowed = _ABSOLUTE + tolerance * float(np.abs(one[finite]).max(initial=0.0))
    if np.allclose(other[finite], one[finite], 0.0, allowed) and np.array_equal(
        one[~finite], other[~finite], equal_nan=True
    ):
        return None
    distance = float(np.abs(other[finite] - one[finite]).max(initial=0.0))
    return f"is off by up to {distance:.3g}, where {allowed:.3g} is allowed"


def _check_types(model: ir.Model) -> None:
    try:
        onnx.shape_inference.infer_shapes(skeleton(model), check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise PassError("types do not fit: " + " ".join(str(error).split())[:400]) from None


def _interface(model: ir.Model) -> _Interface:
    inputs = [(value.name, str(value.dtype)) for value in model.graph.inputs]
    return inputs, [(value.name, str(value.dtype)) for value in model.graph.outputs]
