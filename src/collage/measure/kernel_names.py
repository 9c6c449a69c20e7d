"""The names of kernels, and the attributes of their functions."""

from __future__ import annotations

import re

from collage.device import RESULT_SE_SCOPE, SEScope
from collage.graph import SubGraph, main_op_type
from collage.target import Target

__all__ = ["kernel_attributes", "kernel_name", "plan_kernel_name"]

_LABEL_LENGTH = 40
_LONGEST_PART = 24
_NOT_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]+")


def kernel_attributes(target: Target, name: str, result_scope: SEScope | None = None) -> dict[str, str]:
    """The specification's attributes of a kernel function; with devices, where its results lie."""
    attributes = {"Primitive": "1", "global_symbol": name, "target": str(target)}
    if result_scope is not None:
        attributes[RESULT_SE_SCOPE] = str(result_scope)
    return attributes if target.is_native else {**attributes, "Compiler": target.toolchain}


def kernel_name(sub_graph: SubGraph, target: Target) -> str:
    """Return a label of a kernel's operators and its toolchain, short enough for a file name."""
    op_types = [node.op_type for node in sub_graph.nodes]
    label = "_".join(op_types)
    if len(label) > _LABEL_LENGTH:
        label = f"{op_types[0]}_to_{op_types[-1]}_{len(op_types)}_ops"
    return f"{target.toolchain}_{label}".lower()


def plan_kernel_name(number: int, count: int, sub_graph: SubGraph, target: Target) -> str:
    """Return the name of a kernel in a plan, such as ``openvino_01_Conv27``, which viewers show.

    It names the toolchain, the place in the order of data, and the main operator with its count. The place makes it unique
    and comes early, since viewers show the beginning of a name only.

    Args:
        number: The kernel's place in the plan, from 1.
        count: The number of kernels of the plan.
        sub_graph: The kernel's operators.
        target: Its target.
    """
    op_types = [node.op_type for node in sub_graph.nodes]
    main = main_op_type(op_types)
    times = op_types.count(main)
    toolchain, label = (_NOT_IDENTIFIER.sub("_", part)[:_LONGEST_PART] for part in (target.toolchain, main))
    return f"{toolchain}_{number:0{max(2, len(str(count)))}}_{label}{times if times > 1 else ''}"
