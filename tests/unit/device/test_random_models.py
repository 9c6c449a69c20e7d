"""Random models under random demands: whatever is asked for, every read happens where the reader is."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from tests.combinations import first
from tests.unit.device.simulation import copies_of, nodes_of, random_inputs, random_model, run, simulate

from collage.device import (
    PartitionBySEScope,
    PlanDevices,
    asked_scope,
    is_device_copy,
    on_device,
    planned_scope,
    require_output,
)
from collage.transform import InferType, PassContext

DEVICES = ("cpu:0", "cpu:1", "cuda:0")
SCOPES = (*DEVICES, *DEVICES, "cpu:1/fast", "cuda:0/texture", "cuda", "cpu", "?")


def demand(model: ir.Model, seed: int) -> PlanDevices:
    """Random annotations, and a planner with a random default."""
    random = np.random.default_rng(seed)
    for node in nodes_of(model):
        if node.op_type not in ("Constant", "If", "Loop", "Scan", "twice") and random.random() < 0.2:
            on_device(node, str(random.choice(SCOPES)))
    for value in model.graph.inputs:
        if random.random() < 0.3:
            on_device(value, str(random.choice(SCOPES)))
    for value in model.graph.outputs:
        if random.random() < 0.5:
            require_output(model, value.name, str(random.choice(SCOPES)))
    return PlanDevices(DEVICES, default=str(random.choice(DEVICES)))


# ONNX Runtime refuses 119, planned or not.
@pytest.mark.parametrize("seed", first(40, [seed for seed in range(150) if seed != 119]))
def test_every_read_happens_where_the_reader_is(seed: int) -> None:
    model = InferType()(random_model(seed)) if seed % 2 else random_model(seed)
    expected = run(model, random_inputs())
    planned = demand(model, seed)(model)
    simulate(planned)
    for one, other in zip(run(planned, random_inputs()), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for node in nodes_of(planned):
        asked = asked_scope(node)
        if asked is not None and node.op_type != "Constant":
            assert asked.join(planned_scope(node)) is not None


@pytest.mark.parametrize("seed", first(15, range(40)))
def test_planning_twice_is_planning_once_also_after_a_file(seed: int) -> None:
    model = random_model(seed)
    plan = demand(model, seed)
    once = plan(model)
    assert ir.to_proto(plan(once)) == ir.to_proto(once)
    loaded = ir.from_proto(type(ir.to_proto(once)).FromString(ir.to_proto(once).SerializeToString()))
    assert ir.to_proto(plan(loaded)) == ir.to_proto(once)


@pytest.mark.parametrize("seed", first(15, range(40)))
def test_without_annotations_all_is_in_the_default_and_nothing_is_copied(seed: int) -> None:
    with PassContext(fallback_device="cpu:1"):
        planned = PlanDevices(host="cpu:1")(random_model(seed))
    assert {planned_scope(n).storage for n in nodes_of(planned)} == {planned_scope(nodes_of(planned)[0]).storage}
    assert str(planned_scope(nodes_of(planned)[0])) == "cpu:1[llvm]" and not copies_of(planned)


@pytest.mark.parametrize("seed", first(20, range(60)))
def test_regions_span_one_scope_and_compute_the_same(seed: int) -> None:
    model = random_model(seed)
    expected = run(model, random_inputs())
    planned = demand(model, seed)(model)
    regions = PartitionBySEScope()(planned)
    for function in regions.functions.values():
        if "result_se_scope" in function.metadata_props:
            scopes = {str(planned_scope(n)) for n in function.all_nodes() if n.op_type != "Constant"}
            assert scopes == {function.metadata_props["result_se_scope"]}
            assert not any(map(is_device_copy, function.all_nodes()))
    for one, other in zip(run(regions, random_inputs()), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert ir.to_proto(PartitionBySEScope()(regions)) == ir.to_proto(regions)
