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
        UsageError: There are no example inputs.
        ModelError: PyTorch cannot export the module.
    """
    import torch

    if example_inputs is None:
        raise UsageError("a torch.nn.Module needs example inputs: read_model(module, example_inputs=(x,))")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    training = module.training
    try:
        program = torch.onnx.export(module.eval(), tuple(example_inputs), dynamo=True, verbose=False)
    except Exception as error:
        raise ModelError(f"PyTorch cannot export {type(module).__name__}: {str(error).splitlines()[0]}") from error
    finally:
        module.train(training)
    model: ir.Model = program.model
    return model
