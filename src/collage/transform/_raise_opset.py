"""RaiseOpset: the same model in a newer operator set, in which ONNX has one operator for several older ones."""

from __future__ import annotations

import onnx_ir as ir

from collage._errors import ConfigError
from collage.frontend import MIN_OPSET, in_opset
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._pass_kinds import ModulePass

__all__ = ["RaiseOpset"]

_NEWEST = 23
"""The newest set that passes here ask for: it has Attention."""


class RaiseOpset(ModulePass):
    """Converts the model to a newer operator set by ONNX's converter; a model that cannot be converted stays as it is.

    Args:
        to: The operator set, from 13 to 23.

    Raises:
        ConfigError: There is no such set.
    """

    def __init__(self, to: int = _NEWEST) -> None:
        super().__init__(PassInfo("RaiseOpset", opt_level=3))
        if isinstance(to, bool) or not isinstance(to, int) or not MIN_OPSET <= to <= _NEWEST:
            raise ConfigError(f"RaiseOpset: to is an operator set from {MIN_OPSET} to {_NEWEST}, not {to!r}")
        self._to = to

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Convert a copy."""
        version = model.opset_imports.get("", self._to)
        if version >= self._to:
            context.remark(f"the model is in operator set {version} already")
            return model
        try:
            return in_opset(model, self._to)
        except ValueError as error:
            context.warn(f"the model stays in operator set {version}: {error}")
            return model
