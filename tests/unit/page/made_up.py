"""Contents of pages that no compilation made: of any size, and with names that attack."""

from __future__ import annotations

import random

from collage.explain import NodeRanges, Record, TargetAnswer, TriedKernel
from collage.page import PageContents
from collage.page._contents import KernelView, Operator, Value
from collage.report import KernelRow, Machine, ModelFacts, Numerics, Ratio, ReferenceFacts, Report, Row, Times
from collage.status import Status

MENU = ("llvm -compiler=onnxruntime", "llvm -compiler=openvino", "llvm")
TYPES = ("Conv", "Relu", "Add", "MatMul", "Softmax", "Resize")


def contents(kernels: int = 3, operators: int = 4, *, prefix: str = "/net", has_record: bool = True) -> PageContents:
    """Return a page of a chain with skips: kernel i reads what the kernels i - 1 and i - 3 make."""
    made = [Value(f"{prefix}/value{i}", f"float32[1, {8 + i}, 32, 32]") for i in range(kernels + 1)]
    views, wires = [], []
    for i in range(kernels):
        reads = [made[i], *([made[i - 2]] if i >= 2 else [])]
        views.append(
            KernelView(
                number=i + 1,
                name=f"{('onnxruntime', 'openvino', 'tvm')[i % 3]}_{i + 1:02}_{TYPES[i % 6]}",
                target=MENU[i % 3],
                time_us=100.0 * (i % 7 + 1),
                share=None,
                rule="region",
                place=None,
                operators=tuple(
                    Operator(
                        f"{prefix}/block{i}/{TYPES[(i + j) % 6]}_{j}",
                        TYPES[(i + j) % 6],
                        (Value(f"{prefix}/block{i}/out{j}", "float32[1, 8, 32, 32]"),),
                        tuple({max(j - 1, 0), j // 2} - {j}),
                    )
                    for j in range(operators)
                ),
                reads=tuple(reads),
                makes=(made[i + 1],),
            )
        )
        wires += [(i, i + 1, made[i]), *([(i - 2, i + 1, made[i - 2])] if i >= 2 else [])]
    total = sum(view.time_us or 0.0 for view in views)
    views = [_with_share(view, total) for view in views]
    return PageContents(
        title=f"{prefix.strip('/')}.onnx",
        report=report(views, prefix),
        kernels=tuple(views),
        inputs=(made[0],),
        outputs=(made[-1],),
        wires=(*wires, (kernels, kernels + 1, made[-1])),
        builds={"openvino": "openvino 2026.4.1"},
        record=record(views) if has_record else None,
    )


def _with_share(view: KernelView, total: float) -> KernelView:
    import dataclasses

    return dataclasses.replace(view, share=(view.time_us or 0.0) / total)


def report(views: list[KernelView], prefix: str = "/net") -> Report:
    rng = random.Random(7)

    def rounds(middle: float) -> tuple[float, ...]:
        return tuple(middle * rng.uniform(0.97, 1.05) for _ in range(11))

    def times(middle: float) -> Times:
        return Times(middle, middle * 0.97, middle * 1.08, 110)

    return Report(
        model=ModelFacts(f"{prefix.strip('/')}.onnx", "ab" * 32, sum(len(view.operators) for view in views)),
        menu=MENU,
        winner="mix 1",
        rows=(
            Row("mix 1", "mix", "returned", None, len(views), None, Ratio(1, 1, 1), 1e4, times(1e4), rounds(1e4)),
            Row(
                MENU[1],
                "single",
                "slower",
                MENU[1],
                1,
                None,
                Ratio(1.08, 1.05, 1.12),
                1.08e4,
                times(1.08e4),
                rounds(1.08e4),
            ),
            Row(
                "onnxruntime",
                "baseline",
                "baseline",
                MENU[0],
                None,
                None,
                Ratio(1.31, 1.27, 1.36),
                1.31e4,
                times(1.3e4),
                rounds(1.31e4),
            ),
            Row(MENU[2], "single", "refused", MENU[2], reason=f"cannot import {prefix}/block0/Conv_0: no kernel"),
        ),
        kernels=tuple(
            KernelRow(
                view.name, view.target, "", tuple(operator.name for operator in view.operators), view.rule, view.time_us
            )
            for view in views
        ),
        numerics=Numerics(
            True,
            1e-6,
            2.1e-6,
            1e-4,
            reference=ReferenceFacts("original", "onnxruntime 1.31.1", None, ("zeros", "tiny and large")),
        ),
        warnings=(f"values of '{prefix}/value0' are NaN in places",),
        machine=Machine("Example CPU @ 3 GHz", 2, 8 << 30, "Linux x86_64", "0.1.0", {MENU[1]: "openvino 2026.4.1"}),
        date="2026-11-27",
        command=f"collage compile {prefix.strip('/')}.onnx -o model.collage",
    )


def record(views: list[KernelView]) -> Record:
    names = [operator.name for view in views for operator in view.operators]
    op_types = [operator.op_type for view in views for operator in view.operators]
    rows, start = [], 0
    for view in views:
        nodes = NodeRanges(((start, start + len(view.operators) - 1),))
        start += len(view.operators)
        mine = TriedKernel(nodes, view.target, Status.OK, view.time_us, rule=view.rule)
        other = MENU[(MENU.index(view.target) + 1) % 3]
        third = MENU[(MENU.index(view.target) + 2) % 3]
        rows += [
            mine,
            TriedKernel(nodes, other, Status.OK, (view.time_us or 1.0) * 1.4),
            TriedKernel(nodes, third, Status.WRONG, None, reason=f"differs at {names[nodes.first]}"),
        ]
    everything = NodeRanges(((0, len(names) - 1),))
    answers = [TargetAnswer(target, True, whole=Status.OK, whole_us=1e4, takes=everything) for target in MENU]
    return Record(tuple(names), tuple(op_types), targets=tuple(answers), tried=tuple(rows))
