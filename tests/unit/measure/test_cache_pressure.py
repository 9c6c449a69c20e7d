"""What lies around a kernel: what of weights and values is not its own, divided among processors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.graph import DataflowGraph
from collage.measure.cache_pressure import CachePressure
from collage.measure.kernel_factory import KernelMaker
from collage.numerics.value_store import ValueStore
from collage.target import Target

MIB = 1 << 20
CPU, GPU = Target.parse("llvm"), Target.parse("cuda")


def chain(lengths: list[int]) -> tuple[ir.Model, KernelMaker]:
    """Values v0, v1, ... of so many float32 elements, each the one before repeated or cut."""
    values = [
        ir.Value(name=f"v{i}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([n]))
        for i, n in enumerate(lengths)
    ]
    nodes = [ir.Node("", "Neg", [values[i]], outputs=[values[i + 1]], name=f"n{i}") for i in range(len(lengths) - 1)]
    graph = ir.Graph([values[0]], [values[-1]], nodes=nodes, opset_imports={"": 17}, name="chain")
    model = ir.Model(graph, ir_version=10)
    return model, KernelMaker(DataflowGraph(model))


def stored(folder: Path, lengths: list[int]) -> ValueStore:
    store = ValueStore(folder)
    for i, length in enumerate(lengths):
        store.put(f"v{i}", np.zeros(length, np.float32))
    return store


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_values_of_the_rest_are_divided_and_those_of_the_kernel_are_its_own(tmp_path: Path, cores: int) -> None:
    lengths = [MIB // 4, MIB // 2, MIB, MIB // 4]  # 1, 2, 4 and 1 MiB
    _, kernels = chain(lengths)
    around = CachePressure(0, stored(tmp_path, lengths), cores)
    assert around.flush_bytes(kernels.model(0b001, CPU), CPU) == 5 * MIB // cores
    assert around.flush_bytes(kernels.model(0b110, CPU), CPU) == 1 * MIB // cores


def test_nothing_lies_around_the_whole_model_whatever_it_reads(tmp_path: Path) -> None:
    lengths = [5 * MIB, MIB, MIB]
    _, kernels = chain(lengths)
    assert CachePressure(0, stored(tmp_path, lengths), 2).flush_bytes(kernels.model(0b11, CPU), CPU) == 0


def test_activations_count_up_to_16_mib_and_weights_up_to_32_for_each_processor(tmp_path: Path) -> None:
    lengths = [MIB, 5 * MIB, MIB]
    _, kernels = chain(lengths)
    first, store = kernels.model(0b10, CPU), stored(tmp_path, [9 * MIB, 1, 1])
    assert CachePressure(0, store, 2).flush_bytes(first, CPU) == 16 * MIB
    assert CachePressure(36 * MIB, store, 2).flush_bytes(first, CPU) == 18 * MIB
    assert CachePressure(200 * MIB, store, 2).flush_bytes(first, CPU) == 32 * MIB
    assert CachePressure(200 * MIB, store, 20).flush_bytes(first, CPU) == 236 * MIB // 20
    few = stored(tmp_path / "few", [1, 1, 1])
    assert CachePressure(200 * MIB, few, 2).flush_bytes(first, CPU) == 32 * MIB
    assert CachePressure(200 * MIB, few, 20).flush_bytes(first, CPU) == 10 * MIB


def test_a_device_has_caches_of_its_own_for_weights_alone(tmp_path: Path) -> None:
    lengths = [MIB, MIB, MIB]
    _, kernels = chain(lengths)
    around = CachePressure(20 * MIB, stored(tmp_path, lengths), 2)
    assert around.flush_bytes(kernels.model(0b01, GPU), GPU) == 20 * MIB


def test_texts_take_no_memory_of_their_own(tmp_path: Path) -> None:
    store = ValueStore(tmp_path)
    store.put("words", np.array(["red", "green"], dtype=object))
    store.put("empty", np.zeros((0, 3), np.int64))
    store.put("bytes", np.zeros((5, 3), np.uint8))
    assert [store.nbytes(name) for name in ("words", "empty", "bytes")] == [0, 0, 15]
    with pytest.raises(KeyError):
        store.nbytes("nothing")
