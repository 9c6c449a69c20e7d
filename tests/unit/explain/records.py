"""A record with one of everything, and the report of the same compilation, for tests."""

from __future__ import annotations

from collage.explain import Border, Explanation, NodeRanges, Record, TargetAnswer, TriedKernel
from collage.report import KernelRow, Ratio, Report, Row
from collage.status import Status

LLVM, OPENVINO, ACME = "llvm", "llvm -compiler=openvino", "llvm -compiler=acme"
NAMES = ("conv", "relu", "/Resize", "add")
TYPES = ("Conv", "Relu", "Resize", "Add")


def row(nodes: range, target: str, status: Status = Status.OK, **told: object) -> TriedKernel:
    return TriedKernel(NodeRanges.of(nodes), target, status, **told)  # type: ignore[arg-type]


FIRST = row(range(2), OPENVINO, time_us=400.0, low_us=390.0, high_us=410.0, rule="regions", limit_us=480.0)
SECOND = row(range(2, 4), LLVM, time_us=100.0, low_us=95.0, high_us=105.0, rule="classic", limit_us=120.0)


KERNELS = (
    KernelRow("k0", OPENVINO, nodes=NAMES[:2], time_us=408.0, share=0.8),
    KernelRow("k1", LLVM, nodes=NAMES[2:], time_us=102.0, share=0.2),
)


def full_record() -> Record:
    return Record(
        NAMES,
        TYPES,
        (
            FIRST,
            SECOND,
            row(range(1, 2), ACME, Status.WRONG, error=0.45, reason="differs by 4.5e-01", rule="singles"),
            row(range(2, 3), ACME, Status.CRASHED, reason="signal 11", build_s=0.5),
            row(range(2), LLVM, time_us=500.0, low_us=490.0, high_us=510.0, limit_us=399.0),
            row(range(4), OPENVINO, time_us=620.0, low_us=600.0, high_us=640.0, limit_us=505.0, is_recorded=True),
            row(range(2, 4), ACME, time_us=130.0, low_us=129.0, high_us=131.0, limit_us=100.0, limit_is_expected=True),
            row(range(2, 4), OPENVINO, Status.PREDICTED, time_us=300.0, limit_us=100.0),
            row(range(3, 4), LLVM, Status.NOT_MEASURED),
        ),
        (Border(FIRST.nodes, SECOND.nodes, ("relu_out",), 1, 4096, 2.5, OPENVINO, 620.0, True, 118.0),),
        (
            TargetAnswer(LLVM, True, build="tvm 1", whole=Status.OK, whole_us=700.0, takes=NodeRanges.of(range(4))),
            TargetAnswer(OPENVINO, True, whole=Status.OK, whole_us=620.0, takes=NodeRanges.of(range(4))),
            TargetAnswer(
                ACME,
                True,
                "takes no Conv",
                "acme 2",
                Status.REFUSED,
                None,
                NodeRanges.of(range(1, 4)),
                {"takes no Conv": NodeRanges.of([0])},
            ),
            TargetAnswer("cuda", False, "there is no GPU"),
        ),
        {"predicted only": 451},
        "min_gain",
        0.02,
        ("left out 3 candidates: a consumer outside comes before the last exit",),
    )


def full_report() -> Report:
    even = Ratio(1.0, 1.0, 1.0)
    return Report(
        winner="mix 1",
        estimate_us=505.0,
        kernels=KERNELS,
        rows=(
            Row("mix 1", "mix", Status.RETURNED, kernels=2, ratio=even, time_us=510.0),
            Row(LLVM, "single", Status.SLOWER, LLVM, 1, time_us=705.0, differs=2),
            Row("mix 2", "mix", Status.WRONG, kernels=1, reason="output 'y': differs"),
            Row(ACME, "single", Status.REFUSED, ACME, reason="takes no Conv"),
        ),
    )


def explained(record: Record) -> Explanation:
    return Explanation.of(record, full_report())
