"""Files for other viewers: Graphviz, Netron, Perfetto."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.unit.page.made_up import contents
from tests.unit.page.test_page import ATTACK

from collage.page import as_dot, as_netron_attachment, as_trace
from collage.runtime import Profile


def test_dot_has_a_node_for_each_kernel_and_an_edge_for_each_wire() -> None:
    page = contents(4)
    dot = as_dot(page)
    assert dot.count('fillcolor="#') == 4
    assert dot.count(" -> ") == len(page.wires)
    assert "in0 -> k1 " in dot and "k4 -> out0 " in dot and "k1 -> k4 " in dot


def test_dot_quotes_names() -> None:
    dot = as_dot(contents(prefix='/a"];\\evil [label="x'))
    for line in dot.splitlines()[3:-1]:
        unescaped = line.replace("\\\\", "").replace('\\"', "")
        assert unescaped.count('"') % 2 == 0, line


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it() -> None:
    done = subprocess.run(
        ["dot", "-Tsvg"], input=as_dot(contents(prefix=ATTACK)), capture_output=True, text=True, check=True
    )
    assert "<svg" in done.stdout


def test_the_attachment_has_the_form_that_netron_reads() -> None:
    page = contents()
    found = json.loads(as_netron_attachment(page))
    assert found["signature"] == "netron:attachment"
    for entry in (*found["metadata"], *found["metrics"]):
        assert set(entry) == {"kind", "target", "name", "value"}
    nodes = {entry["target"] for entry in found["metrics"] if entry["kind"] == "node"}
    assert nodes == {kernel.name for kernel in page.kernels}
    times = {e["target"]: e["value"] for e in found["metrics"] if e["name"] == "time within the run in ms"}
    assert times == {kernel.name: pytest.approx((kernel.time_us or 0) / 1e3) for kernel in page.kernels}
    whole = {entry["name"]: entry["value"] for entry in found["metrics"] if entry["kind"] == "model"}
    assert whole["time of a run in ms"] == pytest.approx(10.0)


def test_the_trace_shows_the_run_of_median_length() -> None:
    page = contents(3)

    def run(scale: int) -> tuple[tuple[int, int], ...]:
        return tuple((1000 * i * scale, (1000 * i + 900) * scale) for i in range(3))

    profile = Profile((), 1.0, 0.0, (run(9), run(2), run(1)))
    events = json.loads(as_trace(page, profile))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans] == [kernel.name for kernel in page.kernels]
    assert [(event["ts"], event["dur"]) for event in spans] == [(2.0 * i, 1.8) for i in range(3)]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [rows[event["tid"]] for event in spans] == ["onnxruntime", "openvino", "llvm"]


def test_an_empty_plan_has_an_empty_trace() -> None:
    assert json.loads(as_trace(contents(0), Profile((), 1.0, 0.0, ((),))))["traceEvents"][-1]["ph"] == "M"
