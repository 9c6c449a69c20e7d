"""What device planning costs on large models.

Run: ``python benchmarks/device_planning.py``. Prints one line per case: median of five in milliseconds of processor
time. It should stay below 500 ms for 3,000 nodes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from collage.device import CompilationConfig, DevicePlan, PartitionBySEScope, PlanDevices, on_device

DEVICES = ("cpu:0", "cpu:1", "cuda:0")


def transformer(nodes: int) -> ir.Model:
    """Layers of 25 nodes with weights, residuals, and shape computations."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 64, 64]))
    weights = [ir.Value(name=f"w{i}", const_value=ir.tensor(np.ones((64, 64), np.float32))) for i in range(4)]
    index = ir.Value(name="i", const_value=ir.tensor(np.array([0, 1, 2])))
    made: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        made.append(ir.Node("", op_type, inputs, name=f"n{len(made)}"))
        made[-1].outputs[0].name = f"v{len(made)}"
        return made[-1].outputs[0]

    value = x
    while len(made) < nodes:
        start = value
        shape = op("Concat", op("Gather", op("Shape", start), index))
        q, k, v = (op("Reshape", op("Add", op("MatMul", start, w), w), shape) for w in weights[:3])
        mixed = op("MatMul", op("Softmax", op("MatMul", q, op("Transpose", k))), v)
        value = op("Add", op("Reshape", op("MatMul", mixed, weights[3]), shape), start)
        hidden = op("Erf", op("Add", op("MatMul", value, weights[0]), weights[1]))
        value = op("Add", op("Mul", hidden, value), value)
    graph = ir.Graph(
        [x], [value], nodes=made, initializers=[*weights, index], opset_imports={"": 20}, name="transformer"
    )
    return ir.Model(graph, ir_version=10)


def scattered(nodes: int, share: float) -> ir.Model:
    """The same, with a share of the nodes annotated at random."""
    model, random = transformer(nodes), np.random.default_rng(0)
    for node in model.graph:
        if random.random() < share:
            on_device(node, str(random.choice(DEVICES)))
    return model


def report(text: str, work: Callable[[], object]) -> None:
    times = []
    for _ in range(5):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    print(f"{statistics.median(times) * 1e3:8.1f} ms  {text}")


def main() -> None:
    config = CompilationConfig.of(DEVICES)
    for text, model in (
        ("nothing annotated", transformer(3000)),
        ("1 node in 100 annotated", scattered(3000, 0.01)),
        ("half of the nodes annotated", scattered(3000, 0.5)),
    ):
        count = len(model.graph)
        report(f"plan (DevicePlan), {count} nodes, {text}", lambda m=model: DevicePlan(m, config).copies())
        report(f"plan, copy the model, insert copies (PlanDevices), {text}", lambda m=model: PlanDevices(config)(m))
        planned = PlanDevices(config)(model)
        report(f"again on the planned model of {len(planned.graph)} nodes", lambda m=planned: PlanDevices(config)(m))
        report("partition the planned model", lambda m=planned: PartitionBySEScope()(m))
        lowered = PartitionBySEScope()(planned)
        report(
            f"again on the {len(lowered.graph)} regions and copies of that", lambda m=lowered: PlanDevices(config)(m)
        )


if __name__ == "__main__":
    main()
