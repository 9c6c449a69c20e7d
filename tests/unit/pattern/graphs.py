"""Small graphs written as text: ``y = Relu(x)`` lines."""

from __future__ import annotations

import onnx_ir as ir


def graph(text: str, inputs: str = "x", outputs: str = "y", initializers: str = "", opset: int = 20) -> ir.Graph:
    """Builds a graph from lines ``a, b = Op{alpha=1}(x, y)``; an empty operand is absent."""
    values = {name: ir.Value(name=name) for name in inputs.split()}
    for name in initializers.split():
        values[name] = ir.Value(name=name, const_value=ir.tensor([0.5], name=name))
    nodes = []
    for line in text.strip().splitlines():
        left, right = (side.strip() for side in line.split("=", 1))
        head, operands = right.split("(", 1)
        op, _, attributes = head.partition("{")
        named = dict(item.split("=") for item in attributes.rstrip("}").split(";") if item)
        operands = operands.rsplit(")", 1)[0]
        used = [values[o.strip()] if o.strip() else None for o in operands.split(",")] if operands.strip() else []
        made = [ir.Value(name=o.strip()) for o in left.split(",")]
        attrs = [ir.Attr(k, *_attribute(v)) for k, v in named.items()]
        nodes.append(ir.Node("", op, used, attrs, outputs=made, name=f"n_{made[0].name}"))
        values.update({value.name: value for value in made})
    return ir.Graph(
        [values[name] for name in inputs.split()],
        [values[name] for name in outputs.split()],
        nodes=nodes,
        initializers=[values[name] for name in initializers.split()],
        opset_imports={"": opset},
        name="g",
    )


def _attribute(text: str):
    if text.startswith("["):
        return ir.AttributeType.INTS, [int(item) for item in text.strip("[]").split(" ")]
    try:
        return ir.AttributeType.INT, int(text)
    except ValueError:
        pass
    try:
        return ir.AttributeType.FLOAT, float(text)
    except ValueError:
        return ir.AttributeType.STRING, text


def names(match) -> list[str]:
    """Names of the matched nodes' first outputs."""
    return [node.outputs[0].name for node in match.nodes]


def sets(matches) -> list[list[str]]:
    return [names(match) for match in matches]
