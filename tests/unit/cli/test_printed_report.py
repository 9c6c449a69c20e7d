"""The report as ``compile`` prints it."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.page.made_up import contents

from collage.cli._report import print_report
from collage.report import Row
from collage.status import Status


def test_each_row_of_a_front_comes_with_the_command_that_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    points = [
        {"budget": 0.0, "error": 1e-6, "time_ms": 9.0, "plan": "1 x llvm"},
        {"budget": 0.02, "error": 1e-2, "time_ms": 3.0, "plan": "1 x openvino -precision=int8"},
    ]
    command = "collage compile 'a model.onnx' -o model.collage --accuracy-budget 1% --data samples --front"
    report = dataclasses.replace(contents().report, front={"points": points}, command=command)
    print_report(report)
    told = " ".join(capsys.readouterr().out.split())
    assert "(no option)" in told and "--accuracy-budget 0.02" in told
    assert "add its option: collage compile 'a model.onnx' -o model.collage --data samples" in told
    assert "--front" not in told and "1%" not in told
    print_report(dataclasses.replace(report, front={}))
    assert "add its option" not in capsys.readouterr().out


def test_targets_that_a_race_left_out_as_slow_come_before_mixes(capsys: pytest.CaptureFixture[str]) -> None:
    def row(name: str, verdict: Status, time_us: float | None, estimate_us: float | None = None) -> Row:
        kind = name.split()[0] if name.startswith(("mix", "baseline")) else "single"
        return Row(name, kind, verdict, None, 1, "f32", time_us=time_us, estimate_us=estimate_us)

    rows = (
        row("llvm", Status.RETURNED, 10.0),
        row("mix 1", Status.SLOWER, 11.0),
        row("mix 2", Status.SLOWER, 12.0),
        row("mix 3", Status.SLOWER, 13.0),
        row("baseline", Status.BASELINE, 100.0),
        row("onnxruntime", Status.TOO_SLOW, None, 90.0),
        row("openvino", Status.TOO_SLOW, None, 20.0),
        row("ncnn", Status.REFUSED, None),
    )
    print_report(dataclasses.replace(contents().report, rows=rows, winner="llvm"))
    told = capsys.readouterr().out
    shown = told[: told.index("not shown")]
    assert all(name in shown for name in ("openvino", "onnxruntime", "mix 1", "mix 2"))
    assert "mix 3" not in shown and "ncnn" not in shown
    assert "not shown: 1 mix, 1 refusal;" in told
    slower = row("extern", Status.TOO_SLOW, None, 30.0), row("iree", Status.TOO_SLOW, None, 40.0)
    print_report(dataclasses.replace(contents().report, rows=(*rows[:1], *rows[4:], *slower), winner="llvm"))
    assert "not shown: 1 refusal;" in capsys.readouterr().out
    more = *slower, row("inductor", Status.TOO_SLOW, None, 50.0)
    print_report(dataclasses.replace(contents().report, rows=(*rows, *more), winner="llvm"))
    assert "not shown: 3 mixes, 1 refusal, 1 slower target;" in capsys.readouterr().out
