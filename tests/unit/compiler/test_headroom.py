"""The rows of the table of headroom, of profiles and times that are given."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from collage.compiler.headroom import _as_json, _Chain, _row_of, _without_views
from collage.cost.outcome import Outcome
from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.measure.baselines import TargetBaseline
from collage.measure.machine_rates import MachineRates
from collage.measure.work import Work, Workload, shape_in
from collage.numerics.value_store import ValueStore
from collage.status import Status
from collage.target import Target
from collage.toolchains import Availability

LEFT, RIGHT, NATIVE = (Target.parse(text) for text in ("llvm -compiler=left", "llvm -compiler=right", "llvm"))
BASE = TargetBaseline(LEFT, Availability(True), outcomes=(Outcome(Status.OK),))
RATES = MachineRates(1e9, ((1, 1e9),))


def graph_of(text: str) -> DataflowGraph:
    return DataflowGraph(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 17]> agraph {text}'))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "(float[1,8,9,9] x, float[8,1,5,5] w) => (float[1,8,5,5] y) {y = Conv <group=8> (x, w)}",
            "Conv 5x5 depthwise",
        ),
        ("(float[1,8,9,9] x, float[8,4,1,1] w) => (float[1,8,9,9] y) {y = Conv <group=2> (x, w)}", "Conv 1x1 grouped"),
        ("(float[1,8,9] x, float[8,8,3] w) => (y) {c = Conv (x, w) y = Relu (c)}", "Conv 3+Relu"),
        ("(float[2,3] x, float[3,4] w) => (y) {m = MatMul (x, w) y = Tanh (m)}", "MatMul of values+Tanh"),
        ("(float[2] x) => (y) {a = Add (x, x) b = Mul (a, x) c = Exp (b) y = Neg (c)}", "Add+Mul+Exp+…"),
        ("(float[2] x, int64[1] s) => (y) {a = Reshape (x, s) y = Flatten (a)}", "Flatten"),
    ],
)
def test_a_row_is_called_after_what_decides_its_speed(text: str, name: str) -> None:
    graph = graph_of(text)
    assert _row_of(SubGraph(graph, IndexSet.range(0, len(graph)))) == name


def test_the_time_of_views_counts_with_what_reads_them(tmp_path: Path) -> None:
    text = """(float[4,1,3] x, int64[3] s) => (float[4,1,3] y)
        {a = Transpose <perm=[1,0,2]> (x) b = Reshape (a, s) c = Transpose <perm=[2,1,0]> (b) d = Relu (c) y = Reshape (d, s)}"""
    graph = graph_of(text)
    values = ValueStore(tmp_path)
    for value in [value for node in graph.nodes for value in (*node.inputs, *node.outputs) if value is not None]:
        value.shape = ir.Shape([4, 1, 3])
    found = _without_views(dict.fromkeys(range(5), 1.0), graph, Workload(graph, lambda value: shape_in(values, value)))
    assert found == {2: 3.0, 3: 1.0, 4: 1.0}, "a view that is an output has nothing that reads it"


def chain(row: str, time_s: float, alone_s: dict[Target, float], limit_s: float | None = 1.0) -> _Chain:
    place = SubGraph(graph_of("(float[2] x) => (y) {y = Relu (x)}"), IndexSet(1))
    work = [] if limit_s is None else [(Work(limit_s * 1e9, 0, 0), 1.0)]
    outcomes = {target: Outcome(Status.OK) for target in alone_s}
    return _Chain([place], row, work, time_s=time_s, limit_s=limit_s, outcomes=outcomes, alone_s=alone_s)


def test_the_fastest_is_a_library_inside_the_model_or_alone() -> None:
    chains = [
        chain("a", 8.0, {LEFT: 9.0, RIGHT: 4.0, NATIVE: 2.0}),
        chain("a", 2.0, {LEFT: 3.0, RIGHT: 6.0, NATIVE: 6.0}),
        chain("b", 5.0, {}, 2.0),
        # Merged into the first of these, by the library that the profile is of.
        chain("c", 4.0, {LEFT: 5.0, NATIVE: 10.0}),
        chain("c", 0.0, {LEFT: 3.0}),
        chain("d", 1.0, {}, None),
        chain("e", 0.0, {}),
    ]
    found = _as_json(chains, [LEFT, RIGHT], BASE, RATES)
    rows = {row["operators"]: row for row in found["rows"]}
    assert list(rows) == ["a", "b", "c", "d", "e"], "the longest above their limits come first"
    assert sum(row["time_ms"] for row in rows.values()) == found["time_ms"] == 20e3
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1.0)
    assert (rows["a"]["fastest_ms"], rows["a"]["fastest"], rows["a"]["over_limit"]) == (6e3, "right", 3.0)
    assert rows["a"]["native_over_fastest"] == 8 / 7, "native code and libraries are compared as kernels of their own"
    assert (rows["b"]["fastest_ms"], rows["b"]["fastest"], rows["b"]["native_ms"]) == (5e3, "left", None)
    assert (rows["c"]["fastest_ms"], rows["c"]["native_over_fastest"]) == (4e3, 2.0)
    assert (rows["d"]["limit_ms"], rows["d"]["over_limit"]) == (None, None)
    assert (rows["e"]["limit_ms"], rows["e"]["over_limit"]) == (1e3, None), (
        "merged into another row, and not timed alone"
    )
    assert found["timed_chains"] == [4, 7] and found["timed_share"] == 0.7


def test_a_native_target_that_stands_alone_is_its_own_library() -> None:
    (row,) = _as_json([chain("a", 8.0, {NATIVE: 6.0})], [NATIVE], TargetBaseline(NATIVE, Availability(True)), RATES)[
        "rows"
    ]
    assert (row["fastest_ms"], row["fastest"], row["native_over_fastest"]) == (6e3, "llvm", 1.0)
