"""The report as ``compile`` prints it."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.page.made_up import contents

from collage.cli._report import print_report


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
