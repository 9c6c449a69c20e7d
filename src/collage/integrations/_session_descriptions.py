"""Descriptions of models and ports with the fields of ONNX Runtime's classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage.runtime import Port

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ModelMetadata", "NodeArg"]

_TYPES = {"float32": "float", "float64": "double"}
"""NumPy's names of types to those of ONNX Runtime, if they differ."""
_UNNAMED = "unk__"
"""Beginning of the symbols that ONNX's inference makes up for lengths without a name."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes it.

    Attributes:
        name: Its name.
        shape: Lengths, symbols, or None if nothing is known.
        type: Type such as ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str

    @classmethod
    def of(cls, port: Port) -> NodeArg:
        """Describe a port."""
        kind = "" if port.dtype is None else f"tensor({_TYPES.get(port.dtype, port.dtype)})"
        shape = [None if str(dim).startswith(_UNNAMED) else dim for dim in port.shape or ()]
        return cls(port.name, shape, port.kind or kind)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of a model file, with the names that ONNX Runtime uses.

    Attributes:
        producer_name: The tool that wrote the file.
        graph_name: Name of its main graph.
        domain: The namespace of the model, such as ``org.example``.
        description: Description of the model.
        graph_description: Description of its main graph.
        version: Version of the model.
        custom_metadata_map: Entries that the authors added, such as names of classes.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> ModelMetadata:
        """Return the metadata of a model."""
        from collage.frontend import CLASSES, LISTED  # late: running needs neither

        return cls(
            model.producer_name or "",
            model.graph.name or "",
            model.domain or "",
            model.doc_string or "",
            model.graph.doc_string or "",
            model.model_version or 0,
            {key: text for key, text in model.metadata_props.items() if key not in (CLASSES, LISTED)},
        )
