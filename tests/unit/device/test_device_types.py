"""Kinds of devices that toolchains add, and a plan of devices told as data."""

from __future__ import annotations

import subprocess
import sys

import onnx_ir as ir
import pytest

from collage._errors import TargetError
from collage.device import describe_plan, read_device_plan
from collage.target import Target, register_device_type

NEW_KIND = """
from collage.target import DEVICE_TYPES, Target, register_device_type
from collage.device import PlanDevices, SEScope, may_take, on_device, planned_scope
import onnx_ir as ir

register_device_type("ethos-u", "ethos")
register_device_type("ethos-u", "ethos")
register_device_type("ethos-n", "ethos")
print(Target.parse("ethos-u -compiler=mine"), SEScope.parse("ethos:1"), SEScope.parse("ethos-u -compiler=mine"))
print(may_take(SEScope("ethos"), Target("ethos-u", "mine")), may_take(SEScope("ethos"), Target("llvm")))
text = '<ir_version: 10, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { h = Relu (x) y = Neg (h) }'
model = ir.from_onnx_text(text)
on_device(model.graph.node(0), "ethos")
for node in PlanDevices(["cpu:0", "ethos:0"], default="cpu")(model).graph:
    print(node.op_type, planned_scope(node))
"""


def test_a_toolchain_adds_a_kind_of_device() -> None:
    run = subprocess.run([sys.executable, "-c", NEW_KIND], capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == [
        "ethos-u -compiler=mine ethos:1 ethos[ethos-u -compiler=mine]",
        "True False",
        "Relu ethos:0[ethos-u]",
        "device_copy cpu:0[llvm]",
        "Neg cpu:0[llvm]",
    ], run.stderr


@pytest.mark.parametrize(
    ("kind", "device", "match"),
    [
        ("llvm", "gpu", "registered for 'cpu'"),
        ("My NPU", "npu", "is not a name"),
        ("npu", "", "is not a name"),
        ("npu-", "npu", "is not a name"),
    ],
)
def test_registrations_that_make_no_sense_are_refused(kind: str, device: str, match: str) -> None:
    with pytest.raises(TargetError, match=match):
        register_device_type(kind, device)


def test_a_target_with_a_host_is_read_from_text() -> None:
    host = Target.parse("llvm -threads=1")
    assert Target.parse("cuda -libs=cudnn", host=host) == Target("cuda", libs="cudnn", host=host)
    with pytest.raises(TargetError, match=r"Target\.parse reads"):
        Target("cuda -compiler=cutlass")
    config = read_device_plan(b'[devices.a]\ndevice = "cpu:0"\n').config()
    assert str(config.host) == "cpu:0[llvm]"


def test_a_target_refines_another_only_with_equal_options() -> None:
    plain = Target.parse("llvm")
    assert Target.parse("llvm -compiler=openvino").refines(plain)
    assert not Target.parse("llvm -compiler=openvino -precision=bf16").refines(plain)
    assert not Target.parse("llvm -compiler=openvino").refines(Target.parse("llvm -threads=2"))
    assert Target.parse("llvm -compiler=openvino -threads=2").refines(Target.parse("llvm -threads=2"))


def test_a_plan_is_told_with_reasons_and_copies() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { h = Relu (x) y = Neg (h) }'
    )
    for i, node in enumerate(model.graph):
        node.name = f"n{i}"
    plan = b"""
        default = "main"
        [devices.main]
        device = "cpu:0"
        [devices.small]
        device = "cpu:1"
        [nodes]
        n0 = "small"
    """
    told = describe_plan(model, read_device_plan(plan))
    assert [(node["name"], node["scope"]) for node in told["nodes"]] == [("n0", "cpu:1[llvm]"), ("n1", "cpu:0[llvm]")]
    assert told["nodes"][0]["reason"] == "annotated on_device" and told["nodes"][1]["reason"] == "default"
    (copy,) = told["copies"]
    assert (copy["value"], copy["from"], copy["to"]) == ("h", "cpu:1[llvm]", "cpu:0[llvm]")
    assert "reads it in cpu:0" in copy["why"]
