"""Inputs that a user gives, in place of made-up ones: whether they fit the model, and which lengths they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage._errors import InputError
from collage.frontend._interface import TensorSpec, describe_inputs, is_list
from collage.frontend._lengths import lengths_of
from collage.frontend._shape_profiles import Lengths

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["check_given", "with_lengths_of"]


def check_given(model: ir.Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """Given inputs as NumPy arrays, or lists of these; None is an optional that is absent.

    Args:
        model: Any model.
        given: Some of its inputs, or all, by name.

    Raises:
        InputError: A name is unknown, or a type or shape does not fit. The message says which ones do.
    """
    specs = {spec.name: spec for spec in describe_inputs(model)}
    if unknown := [name for name in given if name not in specs]:
        takes = "; ".join(map(str, specs.values())) or "no inputs"
        raise InputError(f"unknown input {unknown[0]!r}; the model takes {takes}")
    symbols: dict[str, int] = {}
    lists = {str(value.name) for value in model.graph.inputs if is_list(value)}
    return {name: _fitting(specs[name], value, symbols, name in lists) for name, value in given.items()}


def with_lengths_of(model: ir.Model, given: Mapping[str, Any], dims: Lengths) -> Lengths:
    """Representative lengths, those of given inputs among them: made-up inputs have to go with these.

    Several lengths of a symbol stand: given inputs are cut to each of them.

    Raises:
        InputError: A given input is of another length than ``dims`` says.
    """
    found = lengths_of(model, given)
    for name, length in found.items():
        if isinstance(wanted := dims.get(name, length), int) and wanted != length:
            raise InputError(f"dimension {name!r} is {length} in the given inputs, and {wanted} was requested")
    return {**found, **dims}


def _fitting(spec: TensorSpec, value: Any, symbols: dict[str, int], is_list: bool) -> Any:
    if value is None and spec.kind is not None and spec.kind.startswith("optional"):
        return None
    if is_list:
        if not isinstance(value, list | tuple):
            raise InputError(f"input {spec.name!r} is not a list of tensors, but the model takes {spec}")
        return [_fitting_tensor(spec, item, {}) for item in value]
    return _fitting_tensor(spec, value, symbols)


def _fitting_tensor(spec: TensorSpec, value: Any, symbols: dict[str, int]) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:  # Rows of several lengths, or an object of another library that becomes no array.
        raise InputError(f"input {spec.name!r} is not an array: {error}") from error
    if spec.dtype == ir.DataType.STRING:
        array = array.astype(object) if array.dtype.kind in "USTO" else array
        is_type = array.dtype.kind == "O"
    else:
        is_type = spec.dtype == ir.DataType.UNDEFINED or array.dtype == spec.dtype.numpy()
    if not is_type:
        raise InputError(f"input {spec.name!r} is {array.dtype}, but the model takes {spec}; convert it first")
    if spec.shape is not None:
        fits = len(spec.shape) == array.ndim
        for dim, length in zip(spec.shape, array.shape, strict=False):
            wanted = symbols.setdefault(dim, length) if isinstance(dim, str) else dim
            fits = fits and wanted in (None, length)
        if not fits:
            where = f" where {', '.join(f'{k}={v}' for k, v in symbols.items())}" if symbols else ""
            raise InputError(f"input {spec.name!r} has shape {list(array.shape)}, but the model takes {spec}{where}")
    return array
