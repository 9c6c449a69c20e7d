"""Profiles name the places of nodes in the kernel, not in what a toolchain made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.toolchain.tvm_cases import numbers

from collage.frontend import place_weights
from collage.system.machine import this_machine
from collage.target import Target
from collage.testing._toolchain_kernels import kernel
from collage.toolchains._kernels import compile_for, profile_for
from collage.toolchains._registry import option_values, registry
from collage.toolchains.sdk.profiler_names import note_places, places_of
from collage.transform import prepare

# The rows are looked up at places that are computed, which toolchains that do not check indices have checks of.
LOOKUP = """(int64[N,8] ids, int64[1] past) => (float[N,8,1024] y) {
    positions = Add (ids, past)
    at = Min (positions, rows)
    found = Gather (table, at)
    first = MatMul (found, small)
    bent = Relu (first)
    second = MatMul (bent, large)
    y = Relu (second)
}"""
PLACES = ["Add", "Min", "Gather", "MatMul", "Relu", "MatMul", "Relu"]
PRODUCTS = {3, 5}


def lookup() -> ir.Model:
    weights = {
        "rows": np.array([63]),
        "table": numbers(64, 256),
        "small": numbers(256, 256),
        "large": numbers(256, 2048),
    }
    return prepare(kernel("lookup", LOOKUP, weights))


@pytest.mark.parametrize("precision", ["f32", "w8", "w4", "int8-dynamic"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "llvm"])
def test_products_have_the_places_that_they_have_in_the_kernel(name: str, precision: str, tmp_path: Path) -> None:
    plain = Target.parse("llvm" if name == "llvm" else f"llvm -compiler={name}")
    target = plain if precision == "f32" else plain.with_options(precision=precision)
    toolchain: Any = registry().for_target(target)
    if not toolchain.availability().available or precision not in (option_values(toolchain, target)["precision"] or ()):
        pytest.skip(f"{name} is not here, or does not know {precision}")
    if precision == "int8-dynamic" and not this_machine().multiplies_bytes_at_once:
        pytest.skip("a kernel in bytes is slow here")
    model = place_weights(lookup(), tmp_path)
    compiled = compile_for(toolchain, model, target, tmp_path)
    inputs = [np.arange(8, dtype=np.int64)[None], np.array([3])]
    found = profile_for(toolchain, compiled, target, tmp_path, inputs, 5)
    named = {place for step in found for place in step}
    assert PRODUCTS <= named <= {*range(len(PLACES))}
    assert all(seconds >= 0 for seconds in found.values())


def test_what_was_added_serves_the_first_that_reads_it() -> None:
    model = lookup()
    assert places_of([*model.graph]) == [*range(len(PLACES))]
    note_places(model)
    first, last = model.graph[0], model.graph[-1]
    before = ir.node("Identity", [first.inputs[0]])
    first.replace_input_with(0, before.outputs[0])
    model.graph.insert_before(first, before)
    model.graph.insert_after(last, ir.node("Shape", [last.outputs[0]]))
    assert [node.op_type for node in model.graph] == ["Identity", *PLACES, "Shape"]
    assert places_of([*model.graph]) == [0, *range(len(PLACES)), len(PLACES) - 1]
