"""The partitioned model as a graph in the DOT language of Graphviz."""

from __future__ import annotations

from collage.page._contents import PageContents
from collage.page._markup import clean
from collage.page._picture import told_operators
from collage.page._words import amount, percent
from collage.report import short_name
from collage.target import HOST_TARGET

__all__ = ["as_dot"]

_FILLS = ("#d0e4f5", "#fbdcc4", "#c8ecdf", "#f3d3ea", "#dcd3f7", "#f5e6b3", "#f6ccd3", "#cbe6ea")
_HOST = "#e3e6e9"
_LONGEST = 60


def as_dot(contents: PageContents) -> str:
    """Return a directed graph: a box for each kernel, an ellipse for each input and output of the model."""
    targets = [target for target in contents.targets if target != str(HOST_TARGET)]
    lines = ["digraph model {", "  rankdir=TB;", '  node [shape=box, style="filled,rounded", fontname="sans-serif"];']
    for side, values in (("in", contents.inputs), ("out", contents.outputs)):
        for i, value in enumerate(values):
            label = _quoted(value.name, value.type)
            lines.append(f"  {side}{i} [label={label}, shape=ellipse, style=filled, fillcolor=white];")
    for kernel in contents.kernels:
        is_host = kernel.target == str(HOST_TARGET)
        fill = _HOST if is_host else _FILLS[targets.index(kernel.target) % len(_FILLS)]
        facts = ", ".join(text for text in (amount(kernel.time_us), percent(kernel.share)) if text)
        label = _quoted(
            f"{kernel.number} {kernel.name}", f"{short_name(kernel.target)}: {facts}", told_operators(kernel)
        )
        lines.append(f'  k{kernel.number} [label={label}, fillcolor="{fill}"];')
    places = {value.name: f"in{i}" for i, value in enumerate(contents.inputs)}
    ends = {value.name: f"out{i}" for i, value in enumerate(contents.outputs)}
    for maker, reader, value in contents.wires:
        a = f"k{maker}" if maker else places[value.name]
        b = f"k{reader}" if reader <= len(contents.kernels) else ends[value.name]
        lines.append(f"  {a} -> {b} [tooltip={_quoted(value.name, value.type)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(*lines: str) -> str:
    """Return lines as one DOT string; nothing in them can end it."""
    parts = (clean(line, _LONGEST).replace("\\", "\\\\").replace('"', '\\"') for line in lines if line)
    return '"' + "\\n".join(parts) + '"'
