"""A model that a pass may change, while the original stays as it was."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

__all__ = ["Draft"]


class Draft(ir.Model):
    """A copy of a model, made when somebody first looks into it.

    Passes get a draft, so a pass that fails leaves the original unchanged; and a pass that looks at nothing costs
    nothing, however large the model. Weights are shared, not copied.
    """

    __slots__ = ("_original",)

    def __init__(self, original: ir.Model) -> None:
        # The fields of a model stay unset, so that reading any of them ends in __getattr__.
        object.__setattr__(self, "_original", original)

    @property
    def untouched(self) -> bool:
        """Whether nobody has looked yet, so that the original is the result."""
        return self._original is not None

    def __getattr__(self, name: str) -> Any:
        if not self.untouched or name.startswith("__"):
            raise AttributeError(f"a model has no attribute {name!r}")
        self._copy()
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.untouched:
            self._copy()
        object.__setattr__(self, name, value)

    def _copy(self) -> None:
        copy = self._original.clone()
        object.__setattr__(self, "_original", None)
        super().__init__(
            copy.graph,
            ir_version=copy.ir_version,
            producer_name=copy.producer_name,
            producer_version=copy.producer_version,
            domain=copy.domain,
            model_version=copy.model_version,
            doc_string=copy.doc_string,
            functions=list(copy.functions.values()),
            metadata_props=dict(copy.metadata_props),
            device_configurations=copy.device_configurations,
        )
