"""What a prompt or a notebook shows of an executable and of a profile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.runtime.conftest import Build

from collage.report import KernelRow, Ratio, Report, Row, Times
from collage.runtime import KernelRecord, KernelTime, Profile, Recipe
from collage.runtime._summary import html_table, one_line
from collage.toolchains import Compiled


def recipe(*targets: str, report: Report | None = None, name: str = "collage_k") -> Recipe:
    kernels = tuple(
        KernelRecord(f"{name}{i}", target, (), (), Compiled("fake", target, ("f",), (), ()))
        for i, target in enumerate(targets)
    )
    return Recipe((), (), kernels, 0, "model.onnx", {}, {}, report or Report())


def report_of(time_us: float | None, single: float | None = None, baseline: float | None = None) -> Report:
    times = None if time_us is None else Times(time_us, time_us, time_us)
    rows = [Row("mix 1", "mix", "returned", measured_us=times)]
    if single is not None:
        rows.append(Row("llvm", "single", "slower", "llvm", ratio=Ratio(single, single, single)))
    if baseline is not None:
        rows.append(Row("baseline", "baseline", "baseline", ratio=Ratio(baseline, baseline, baseline)))
    return Report(winner="mix 1", rows=tuple(rows))


def test_a_line_names_kernels_targets_time_and_speed_ups() -> None:
    report = report_of(4716.04, 1.169, 1.5)
    assert one_line(recipe("llvm", "llvm -compiler=openvino", "llvm", report=report)) == (
        "3 kernels on llvm, llvm -compiler=openvino; 4.716 ms when compiled; 1.50x what you had; "
        "1.17x the best single toolchain"
    )


def test_what_the_report_does_not_hold_is_left_out() -> None:
    assert one_line(recipe("llvm")) == "1 kernel on llvm"
    assert one_line(recipe()) == "0 kernels"
    report = report_of(None, 1.5)
    assert one_line(recipe("llvm", report=report)) == "1 kernel on llvm; 1.50x the best single toolchain"


@pytest.mark.parametrize("value", [None, "<b>", [], {}, True, -1.0, float("nan"), 10**400, {"median": "4"}])
def test_a_report_may_hold_anything(value: Any) -> None:
    for told in ({"rows": value, "kernels": value}, {"kernels": [value], "rows": [value]}):
        try:
            report = Report.from_json(told)
        except ValueError:
            continue
        assert one_line(recipe("llvm", report=report)) == "1 kernel on llvm"
        html_table(recipe("llvm", report=report))


def test_texts_can_neither_command_the_terminal_nor_hold_markup() -> None:
    hostile = recipe("llvm -x=<script>\x1b[2J\n", name="<img onerror=1>\x07")
    assert one_line(hostile).isprintable()
    table = html_table(hostile)
    assert "<script" not in table and "<img" not in table and "\x1b" not in table
    assert "&lt;img onerror=1&gt;" in table


def test_many_targets_and_kernels_are_counted_not_listed() -> None:
    many = recipe(*(f"llvm -threads={i}" for i in range(80)))
    assert one_line(many) == (
        "80 kernels on llvm -threads=0, llvm -threads=1, llvm -threads=2, llvm -threads=3, 76 more"
    )
    assert html_table(many).count("<tr>") == 1 + 50 + 1 and "and 30 more" in html_table(many)
    assert len(one_line(recipe("llvm -x=" + "y" * 9000))) < 100


def test_a_table_has_a_row_for_each_kernel_with_its_own_time() -> None:
    report = Report(kernels=(KernelRow("k", "llvm", time_us=12.34), KernelRow("k", "llvm")))
    table = html_table(recipe("llvm", "llvm", report=report))
    assert "<td>collage_k0</td><td>llvm</td><td>12.3</td>" in table
    assert "<td>collage_k1</td><td>llvm</td><td></td>" in table


def test_an_executable_shows_itself(build: Build) -> None:
    exe = build()
    assert repr(exe) == f"<collage.Executable: {one_line(exe.recipe)}>"
    assert "3 kernels on" in repr(exe) and "openvino" in repr(exe)
    assert exe._repr_html_() == html_table(exe.recipe)


def test_a_profile_is_short_however_many_runs_it_holds() -> None:
    kernel = KernelTime("k", "llvm", 10.0, 9.0, 11.0, 0.5)
    profile = Profile((kernel,), 2000.0, 3.0, (((0, 10),),) * 500)
    assert repr(profile) == "<Profile: 2.000 ms a run, kernels: 1, runs: 500>"
    assert "whole run" in str(profile)
