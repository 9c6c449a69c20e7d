"""PyTorch modules, exported to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from collage._errors import ModelError, UsageError

__all__ = ["export_module"]


def export_module(module: Any, example_inputs: Sequence[Any] | None) -> ir.Model:
    """Exports a ``torch.nn.Module`` in evaluation mode with PyTorch's own exporter.

    Raises:
        UsageError: There are no example inputs, or they are no sequence.
        ModelError: PyTorch cannot export the module.
    """
    import torch

    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    if not isinstance(example_inputs, Sequence) or isinstance(example_inputs, str):
        raise UsageError("a torch.nn.Module needs example inputs, in order: read_model(module, example_inputs=(x,))")
    modes = {part: part.training for part in module.modules()}
    try:
        program = torch.onnx.export(module.eval(), tuple(example_inputs), dynamo=True, verbose=False)
    except Exception as error:
        raise ModelError(f"PyTorch cannot export {type(module).__name__}: {_reason(error)}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    model: ir.Model = program.model
    return model


def _reason(error: BaseException) -> str:
    """What went wrong in the beginning: PyTorch wraps it in errors that say which of its steps it was."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
