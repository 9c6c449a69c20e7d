"""What the pass infrastructure itself costs, and what the default preparation does to the zoo.

Run: ``python benchmarks/pass_overhead.py [MODEL...]``. Prints milliseconds of empty passes on a chain of 3,000 nodes, best
of twenty runs, then seconds of processor time and rounds of the preparation of each model of the zoo, or of those named.
The zoo is built by ``benchmarks/build_zoo.py``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from collage.frontend import read_model
from collage.transform import (
    PassContext,
    PassInstrument,
    Repeat,
    Sequential,
    create_function_pass,
    create_module_pass,
    default_passes,
)

ZOO = Path(__file__).parents[1] / ".cache" / "zoo"
NODES = 3000
IN_SEQUENCE = 100


def main() -> None:
    model = chain(NODES)
    empty = create_module_pass("empty", 0, lambda mod, ctx: mod)
    empty_function = create_function_pass("empty_function", 0, lambda function, mod, ctx: function)
    looking = create_function_pass("looking", 0, lambda function, mod, ctx: (list(function), function)[1])
    sequence = Sequential([empty] * IN_SEQUENCE)
    print(f"empty module pass, {NODES} nodes:               {best_ms(lambda: empty(model)):8.4f} ms")
    print(
        f"the same, per pass of {IN_SEQUENCE} in a sequence:       {best_ms(lambda: sequence(model)) / IN_SEQUENCE:8.4f} ms"
    )
    with PassContext(instruments=[PassInstrument()] * 3, trace=lambda mod, info, is_before: None):
        print(f"the same, with three instruments and a trace: {best_ms(lambda: empty(model)):8.4f} ms")
    print(f"empty function pass:                          {best_ms(lambda: empty_function(model)):8.4f} ms")
    print(f"one that looks at the nodes, of a copy:       {best_ms(lambda: looking(model)):8.4f} ms")
    names = sys.argv[1:] or sorted(path.parent.name for path in ZOO.glob("*/model.onnx"))
    for name in names:
        print_preparation(name)


def print_preparation(name: str) -> None:
    model = read_model(ZOO / name / "model.onnx")
    passes = default_passes()
    started = time.process_time()
    prepared = passes(model)
    seconds = time.process_time() - started
    (repeat,) = [member for member in passes.passes if isinstance(member, Repeat)]
    state = f"{repeat.rounds} rounds" if repeat.converged else f"no end: {', '.join(repeat.changing)}"
    print(f"prepare {name:20} {len(model.graph):5} -> {len(prepared.graph):5} nodes, {seconds:6.2f} s, {state}")


def chain(nodes: int) -> ir.Model:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    made, value = [], x
    for index in range(nodes):
        made.append(ir.node("Relu", [value], name=f"n{index}"))
        value = made[-1].outputs[0]
        value.name = f"v{index}"
    return ir.Model(ir.Graph([x], [value], nodes=made, opset_imports={"": 18}, name="chain"), ir_version=10)


def best_ms(run: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
