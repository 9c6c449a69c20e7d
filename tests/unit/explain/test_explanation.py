"""Answers from a record: the questions of a user, and of an author of a toolchain."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.unit.explain.records import (
    ACME,
    KERNELS,
    LLVM,
    NAMES,
    OPENVINO,
    TYPES,
    explained,
    full_record,
    full_report,
    row,
)

from collage._errors import UsageError
from collage.explain import Explanation, Record, as_plain
from collage.report import BodyKernelRow, KernelRow, Report, Row
from collage.status import Status


def test_kernels_of_bodies_stand_below_their_kernel() -> None:
    inner = BodyKernelRow("k0_body_acme_01_Add", ACME, "Add")
    kernels = (replace(KERNELS[0], bodies=(inner,), time_us=12.0), KERNELS[1])
    explanation = Explanation.of(full_record(), full_report(), kernels)
    lines = str(explanation).splitlines()
    assert lines[2].startswith("k0") and "0.012" in lines[2] and "80%" in lines[2]
    assert lines[3].split() == [inner.name, "Add", "acme"]
    assert explanation.to_json()["kernels"][0]["bodies"][0]["target"] == ACME


@pytest.fixture
def explanation() -> Explanation:
    return explained(full_record())


def test_kernels_come_with_their_runner_ups_and_margins(explanation: Explanation) -> None:
    first, second = explanation.kernels
    assert (first.operators, first.chosen.kernel.target) == ("Conv, Relu", OPENVINO)
    assert (first.time_us, first.share) == (408.0, 0.8)
    assert [(r.kernel.target, r.margin) for r in first.runner_ups] == [(LLVM, pytest.approx(0.25))]
    assert [(r.kernel.target, r.kernel.is_measured) for r in second.runner_ups] == [(ACME, True), (OPENVINO, False)]
    assert [r.margin for r in second.runner_ups] == [pytest.approx(0.3), pytest.approx(2.0)]


def test_what_lost_and_what_was_not_measured_is_told(explanation: Explanation) -> None:
    assert [(plan.name, plan.verdict) for plan in explanation.lost] == [(LLVM, "slower"), ("mix 2", "wrong")]
    assert explanation.counts["predicted only"] == 452
    assert explanation.why_not_measured == (
        "452 of 460 candidates were not measured: no plan with them promised a gain of 2%"
    )


def test_an_operator_has_every_candidate_with_it_measured_ones_first(explanation: Explanation) -> None:
    found = explanation.node("/Resize")
    assert (found.index, found.op_type, found.chosen and found.chosen.name) == (2, "Resize", "k1")
    assert [(row.target, row.status) for row in found.candidates] == [
        (LLVM, Status.OK),
        (ACME, Status.OK),
        (OPENVINO, Status.OK),
        (OPENVINO, Status.PREDICTED),
        (ACME, Status.CRASHED),
    ]
    assert found.refusals == {"cuda": "there is no GPU"}
    against = explanation.node("Resize", "openvino")
    assert {row.target for row in against.candidates} == {OPENVINO} and not against.refusals
    assert "to be chosen: below 0.505 ms" in str(against)


def test_a_refusal_is_told_of_the_operator_that_is_refused(explanation: Explanation) -> None:
    assert explanation.node("conv").refusals == {ACME: "takes no Conv", "cuda": "there is no GPU"}
    assert explanation.node("conv", "acme").refusals == {ACME: "takes no Conv"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/resize", "'/Resize'"),
        ("nothing-like-it", "4 operators"),
        ("#4", "4 operators"),
        ("#" + "9" * 5000, "4 operators"),
        ("Add", "'add'"),
        ("", "4 op"),
    ],
)
def test_an_unknown_operator_is_refused_with_near_names(explanation: Explanation, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        explanation.node(name)


def test_an_unknown_target_is_refused_with_those_that_took_part(explanation: Explanation) -> None:
    with pytest.raises(UsageError, match="llvm, openvino, acme, cuda"):
        explanation.target("tensorrt")


def test_an_author_learns_why_not_what_was_wrong_and_what_it_would_have_to_cost(explanation: Explanation) -> None:
    (acme,) = explanation.target("acme")
    assert acme.counts == {"wrong": 1, "crashed": 1, "ok": 1}
    assert acme.why_not == (
        "by the search's costs its nearest kernel is Resize, Add, at 0.130 ms, and would have to take less than 0.100 ms by "
        "the expected times of other kernels, so be 1.30 times as fast; 2 of its kernels were wrong or failed"
    )
    assert [row.reason for row in acme.wrong] == ["differs by 4.5e-01", "signal 11"]
    text = str(acme)
    assert "takes 3 operators" in text and "refuses 1 operator: takes no Conv" in text
    assert "wrong: differs by 4.5e-01" in text and "below 0.100 ms, by expected times" in text


def test_a_target_that_runs_something_or_cannot_be_used_is_told_so(explanation: Explanation) -> None:
    assert explanation.target("openvino")[0].why_not == "it runs 1 of 2 kernels, 2 of 4 operators"
    assert explanation.target("cuda")[0].why_not == "it cannot be used here: there is no GPU"


def test_a_target_that_only_refuses_is_told_its_most_frequent_reason() -> None:
    rows = tuple(row(range(i, i + 1), ACME, Status.REFUSED, reason="no") for i in range(2))
    record = replace(full_record(), tried=(*rows, row(range(2, 3), ACME, Status.REFUSED, reason="never")))
    (acme,) = explained(record).target("acme")
    assert acme.why_not == "none of its kernels could be used: no"


def test_all_variants_of_a_toolchain_are_meant_by_its_name() -> None:
    variant = f"{OPENVINO} -precision=bf16"
    record = replace(full_record(), tried=(*full_record().tried, row(range(1), variant, time_us=9.0)))
    named = [found.target for found in explained(record).target("openvino -precision=bf16")]
    assert named == [variant]
    assert [found.target for found in explained(record).target("openvino")] == [OPENVINO]


def test_everything_is_json(explanation: Explanation) -> None:
    told = json.loads(json.dumps(explanation.to_json(), allow_nan=False))
    assert told["kernels"][0]["chosen"]["kernel"]["nodes"] == "0-1"
    assert told["borders"][0]["saves_us"] == 118.0
    assert "record" not in told
    json.dumps([as_plain(explanation.node("add")), as_plain(explanation.target("acme"))], allow_nan=False)


def test_borders_are_told_with_cost_and_saving(explanation: Explanation) -> None:
    assert (
        "k0 -> k1: relu_out, 4.1 kB; costs 0.0025 ms; as one kernel on openvino 0.620 ms (measured), "
        "so the border saves 0.118 ms" in str(explanation)
    )


def test_names_command_no_terminal() -> None:
    record = replace(full_record(), names=("\x1b[31mconv", "relu\x07", "/Resize", "add"))
    explanation = explained(record)
    assert not any(c in str(explanation.node(f"#{i}")) for i in range(4) for c in "\x1b\x07")


def test_a_plan_that_won_later_is_explained_with_the_candidates_that_are_known() -> None:
    whole = KernelRow("k0", OPENVINO, nodes=NAMES)
    explanation = Explanation.of(full_record(), full_report(), (whole, KernelRow("k1", ACME, nodes=("gone",))))
    (kernel,) = explanation.kernels
    assert kernel.chosen.kernel.time_us == 620.0 and explanation.borders == ()


def test_a_model_that_was_built_as_it_was_given_has_a_row_for_each_kernel() -> None:
    built = Record(NAMES, TYPES, tuple(row(nodes, LLVM, Status.NOT_MEASURED) for nodes in (range(1), range(1, 4))))
    explanation = Explanation.of(built, Report(), (KernelRow("k0", LLVM), KernelRow("k1", LLVM)))
    assert [kernel.operators for kernel in explanation.kernels] == ["Conv", "Relu, Resize, Add"]
    assert explanation.plan == "as given" and str(explanation)


def test_explaining_imports_neither_the_compiler_nor_onnx() -> None:
    script = (
        "import collage.explain, sys; print([m for m in ('collage.compiler', 'onnx_ir', 'onnx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_most_hopeful_kernel_is_named_with_its_promise() -> None:
    hope = row(range(1), ACME, Status.PREDICTED, time_us=1.0, limit_us=6.05)
    record = replace(full_record(), tried=(hope, *full_record().tried))
    (acme,) = explained(record).target("acme")
    assert "of those not measured, Conv promised most: 1.0% of the plan" in acme.why_not


def test_a_target_that_was_raced_is_told_its_time_in_the_race() -> None:
    returned = full_report().rows[0]
    row = Row(ACME, "single", Status.SLOWER, ACME, 1, time_us=637.5)
    (acme,) = Explanation.of(full_record(), replace(full_report(), rows=(returned, row))).target("acme")
    assert acme.why_not.startswith("alone it took 0.637 ms end to end, 1.25 times the time of the returned plan")
    reason = "2.0 and 2.1 times as slow as the best in two samples of this race"
    row = replace(row, time_us=None, reason=reason)
    (acme,) = Explanation.of(full_record(), replace(full_report(), rows=(returned, row))).target("acme")
    assert acme.why_not.startswith("alone it was left out: 2.0 and 2.1 times as slow")


def test_equal_candidates_are_shown_once_and_a_hopeless_one_is_told_so() -> None:
    rows = tuple(row(range(i, i + 1), ACME, time_us=5.0, limit_us=0.0) for i in (0, 0, 0))
    (acme,) = explained(replace(full_record(), tried=rows)).target("acme")
    assert len(acme.chances) == 1
    assert acme.why_not == (
        "by the search's costs its nearest kernel is Conv, at 0.0050 ms, and would not be chosen if it took no time"
    )
