"""Small random models, and ways to run them, for the tests of graph and fusion."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

FLOAT = ir.TensorType(ir.DataType.FLOAT)
WIDE, NARROW = (2, 4), (2, 2)
UNARY = ("Relu", "Neg", "Tanh", "Sigmoid", "Identity", "Abs")
BINARY = ("Add", "Mul", "Sub", "Max")


class Builder:
    """Appends nodes whose types and shapes are known."""

    def __init__(self, opset: int = 21) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.opset = opset

    def input(self, name: str, shape=WIDE, type_=FLOAT) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=type_)

    def constant(self, array, name: str | None = None) -> ir.Value:
        array = np.asarray(array)
        value = ir.Value(
            name=name or f"w{len(self.initializers)}",
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.tensor(array),
        )
        self.initializers.append(value)
        return value

    def op(self, op_type: str, *inputs, shape=WIDE, outputs: int = 1, type_=FLOAT, **attributes):
        node = ir.node(op_type, list(inputs), attributes=attributes or None, num_outputs=outputs)
        node.name = f"{op_type}_{len(self.nodes)}"
        for k, value in enumerate(node.outputs):
            value.name = f"{node.name}_{k}"
            value.type, value.shape = type_, ir.Shape(shape)
        self.nodes.append(node)
        return node.outputs[0] if outputs == 1 else node.outputs

    def model(self, inputs, outputs) -> ir.Model:
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports={"": self.opset},
            name="random",
        )
        return ir.Model(graph, ir_version=10)


def random_model(seed: int, size: int = 10, outputs: int = 2) -> ir.Model:
    """A random model: one- and two-input operators, products, Split and Concat; sometimes a few dead nodes.

    Loose ends are joined, so that most of the ``size`` nodes reach one of about ``outputs`` outputs.
    """
    rng = random.Random(seed)
    weights = np.random.default_rng(seed)
    b = Builder()
    inputs = [b.input("x"), b.input("y")]
    wide: list[ir.Value] = list(inputs)
    narrow: list[ir.Value] = []

    def pick(values):
        loose = [v for v in values if not v.uses()]
        return rng.choice(loose) if loose and rng.random() < 0.5 else rng.choice(values)

    def loose_ends(values):
        return [v for v in values if not v.uses() and v.producer() is not None]

    while len(b.nodes) + len(loose_ends(wide)) + len(loose_ends(narrow)) // 2 < size + outputs:
        choice = rng.random()
        if choice < 0.3:
            wide.append(b.op(rng.choice(UNARY), pick(wide)))
        elif choice < 0.7:
            wide.append(b.op(rng.choice(BINARY), pick(wide), pick(wide)))
        elif choice < 0.8:
            wide.append(b.op("MatMul", pick(wide), b.constant(weights.normal(size=(4, 4)).astype(np.float32))))
        elif choice < 0.85:
            wide.append(b.op("Add", pick(wide), b.constant(np.float32(weights.normal()))))
        elif choice < 0.93 or len(narrow) < 2:
            narrow += b.op("Split", pick(wide), shape=NARROW, outputs=2, axis=1, num_outputs=2)
        else:
            wide.append(b.op("Concat", pick(narrow), pick(narrow), axis=1))
    while len(loose := loose_ends(narrow)) > 1:
        wide.append(b.op("Concat", loose[0], loose[1], axis=1))
    while len(loose := loose_ends(wide)) > outputs:
        wide.append(b.op("Add", *rng.sample(loose, 2)))
    ends = loose_ends(wide) + loose_ends(narrow)
    taps = [v for v in wide + narrow if v.uses() and v.producer() is not None]
    if taps and rng.random() < 0.3:
        ends.append(rng.choice(taps))
    return b.model(inputs, ends[1:] if len(ends) > 2 and rng.random() < 0.2 else ends)


def feeds_of(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of a model."""
    rng = np.random.default_rng(seed)
    return {
        str(v.name): rng.normal(size=[d if isinstance(d, int) else 3 for d in v.shape]).astype(v.dtype.numpy())
        for v in model.graph.inputs
    }


def check(model: ir.Model) -> onnx.ModelProto:
    """The model as a proto that ONNX finds valid, types included."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(model: ir.Model, feeds) -> list[np.ndarray]:
    """The outputs of a model under ONNX Runtime, as written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(check(model).SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feeds)


def with_all_values(model: ir.Model) -> ir.Model:
    """The same model with every value that a node makes as an output."""
    copy = ir.from_proto(ir.to_proto(model))
    known = set(copy.graph.outputs)
    copy.graph.outputs.extend(v for n in copy.graph for v in n.outputs if v not in known)
    return copy
