"""The picture of a partitioned model: kernels as boxes in the order of data, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from collage._errors import TargetError
from collage.page._contents import KernelView, PageContents, Value
from collage.page._layout import Box, Layout, Point, Size, lay_out
from collage.page._markup import Markup, join, tag
from collage.page._words import amount, percent
from collage.report import Row, short_name
from collage.system.texts import counted
from collage.target import HOST_TARGET, Target

__all__ = ["colour_of", "operator_graph", "picture", "row_colour", "time_strip", "told_operators"]

_SIZE = Size(width=268.0, height=52.0, gap_x=16.0, gap_y=26.0, columns=4)
_SMALL = Size(width=164.0, height=36.0, gap_x=10.0, gap_y=16.0, columns=3)
# Operators of a kernel that are drawn one by one. Beyond that the picture is taller than several screens.
_MOST_OPERATORS = 80
_PORTS_SHOWN = 4
_COLOURS = 8
# Toolchains of the default menu have the same colour on every page, so that pages can be compared by eye.
_FIXED = ("onnxruntime", "openvino", "tvm", "ncnn")
_MOST_TITLED = 500
"""Most wires for which each one lists its values. Beyond that, labels would make the page large and could hardly be read."""
_CORNER = 6.0
_LONGEST_LABEL = 29
_STRIP = 40.0
_LABELLED = (45.0, 20.0)
"""Shares, in per cent, from which a part of the strip is labelled on any screen, and on wide ones only."""


def colour_of(contents: PageContents, target: str) -> str:
    """Return the class that colours a target: one for each toolchain, whatever its options.

    The host is grey, since it runs operators that no target takes.
    """
    own = _toolchain(target)
    if own is None or target == str(HOST_TARGET):
        return "host"
    others = dict.fromkeys(_toolchain(each) for each in contents.targets if each != str(HOST_TARGET))
    order = [*_FIXED, *(each for each in others if each not in _FIXED)]
    return f"t{order.index(own) % _COLOURS}" if own in order else "host"


def row_colour(contents: PageContents, row: Row) -> str:
    """Return the class that colours a row of the comparison: that of its toolchain, or one for all mixes."""
    return "mixed" if row.kind == "mix" else colour_of(contents, row.target or row.name)


def _toolchain(target: str) -> str | None:
    """Return the toolchain of a target; None if the text is not a target."""
    try:
        return Target.parse(target).toolchain
    except TargetError:
        return None


def told_operators(kernel: KernelView, most: int = 3) -> str:
    """Return operator types with their counts: ``27 Conv, 9 PRelu, 11 others``."""
    counts = list(kernel.op_counts.items())
    shown = [f"{count} {op_type}" for op_type, count in counts[:most]]
    rest = sum(count for _, count in counts[most:])
    return (
        ", ".join([*shown, *([f"{rest} {'other' if rest == 1 else 'others'}"] if rest else [])]) or "no operators known"
    )


def picture(contents: PageContents, *, has_links: bool = True) -> Markup:
    """Return the picture as an ``svg`` element that needs the page's style sheet.

    Args:
        contents: The contents to show.
        has_links: Make each box a link to the details of its kernel.
    """
    inputs, outputs = _ports(contents.inputs), _ports(contents.outputs)
    first, last = len(inputs), len(inputs) + len(contents.kernels)
    items = last + len(outputs)
    wires: dict[tuple[int, int], list[Value]] = {}
    for maker, reader, value in contents.wires:
        a = first + maker - 1 if maker else _place(inputs, value, 0)
        b = first + reader - 1 if reader <= len(contents.kernels) else _place(outputs, value, last)
        wires.setdefault((a, b), []).append(value)
    pairs = list(wires)
    layout = lay_out(items, pairs, _SIZE)
    lines = [_wire(layout, i, pair, wires[pair], first, last) for i, pair in enumerate(pairs)]
    boxes = [
        *(_port(layout.boxes[i], port, "input") for i, port in enumerate(inputs)),
        *(_kernel(contents, kernel, layout.boxes[first + i], has_links) for i, kernel in enumerate(contents.kernels)),
        *(_port(layout.boxes[last + i], port, "output") for i, port in enumerate(outputs)),
    ]
    arrow = tag("path", d="M0 0L7 3.5L0 7z", class_="arrow")
    marker = tag("marker", arrow, id="arrow", markerWidth="7", markerHeight="7", refX="6.5", refY="3.5", orient="auto")
    count = counted(len(contents.kernels), "kernel")
    told = f"{count} in the order of data, from the model's inputs at the top to its outputs"
    return tag(
        "svg",
        tag("title", told),
        tag("defs", marker),
        tag("g", lines, class_="wires", aria_hidden="true"),
        boxes,
        xmlns="http://www.w3.org/2000/svg",
        class_="picture",
        role="group",
        aria_label=told,
        width=layout.width,
        height=layout.height,
        viewBox=f"0 0 {layout.width:.6g} {layout.height:.6g}",
    )


def operator_graph(contents: PageContents, kernel: KernelView) -> Markup:
    """Return the operators of a kernel as a graph; empty if there is one, or more than can be read."""
    operators = kernel.operators
    if not 1 < len(operators) <= _MOST_OPERATORS:
        return join()
    pairs = [(maker, reader) for reader, each in enumerate(operators) for maker in each.reads if maker < reader]
    layout = lay_out(len(operators), pairs, _SMALL)
    wires = [tag("path", d=_drawn(path), class_="wire", marker_end="url(#arrow)") for path in layout.paths]
    boxes = [
        tag(
            "g",
            tag("title", f"{each.name}: {each.op_type}"),
            tag("rect", x=box.x, y=box.y, width=_SMALL.width, height=_SMALL.height, rx=_CORNER, class_="box"),
            tag("text", _cut(each.op_type, 18), x=box.x + 8, y=box.y + 15, class_="name"),
            tag(
                "text",
                _cut(each.outputs[0].type if each.outputs else "", 24),
                x=box.x + 8,
                y=box.y + 29,
                class_="facts",
            ),
        )
        for each, box in zip(operators, layout.boxes, strict=True)
    ]
    return tag(
        "svg",
        tag("g", wires, class_="wires", aria_hidden="true"),
        boxes,
        class_=f"picture {colour_of(contents, kernel.target)}",
        role="img",
        aria_label=f"{counted(len(operators), 'operator')} of {kernel.name} in the order of data",
        width=layout.width,
        height=layout.height,
        viewBox=f"0 0 {layout.width:.6g} {layout.height:.6g}",
    )


def time_strip(contents: PageContents) -> Markup:
    """Return all kernels side by side, each as wide as its share of the time; empty if that is not known.

    Places are in per cent, so that labels keep their form at any width.
    """
    if not contents.kernels or any(kernel.share is None for kernel in contents.kernels):
        return join()
    x, parts = 0.0, []
    for kernel in contents.kernels:
        own = 100.0 * (kernel.share or 0.0)
        told = f"{kernel.name}: {amount(kernel.time_us)}, {percent(kernel.share)}"
        box = tag("rect", x=f"{x:.3f}%", y=0, width=f"{own:.3f}%", height=_STRIP, class_="fill")
        size = "always" if own >= _LABELLED[0] else "wide" if own >= _LABELLED[1] else None
        label = f"{short_name(kernel.target)} {percent(kernel.share)}"
        shown = tag("text", label, x=f"{x:.3f}%", dx=8, y=_STRIP / 2 + 5, class_=size) if size else ""
        parts.append(tag("g", tag("title", told), box, shown, class_=colour_of(contents, kernel.target)))
        x += own
    told = "; ".join(f"{k.name} {percent(k.share)}" for k in contents.kernels[:12])
    return tag(
        "svg",
        parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="strip",
        role="img",
        aria_label=f"Share of each kernel in the time, in the order of data: {told}",
        width="100%",
        height=_STRIP,
    )


def _ports(values: Sequence[Value]) -> list[tuple[Value, ...]]:
    """Return the boxes of inputs or outputs: one for each, or one for all if there are many."""
    return [(value,) for value in values] if len(values) <= _PORTS_SHOWN else [tuple(values)]


def _place(ports: Sequence[Sequence[Value]], value: Value, start: int) -> int:
    """Return the item of an input or output."""
    if len(ports) == 1:
        return start
    return start + next(i for i, port in enumerate(ports) if port[0].name == value.name)


def _kernel(contents: PageContents, kernel: KernelView, box: Box, has_links: bool) -> Markup:
    share, width, height = kernel.share, _SIZE.width, _SIZE.height
    facts = [amount(kernel.time_us), percent(share), counted(len(kernel.operators), "operator")]
    told = ", ".join(fact for fact in facts if fact)
    parts = [
        tag("title", f"{kernel.name} on {short_name(kernel.target)}: {told}. {told_operators(kernel)}"),
        tag("rect", x=box.x, y=box.y, width=width, height=height, rx=_CORNER, class_="box"),
        tag("rect", x=box.x, y=box.y, width=8, height=height, rx=3, class_="fill"),
        tag("text", f"{kernel.number}  {_cut(kernel.name)}", x=box.x + 18, y=box.y + 20, class_="name"),
        tag("text", told.replace(", ", " · "), x=box.x + 18, y=box.y + 37, class_="facts"),
    ]
    if share is not None:
        room = width - 26
        parts += [
            tag("rect", x=box.x + 18, y=box.y + height - 8, width=room, height=4, rx=2, class_="track"),
            tag("rect", x=box.x + 18, y=box.y + height - 8, width=max(room * share, 1), height=4, rx=2, class_="fill"),
        ]
    is_heaviest = kernel.number == contents.heaviest
    group = tag(
        "g", parts, class_=f"kernel {colour_of(contents, kernel.target)}", data_heaviest="true" if is_heaviest else None
    )
    if not has_links:
        return group
    label = f"Kernel {kernel.number} of {len(contents.kernels)}, {kernel.name} on {short_name(kernel.target)}: {told}"
    return tag("a", group, href=f"#kernel-{kernel.number}", aria_label=label)


def _port(box: Box, values: Sequence[Value], noun: str) -> Markup:
    label = f"{noun} {values[0].name}" if len(values) == 1 else f"{len(values)} {noun}s"
    facts = values[0].type if len(values) == 1 else ", ".join(value.name for value in values)
    width, height = _SIZE.width, _SIZE.height
    x, middle = box.x + width / 2, "middle"
    return tag(
        "g",
        tag("title", "\n".join(f"{value.name}: {value.type}" for value in values[:40])),
        tag("rect", x=box.x, y=box.y + 4, width=width, height=height - 8, rx=22, class_="port"),
        tag("text", _cut(label), x=x, y=box.y + 23, text_anchor=middle, class_="name"),
        tag("text", _cut(facts, 40), x=x, y=box.y + 39, text_anchor=middle, class_="facts"),
    )


def _wire(layout: Layout, number: int, pair: tuple[int, int], values: Sequence[Value], first: int, last: int) -> Markup:
    a, b = (item - first + 1 if first <= item < last else None for item in pair)
    told = "\n".join(f"{value.name}: {value.type}" for value in values[:8])
    return tag(
        "path",
        tag("title", told) if len(layout.paths) <= _MOST_TITLED else "",
        d=_drawn(layout.paths[number]),
        class_="wire",
        marker_end="url(#arrow)",
        data_from=None if a is None else str(a),
        data_to=None if b is None else str(b),
    )


def _drawn(points: Sequence[Point]) -> str:
    """Return the path of a wire: a curve between two points, or a line with round corners."""
    if len(points) == 2:
        (x0, y0), (x1, y1) = points
        bend = (y1 - y0) / 2
        return f"M{x0:.1f} {y0:.1f}C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"
    drawn = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (x0, y0), (x1, y1) = _near(corner, before), _near(corner, after)
        drawn.append(f"L{x0:.1f} {y0:.1f}Q{corner[0]:.1f} {corner[1]:.1f} {x1:.1f} {y1:.1f}")
    return "".join([*drawn, f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"])


def _near(corner: Point, other: Point) -> Point:
    """Return the point of the line to another corner at which the round corner begins."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = max(abs(dx), abs(dy))
    step = min(_CORNER, length / 2) / length if length else 0.0
    return corner[0] + dx * step, corner[1] + dy * step


def _cut(text: str, longest: int = _LONGEST_LABEL) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
