"""The default preparation: what ``compile()`` does to a model before any search."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript import optimizer

__all__ = ["prepare"]


def prepare(model: ir.Model) -> ir.Model:
    """Simplifies a canonical model without changing what it computes."""
    from collage.frontend._canonical import canonicalise

    model = model.clone()
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    optimizer.fold_constants(model)
    canonicalise(model)
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    return model
