"""Reports for tests: one with a row of every kind, and random ones."""

from __future__ import annotations

from tests.unit.system.instances import instances as instances

from collage.report import KernelRow, ModelFacts, Numerics, Ratio, Report, Row, SearchFacts, Times

OPENVINO = "llvm -compiler=openvino"
REDUCED = "llvm -compiler=openvino -precision=bf16"


def sample() -> Report:
    """A mix that won, with a row for everything that can be said of the others."""
    rows = (
        Row("mix 1", "mix", "returned", None, 3, None, Ratio(1.0, 1.0, 1.0), 800.0, Times(810.0, 800.0, 850.0, 40)),
        Row("mix 2", "mix", "tie", None, 5, None, Ratio(1.01, 0.99, 1.03), 808.0, Times(812.0, 801.0, 853.0, 40)),
        Row(REDUCED, "single", "slower", REDUCED, 1, "bf16", Ratio(1.1, 1.08, 1.12), 880.0),
        Row(OPENVINO, "single", "slower", OPENVINO, 1, None, Ratio(1.5, 1.45, 1.55), 1200.0),
        Row("baseline", "baseline", "baseline", "llvm -compiler=onnxruntime", None, None, Ratio(2.0, 1.9, 2.1), 1600.0),
        Row("llvm", "single", "too slow", "llvm", 1, alone_us=Times(9000.0, 8900.0, 9100.0)),
        Row("llvm -compiler=wrong", "single", "wrong", "llvm -compiler=wrong", 1, reason="output 'y' differs"),
    )
    return Report(
        ModelFacts("m.onnx", "ab" * 32, 7),
        ("llvm", OPENVINO, REDUCED, "llvm -compiler=wrong"),
        "mix 1",
        rows,
        kernels=(KernelRow("k0", OPENVINO, "Conv, Relu", ("a", "b"), "whole", 100.0),),
        estimate_us=790.0,
        search=SearchFacts(candidates=9, keys=4, raced=True, wall_s=3.0),
        numerics=Numerics(True, 1e-6, 1e-6, 1e-4),
    )
