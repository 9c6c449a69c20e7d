"""PyTorch modules and exported programs as ONNX models."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import onnx_ir as ir
import torch
from torch.export.graph_signature import OutputKind

from collage._errors import ModelError, UsageError
from collage.frontend._torch_shapes import explicit_keywords, name_dimensions, shapes_for_export

__all__ = ["as_model", "quiet_export", "reason_of"]


def as_model(
    source: Any,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ir.Model | None:
    """Return an object of PyTorch or its exporters as an ONNX model, or None if the source is not a PyTorch object.

    Args:
        source: A ``torch.nn.Module``, which is exported in evaluation mode, a ``torch.export.ExportedProgram``, or a
            ``torch.onnx.ONNXProgram``.
        example_inputs: Positional inputs of a module.
        example_kwargs: Keyword inputs of a module.
        dynamic_shapes: Dimensions of a module's inputs that stay symbolic, as ``torch.export.export`` takes them.

    Raises:
        UsageError: A module without example inputs, or a program with them.
        ModelError: PyTorch cannot export it.
    """
    if isinstance(source, torch.onnx.ONNXProgram | torch.export.ExportedProgram):
        if example_inputs is not None or example_kwargs is not None or dynamic_shapes is not None:
            raise UsageError(f"example inputs and dynamic shapes are for a torch.nn.Module; {type(source)} has its own")
        if isinstance(source, torch.export.ExportedProgram):
            source = _exported("the program", source)
        model: ir.Model = source.model
        return model
    if isinstance(source, torch.nn.Module):
        return _export_module(source, example_inputs, example_kwargs, dynamic_shapes)
    return None


@contextmanager
def quiet_export() -> Iterator[None]:
    """Keep exporters from printing messages that do not concern the user: absent packages, deprecations, unfolded constants."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def reason_of(error: BaseException) -> str:
    """Return the first line of the error that was raised first: PyTorch wraps it in one for each of its steps."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _export_module(
    module: torch.nn.Module,
    inputs: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ir.Model:
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if inputs is None and kwargs is not None:
        inputs = ()
    if not isinstance(inputs, Sequence) or isinstance(inputs, str):
        raise UsageError(
            "a torch.nn.Module needs example inputs, in order: compile(module, example_inputs=(x,)); "
            "those by keyword are example_kwargs={'mask': m}"
        )
    modes = {part: part.training for part in module.modules()}
    with quiet_export():
        _know_caches()
    try:
        with explicit_keywords(module, kwargs or ()):
            keywords, shapes, leaves = shapes_for_export(module, inputs, kwargs or {}, dynamic_shapes)
            program = _exported(
                type(module).__name__,
                module.eval(),
                # The exporter takes a dictionary at the end of the positional inputs for those by keyword.
                tuple(inputs) if kwargs or not inputs or not isinstance(inputs[-1], dict) else (*inputs, {}),
                kwargs=keywords,
                dynamic_shapes=shapes,
            )
    finally:
        for part, training in modes.items():
            part.training = training
    name_dimensions(program, leaves)
    model: ir.Model = program.model
    return model


def _exported(name: str, *arguments: Any, **options: Any) -> Any:
    """Return the ``torch.onnx.ONNXProgram`` of a module or program; warn of state that it writes to."""
    try:
        with quiet_export():
            program = torch.onnx.export(*arguments, **options, dynamo=True, verbose=False)
    except Exception as error:
        raise ModelError(f"PyTorch cannot export {name}: {reason_of(error)}") from error
    _name_outputs(program)
    signature = program.exported_program.graph_signature
    changed = sorted({*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()})
    if changed:
        warnings.warn(
            f"{name} writes to {', '.join(changed)}; the compiled model does not: every run starts with the present values",
            RuntimeWarning,
            stacklevel=6,
        )
    return program


def _know_caches() -> None:
    """Have PyTorch's exporter take caches of the package ``transformers``, as that package's own exporter does."""
    if (utilities := sys.modules.get("transformers.cache_utils")) is None:
        return
    with suppress(ImportError):
        from transformers.exporters import exporter_dynamo

        for kind in _subclasses(utilities.Cache):
            exporter_dynamo.register_pytree_node(kind)


def _subclasses(kind: type) -> Iterator[type]:
    found: type
    for found in kind.__subclasses__():
        yield found
        yield from _subclasses(found)


def _name_outputs(program: Any) -> None:
    """Name outputs after the keys under which a module returns them, as the exporter names inputs.

    An input of the same name is another value, so the output's name then ends in ``_out``. Outputs of modules that
    return no keys have the exporter's names.
    """
    graph = program.model.graph
    exported = program.exported_program
    paths = _paths(exported.call_spec.out_spec)
    specs = [spec for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    values = [value for value in graph.outputs if not value.is_graph_input()]
    if len(specs) != len(paths) or not any(isinstance(key, str) for path in paths for key in path):
        return
    named = {spec.arg.name: "_".join(map(str, path)) for spec, path in zip(specs, paths, strict=True)}
    taken = {str(value.name) for node in graph.all_nodes() for value in node.outputs}
    taken |= {str(value.name) for value in (*graph.inputs, *graph.initializers.values())}
    for value in values:
        wanted = named.pop(str(value.name), "")
        for name in (wanted, f"{wanted}_out"):
            if wanted and name not in taken:
                value.name = name
                taken.add(name)
                break


def _paths(spec: Any) -> list[tuple[str | int, ...]]:
    """Return the keys that lead to each leaf of a tree of PyTorch's."""
    if spec.is_leaf():
        return [()]
    children = spec.children()
    keys: Sequence[Any] = range(len(children))
    context = getattr(spec.context, "_fields", spec.context)  # That of a named tuple is its class.
    # Classes keep their fields beside other facts.
    for found in (context, *(context if isinstance(context, list | tuple) else ())):
        if isinstance(found, list | tuple) and len(found) == len(children) and all(isinstance(k, str) for k in found):
            keys = found
            break
    return [(key, *path) for key, child in zip(keys, children, strict=True) for path in _paths(child)]
