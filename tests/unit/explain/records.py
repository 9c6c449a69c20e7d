"""A record with one of everything, for tests."""

from __future__ import annotations

from collage.explain import (
    Border,
    ChosenKernel,
    KernelStatus,
    NodeRanges,
    TargetAnswer,
    TriedKernel,
    TriedPlan,
    TriedRecord,
)

LLVM, OPENVINO, ACME = "llvm", "llvm -compiler=openvino", "llvm -compiler=acme"
NAMES = ("conv", "relu", "/Resize", "add")
TYPES = ("Conv", "Relu", "Resize", "Add")


def row(nodes: range, target: str, status: KernelStatus = KernelStatus.MEASURED, **told: object) -> TriedKernel:
    return TriedKernel(NodeRanges.of(nodes), target, status, **told)  # type: ignore[arg-type]


FIRST = row(range(2), OPENVINO, time_us=400.0, low_us=390.0, high_us=410.0, rule="regions", limit_us=480.0)
SECOND = row(range(2, 4), LLVM, time_us=100.0, low_us=95.0, high_us=105.0, rule="classic", limit_us=120.0)


def full_record() -> TriedRecord:
    return TriedRecord(
        NAMES,
        TYPES,
        "mix 1",
        505.0,
        (ChosenKernel("k0", FIRST, 2.5), ChosenKernel("k1", SECOND, 2.5)),
        (Border("k0", "k1", ("relu_out",), 1, 4096, 2.5, OPENVINO, 620.0, True, 118.0),),
        (
            TriedPlan("mix 1", (OPENVINO, LLVM), 2, "ok", 505.0, 510.0, is_returned=True),
            TriedPlan(LLVM, (LLVM,), 1, "ok", 700.0, 705.0, is_single=True, differs=NodeRanges.of(range(2))),
            TriedPlan("mix 2", (ACME,), 1, "wrong", None, None, "output 'y': differs"),
        ),
        (
            TargetAnswer(
                LLVM, True, build="tvm 1", whole=KernelStatus.MEASURED, whole_us=700.0, takes=NodeRanges.of(range(4))
            ),
            TargetAnswer(OPENVINO, True, whole=KernelStatus.MEASURED, whole_us=620.0, takes=NodeRanges.of(range(4))),
            TargetAnswer(
                ACME,
                True,
                "takes no Conv",
                "acme 2",
                KernelStatus.REFUSED,
                None,
                NodeRanges.of(range(1, 4)),
                {"takes no Conv": NodeRanges.of([0])},
            ),
            TargetAnswer("cuda", False, "there is no GPU"),
        ),
        (
            row(range(1, 2), ACME, KernelStatus.WRONG, error=0.45, reason="differs by 4.5e-01", rule="singles"),
            row(range(2, 3), ACME, KernelStatus.FAILED, reason="crash: signal 11", build_s=0.5),
            FIRST,
            SECOND,
            row(range(2), LLVM, time_us=500.0, low_us=490.0, high_us=510.0, limit_us=399.0),
            row(range(4), OPENVINO, time_us=620.0, low_us=600.0, high_us=640.0, limit_us=505.0, is_recorded=True),
            row(range(2, 4), ACME, time_us=130.0, low_us=129.0, high_us=131.0, limit_us=100.0, limit_is_expected=True),
            row(range(2, 4), OPENVINO, KernelStatus.PREDICTED, time_us=300.0, limit_us=100.0),
            row(range(3, 4), LLVM, KernelStatus.NOT_MEASURED),
        ),
        {"predicted only": 451},
        "min_gain",
        0.02,
        ("left out 3 candidates: a consumer outside comes before the last exit",),
    )
