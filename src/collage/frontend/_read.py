"""The one place through which every model enters.

A model file is untrusted. In this order, each step protecting the next: the file's kind and size, protobuf, budgets,
external data, structure, canonical form, and the ONNX checker on the resulting model. ``docs/security.md`` lists the
attacks that this stops.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx.checker
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from collage._errors import ModelError, UsageError
from collage.file_kinds import is_address, torch_file_reason, way_out
from collage.frontend._bfloat16 import widen_bfloat16
from collage.frontend._budget import Budgets, NotUnicode, check_budgets, check_inferred_shapes
from collage.frontend._canonical import canonicalise, lift_constants
from collage.frontend._checker import check_model
from collage.frontend._defaults import give_defaults, take_defaults
from collage.frontend._external import check_external_data, check_external_tensors, load_small_tensors, pin
from collage.frontend._maps import with_tensors_for_maps
from collage.frontend._opset import raise_opset
from collage.frontend._original import REWRITTEN
from collage.frontend._outputs import list_once
from collage.frontend._places import Place
from collage.frontend._proto import skeleton
from collage.frontend._scopes import check_structure
from collage.frontend._sparse import with_dense_constants
from collage.frontend._tensors import TensorFacts
from collage.frontend._texts import is_unicode, with_unicode_texts
from collage.frontend._wire_format import check_framing
from collage.graph import copy_model, forget_lengths
from collage.system.sparse_files import has_large_holes

if TYPE_CHECKING:
    import torch

__all__ = ["as_onnx", "read_model"]

_LONG_DOMAIN = "ai.onnx"
_LONGEST_REASON = 800
"""Characters; names in it may be as long as a model's author liked."""


def read_model(
    source: (
        str
        | os.PathLike[str]
        | bytes
        | onnx.ModelProto
        | ir.Model
        | torch.nn.Module
        | torch.export.ExportedProgram
        | torch.onnx.ONNXProgram
    ),
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    budgets: Budgets = Budgets(),  # noqa: B008 (frozen)
    convert_opset: bool = True,
) -> ir.Model:
    """Read a model, check its size and validity, and bring it to canonical form.

    Weights in external files are mapped, not loaded, unless they are small. An ``onnx_ir.Model`` is not changed, and neither
    is a ``ModelProto``: the result shares the bytes of their tensors and nothing else.

    Args:
        source: Path of an ONNX file, its bytes, a ``ModelProto``, an ``onnx_ir.Model``, a ``torch.nn.Module``, or what
            PyTorch's exporters return: a ``torch.export.ExportedProgram`` or a ``torch.onnx.ONNXProgram``.
        example_inputs: Positional inputs with which a ``torch.nn.Module`` is exported.
        example_kwargs: Its inputs by keyword.
        dynamic_shapes: Dimensions of these that stay symbolic, as ``torch.export.export`` takes them.
        budgets: Upper bounds on size and nesting.
        convert_opset: Bring older operator sets to the oldest that the whole menu reads, if the converter can.

    Returns:
        A model without functions other than those it started from being expanded, whose nodes are sorted, live and
        named, whose constants are initializers, and whose IR version is 10 to 13. Each output is listed once, and outputs of
        maps are the tensors behind them. Names and texts that are not Unicode are read as Latin-1, with a warning.

    Raises:
        UsageError: The path does not exist, or the source is of no known kind.
        ModelError: The source is not a valid model, or not a safe one. The message names the file and the node.
    """
    if isinstance(source, ir.Model):
        return _from_ir(source, budgets, convert_opset)
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, None, budgets, convert_opset)
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        check_framing(io.BytesIO(data), len(data), budgets)
        return _from_proto(_parse(data, budgets), None, budgets, convert_opset)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if is_address(path):
            raise UsageError(f"{path}: models are read from files", hint="download it first")
        try:
            data, place = _read_file(path, budgets)
            return _from_proto(_parse(data, budgets), place, budgets, convert_opset)
        except ModelError as error:
            if torch_file_reason(path) is None and (found := way_out(path)) is not None:
                raise ModelError(f"{path} is {found[0]}", hint=found[1]) from None
            reason = torch_file_reason(path) or str(error)[:_LONGEST_REASON]
            joint = " " if reason.startswith(("is ", "has ", "cannot ")) else ": "
            raise ModelError(f"{path}{joint}{reason}") from None
    model = as_onnx(source, example_inputs, example_kwargs, dynamic_shapes)
    if isinstance(model, ir.Model):
        return _from_ir(model, budgets, convert_opset)
    raise UsageError(
        "a model is a path, bytes, ModelProto, onnx_ir.Model, torch.nn.Module, torch.export.ExportedProgram or "
        f"torch.onnx.ONNXProgram, not {type(source)}"
    )


def as_onnx(
    source: Any,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Any:
    """Return a source of ``read_model`` as ONNX: a PyTorch object is exported, anything else is returned unchanged.

    Args:
        source: See ``read_model``, also for the rest.
        example_inputs: Positional inputs of a ``torch.nn.Module``.
        example_kwargs: Its inputs by keyword.
        dynamic_shapes: Dimensions that stay symbolic.

    Raises:
        UsageError: There are no example inputs for a module.
        ModelError: PyTorch cannot export it.
    """
    if sys.modules.get("torch") is None:  # Nothing of PyTorch's exists before it is imported.
        return source
    from collage.frontend._torch import as_model

    model = as_model(source, example_inputs, example_kwargs, dynamic_shapes)
    return source if model is None else model


def _read_file(path: Path, budgets: Budgets) -> tuple[bytes, Place]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path!r} is not a path: {error}") from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ModelError("is a folder; name the ONNX file in it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError("is not a regular file")
        if status.st_size > budgets.file_bytes:
            raise ModelError(f"has {status.st_size:,} bytes; keep weights of large models in external files")
        if has_large_holes(descriptor):
            raise ModelError("has large holes: most of it was never written")
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            check_framing(file, status.st_size, budgets)
            return file.read(status.st_size + 1), Place.of(path, status)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _parse(data: bytes, budgets: Budgets) -> onnx.ModelProto:
    if not data:
        raise ModelError("is empty")
    if len(data) > budgets.file_bytes:
        raise ModelError(f"has more than {budgets.file_bytes:,} bytes")
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError("is not an ONNX model, or is truncated or damaged") from None


def _from_proto(proto: onnx.ModelProto, place: Place | None, budgets: Budgets, convert_opset: bool) -> ir.Model:
    is_bounded = False
    try:
        tensors = _bounded(proto, budgets)
        is_bounded = True
        return _from_unicode(proto, tensors, place, budgets, convert_opset)
    except ModelError as error:
        # To look at every text takes long, so it is not done for what is too large.
        if not (is_bounded or isinstance(error, NotUnicode)) or is_unicode(proto):
            raise
    proto = with_unicode_texts(proto)
    model = _from_unicode(proto, _bounded(proto, budgets), place, budgets, convert_opset)
    model.meta[REWRITTEN] = True
    warnings.warn("names or texts of the model are not Unicode, and are read as Latin-1", RuntimeWarning, stacklevel=4)
    return model


def _from_unicode(
    proto: onnx.ModelProto, tensors: list[TensorFacts], place: Place | None, budgets: Budgets, convert_opset: bool
) -> ir.Model:
    plain = with_tensors_for_maps(proto)
    is_rewritten, proto = plain is not proto, with_dense_constants(plain)
    check_structure(proto)
    files = check_external_data(tensors, place)
    try:
        model = copy_model(ir.from_proto(proto))
        pin(model, files)
    except Exception as error:
        raise ModelError(f"cannot be read as a model: {_one_line(error)}") from error
    if is_rewritten:
        model.meta[REWRITTEN] = True
    return _finish(model, budgets, convert_opset)


def _from_ir(source: ir.Model, budgets: Budgets, convert_opset: bool) -> ir.Model:
    try:
        model = copy_model(source)
        proto = skeleton(model)
    except Exception as error:
        raise ModelError(f"is not a well-formed onnx_ir.Model: {error}") from error
    check_external_tensors(model)
    _bounded(proto, budgets)
    check_structure(proto)
    return _finish(model, budgets, convert_opset)


def _bounded(proto: onnx.ModelProto, budgets: Budgets) -> list[TensorFacts]:
    if not proto.HasField("graph"):
        raise ModelError("is not an ONNX model: it has no graph")
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise ModelError(f"has IR version {proto.ir_version}; 1 to {onnx.IR_VERSION} are known")
    return check_budgets(proto, budgets)


def _finish(model: ir.Model, budgets: Budgets, convert_opset: bool) -> ir.Model:
    try:
        list_once(model)
        _spell_out(model)
        defaults = take_defaults(model)
        lift_constants(model)
        _type_weights(model)
        load_small_tensors(model, budgets.inner_bytes)
        forget_lengths(model)
        canonicalise(model)
        if convert_opset:
            raise_opset(model)
        give_defaults(model, defaults)
        if widen_bfloat16(model):
            model.meta[REWRITTEN] = True
            canonicalise(model)
        proto = skeleton(model)
    except ModelError:
        raise
    except Exception as error:
        # Libraries assume valid attributes and arities, which only the checker below establishes.
        raise ModelError(f"cannot be brought to canonical form: {_one_line(error)}") from error
    try:
        check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ModelError("is not a valid model: " + _one_line(error)) from None
    check_inferred_shapes(proto, budgets)
    return model


def _spell_out(model: ir.Model) -> None:
    """Write ONNX's own domain as "", and give graphs a name, which the checker demands."""
    for graph in model.graphs():
        graph.name = graph.name or "graph"
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for part in parts:
        if _LONG_DOMAIN in part.opset_imports:
            part.opset_imports.setdefault("", part.opset_imports.pop(_LONG_DOMAIN))
        for node in part.all_nodes():
            node.domain = "" if node.domain == _LONG_DOMAIN else node.domain


def _type_weights(model: ir.Model) -> None:
    """Give weights the types and shapes of their tensors: a model that was built in memory may leave them out."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if (tensor := value.const_value) is not None:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
