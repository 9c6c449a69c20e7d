"""Operators that OpenVINO's CPU plugin computes in float32, although its hint asks for bf16.

The plugin keeps an operator's precision if the operator is marked. The Python interface cannot set the mark, but its own
format of models can state it. So a model is written in that format, marked and read back.
"""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["marked"]

_MARK = {"name": "precise", "version": "0"}
_CONSTANT = "Constant"
_NORMALISATION = "MVN"


def marked(core: Any, model: Any) -> Any:
    """Return a model that keeps sums of two varying tensors, and normalisations, in float32: residual connections.

    Rounding these to 8 bits of mantissa, layer after layer, makes up about half of the variance of a transformer's error.
    They take little time.

    Args:
        core: Reads models.
        model: A model as OpenVINO read it.
    """
    import openvino as ov

    names = {operator.get_friendly_name() for operator in _kept(model)}
    if not names:
        return model
    with tempfile.TemporaryDirectory(prefix="collage_kept_") as folder:
        file = Path(folder) / "model.xml"
        ov.serialize(model, file, file.with_suffix(".bin"))
        tree = ET.parse(file)  # OpenVINO has just written it.
        for layer in tree.iter("layer"):
            if layer.get("name") in names:
                _mark(layer)
        tree.write(file)
        # The weights stay mapped when the files are gone.
        return core.read_model(file)


def _mark(layer: ET.Element) -> None:
    found = layer.find("rt_info")
    if found is None:
        found = ET.Element("rt_info")
        layer.insert(1 if layer.find("data") is not None else 0, found)
    ET.SubElement(found, "attribute", _MARK)


def _kept(model: Any) -> Iterator[Any]:
    for operator in model.get_ops():
        kind = operator.get_type_name()
        if kind == _NORMALISATION:
            yield operator
        elif kind == "Add":
            makers = (port.get_source_output().get_node() for port in operator.inputs())
            if all(maker.get_type_name() != _CONSTANT for maker in makers):
                yield operator
