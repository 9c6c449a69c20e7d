from __future__ import annotations

import dataclasses
import html
import re
from typing import Any

import pytest
from tests.unit.page.made_up import MENU, contents
from tests.unit.page.test_markup import Reader

from collage.explain import NodeRanges
from collage.page import as_html, as_svg, redacted
from collage.page._picture import colour_of, row_colour
from collage.page._words import amount, percent
from collage.report import BodyKernelRow, Ratio, Report, SearchFacts, SpecialisedRow
from collage.system.texts import counted

ATTACK = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u202e"
EVENT = re.compile(r"on\w+", re.IGNORECASE)


def text_of(html: str) -> str:
    shown = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(Reader(shown.replace("<", " <")).text.split())


def test_the_first_screen_says_what_was_gained_by_what_and_how_sure() -> None:
    html = as_html(contents())
    first = text_of(html[html.index('id="verdict"') : html.index('id="model"')])
    assert "1.31 times as fast as the original model" in first
    assert "1.27 to 1.36" in first and "1.05 to 1.12" in first
    assert "3 kernels on onnxruntime" in first and "openvino (33% of the time)" in first
    assert "Outputs agree with the reference to 2e-06 of their size." in first
    assert "1 warning" in first and "NaN in places" in first


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (Ratio(1.2, 1.1, 1.3), "1.20 times as fast as the original model"),
        (Ratio(1.02, 0.97, 1.08), "As fast as the original model, within doubt"),
        (Ratio(0.8, 0.75, 0.85), "1.25 times as slow as the original model"),
        (Ratio(1.0, 1.0, 1.0), "As fast as the original model, within doubt"),
    ],
)
def test_the_headline_claims_no_more_than_the_interval(ratio: Ratio, told: str) -> None:
    page = contents()
    rows = tuple(dataclasses.replace(row, ratio=ratio) if row.kind == "baseline" else row for row in page.report.rows)
    html = as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, rows=rows)))
    headline = re.search(r'class="headline"><strong>(.*?)</strong>', html)
    assert headline is not None and headline[1] == told


def test_a_baseline_that_the_user_chose_has_its_name() -> None:
    page = contents()
    rows = [
        dataclasses.replace(row, kernels=1, target=MENU[1]) if row.kind == "baseline" else row
        for row in page.report.rows
    ]
    told = text_of(as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, rows=tuple(rows)))))
    assert "1.31 times as fast as the whole model on openvino" in told


PRECISION = {
    "limits": [{"metric": "top1", "most": 0.005}],
    "metrics": {
        "max-error": {"drop": 0.02, "interval": [0.02, 0.02]},
        "top1": {"drop": 0.001, "interval": [0.0, 0.004], "samples": 800},
    },
}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        (PRECISION, "Top-1 accuracy falls by 0.1 % (0.0 % to 0.4 %); at most 0.5 % is allowed"),
        (
            {**PRECISION, "limits": [{"metric": "max-error", "most": 0.03}]},
            "Largest error 0.02; at most 0.03 is allowed",
        ),
        ({**PRECISION, "limits": [3, {"metric": []}]}, "Largest error 0.02"),
        ({}, ""),
        ({"metrics": {}}, ""),
        ({"metrics": {"top1": {"drop": "x"}}}, ""),
        ({"metrics": {"top1": 1}, "limits": 1}, ""),
    ],
)
def test_coarser_numbers_have_their_effect_on_answers_beside_the_gain(section: Any, told: str) -> None:
    page = contents()
    html = as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, precision=section)))
    second = re.search(r'class="headline second"><strong>(.*?)</strong>', html)
    assert (second[1] if second else "") == told


def test_a_toolchain_has_one_colour_in_every_part_of_the_page_and_on_every_page() -> None:
    page = contents()
    again = dataclasses.replace(page.report.rows[1], name="int8", target=f"{MENU[1]} -precision=int8")
    report = dataclasses.replace(page.report, menu=(MENU[2], MENU[1]), rows=(*page.report.rows, again))
    html = as_html(dataclasses.replace(page, report=report))
    assert {row_colour(page, row) for row in report.rows if row.target and "openvino" in row.target} == {"t1"}
    assert colour_of(dataclasses.replace(page, report=report), MENU[1]) == colour_of(page, MENU[1]) == "t1"
    chart = html[html.index('class="chart"') : html.index('class="keys"')]
    assert re.findall(r'<g class="(t\d|mixed)">', chart) == ["mixed", "t1", "t0", "t1"]
    assert chart.count("stroke-dasharray") == 1


def test_the_page_says_when_it_was_made_and_by_which_command() -> None:
    first = text_of(as_html(contents()).partition('id="model"')[0])
    assert "compiled by Collage 0.1.0 on 2026-11-27" in first
    assert "To repeat it: collage compile net.onnx -o model.collage" in first
    older = dataclasses.replace(contents().report, date="", command="")
    assert "To repeat it" not in as_html(dataclasses.replace(contents(), report=older))
    assert "secret" not in as_html(redacted(contents(prefix="/secret")))


def test_the_summary_is_a_table_in_markdown_with_the_machine_and_the_command() -> None:
    text = html.unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", as_html(contents()), re.DOTALL)[0])
    assert text.startswith("**1.31 times as fast as the original model** (net.onnx)\n\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1 and set(rows[1]) == {"|", "-"}
    assert "| \\* mix 1 | 3 |  | 10.000 | 1 | returned |" in rows
    assert "Example CPU @ 3 GHz, 2 processors" in text and "\n    collage compile net.onnx -o model.collage\n" in text
    attacked = as_html(contents(prefix="/a|b\n# c"))
    text = html.unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", attacked, re.DOTALL)[0])
    assert "(a\\|b" in text and "\n# c" not in text.partition("    collage")[0]


def test_the_card_is_a_picture_of_its_own() -> None:
    import xml.etree.ElementTree as ET

    page = as_html(contents(prefix=ATTACK))
    card = page[
        page.index('<svg xmlns="http://www.w3.org/2000/svg" class="card"') : page.index(
            "</div>", page.index('id="card"')
        )
    ]
    root = ET.fromstring(card)
    words = " ".join(root.itertext())
    assert "1.31 times as fast as the original model" in words and "returned (mix 1): 10 ms" in words
    assert "what you have (onnxruntime, the original file): 13.1 ms" in words and "2026-11-27" in words
    bars = [each for each in root.iter() if each.get("class") == "fill"]
    assert len(bars) == 2 + 3, "one for each row, and one for each toolchain of what is returned"


def test_bars_show_the_fastest_other_toolchain_if_the_best_one_is_returned() -> None:
    page = contents()
    rows = [row for row in page.report.rows if row.name != "mix 1"]
    own = dataclasses.replace(rows[0], verdict="returned", ratio=Ratio(1, 1, 1))
    other = dataclasses.replace(rows[2], time_us=2.2e4, ratio=Ratio(2, 2, 2))
    again = dataclasses.replace(own, name="openvino -threads=1", verdict="slower", time_us=1.1e4)
    report = dataclasses.replace(page.report, rows=(own, again, rows[1], other), winner=own.name)
    told = re.search(r'class="times"[^>]*aria-label="([^"]*)"', as_html(dataclasses.replace(page, report=report)))
    assert told is not None and told[1] == "llvm 22 ms; onnxruntime, the original file 13.1 ms; openvino 10.8 ms"


@pytest.mark.parametrize(("operators", "is_drawn"), [(1, False), (2, True), (80, True), (81, False)])
def test_the_operators_of_a_kernel_are_a_graph_if_it_can_be_read(operators: int, is_drawn: bool) -> None:
    page = as_html(contents(1, operators))
    assert ('aria-label="Operators"' in page) is is_drawn
    inner = page[page.index('aria-label="Operators"') : page.index("Operators of this kernel")] if is_drawn else ""
    assert inner.count('class="box"') == (operators if is_drawn else 0)
    read = sum(len(each.reads) for each in contents(1, operators).kernels[0].operators)
    assert inner.count('class="wire"') == (read if is_drawn else 0)


def test_kernels_of_bodies_are_shown_and_a_redacted_page_has_none() -> None:
    page, inner = contents(), BodyKernelRow("host_01_Loop_body_tvm_01_Secret", "llvm", "Secret, Add")
    first = dataclasses.replace(page.kernels[0], bodies=(inner,))
    page = dataclasses.replace(page, kernels=(first, *page.kernels[1:]))
    assert "Kernels in its bodies kernel toolchain operators host_01_Loop_body_tvm_01_Secret" in text_of(as_html(page))
    assert "Secret" not in as_html(redacted(page))


def test_a_single_toolchain_that_is_returned_is_not_a_gain_over_itself() -> None:
    page = contents()
    rows = tuple(row for row in page.report.rows if row.kind != "baseline" and row.name != "mix 1")
    own = dataclasses.replace(rows[0], verdict="returned", ratio=Ratio(1, 1, 1))
    report = dataclasses.replace(page.report, rows=(own, *rows[1:]), winner=own.name)
    told = text_of(as_html(dataclasses.replace(page, report=report)))
    assert "openvino alone is returned: no plan was faster" in told
    assert "Nothing over the best single toolchain, which is returned itself." in told
    assert "timed, but not in common rounds" in told


def test_a_reason_of_a_toolchain_is_told_once() -> None:
    page = contents()
    assert page.record is not None
    reason = "there is no kernel for that"
    first = dataclasses.replace(page.record.targets[0], reason=reason, refuses={reason: NodeRanges(((0, 1),))})
    record = dataclasses.replace(page.record, targets=(first, *page.record.targets[1:]))
    assert text_of(as_html(dataclasses.replace(page, record=record))).count(reason) == 1


def test_nothing_of_the_model_becomes_markup() -> None:
    plain, attacked = Reader(as_html(contents())), Reader(as_html(contents(prefix=ATTACK)))
    assert attacked.tags == plain.tags
    assert [name for name, _ in attacked.attributes] == [name for name, _ in plain.attributes]
    assert not any(EVENT.fullmatch(name) for name, _ in attacked.attributes)
    assert "<script>alert(1)</script>" in attacked.text


def test_the_page_refers_to_nothing_outside() -> None:
    html = as_html(contents())
    for name, value in Reader(html).attributes:
        if name in ("href", "src", "action", "xlink:href"):
            assert value is not None and value.startswith("#"), (name, value)
    assert "url(http" not in html and "@import" not in html


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_nothing_else() -> None:
    import base64
    import hashlib

    html = as_html(contents())
    policy = next(value for name, value in Reader(html).attributes if name == "content" and "default-src" in str(value))
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:; ")
    for element in ("style", "script"):
        bodies = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert digests and f"{element}-src {allowed};" in policy
    assert " style=" not in html


def test_links_lead_to_places_of_the_page_and_ids_are_unique() -> None:
    found = Reader(as_html(contents(5)))
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    links = {value for name, value in found.attributes if name == "href"}
    assert links and links <= {f"#{each}" for each in ids}


def test_tables_have_captions_and_headings_and_pictures_a_text() -> None:
    html = as_html(contents())
    tables = re.findall(r"<table.*?</table>", html, re.DOTALL)
    assert tables
    for table in tables:
        assert "<caption>" in table and 'scope="col"' in table and 'scope="row"' in table
    for svg in re.findall(r"<svg[^>]*>", html):
        assert "aria-label=" in svg or 'class="key' in svg, svg


def test_runner_ups_are_shown_with_their_reasons() -> None:
    html = as_html(contents())
    details = html[html.index('id="kernel-1"') : html.index('id="kernel-2"')]
    told = text_of(details)
    assert "openvino 0.14 ms 1.40x" in told
    assert "wrong: differs at /net/block0/Conv_0" in told


def test_every_number_of_the_comparison_is_there() -> None:
    page = contents()
    told = text_of(as_html(page))
    for row in page.report.rows:
        for time in row.rounds_us:
            assert f"{time / 1e3:.4g}" in told
        if row.ratio is not None and row.verdict != "returned":
            assert f"{row.ratio.value:.2f} {row.ratio.low:.2f} to {row.ratio.high:.2f}" in told


@pytest.mark.parametrize("has_record", [True, False])
def test_an_artefact_without_a_report_or_record_makes_a_page_too(has_record: bool) -> None:
    page = dataclasses.replace(contents(has_record=has_record), report=Report())
    told = text_of(as_html(page))
    assert "No speed-up was measured" in told
    assert ("no record of other candidates" in told) is not has_record


@pytest.mark.parametrize(
    ("search", "told"),
    [
        (SearchFacts(), "none; see docs/fusion.md"),
        (SearchFacts(gap=0.034), "a plan of these candidates can be cheaper by 3% at most"),
        (SearchFacts(optimal=True, gap=0.0), "no plan of these candidates can be cheaper"),
    ],
)
def test_what_is_proved_is_said_in_words(search: SearchFacts, told: str) -> None:
    made = contents()
    assert told in as_html(dataclasses.replace(made, report=dataclasses.replace(made.report, search=search)))


def test_a_model_without_operators_makes_a_page() -> None:
    empty = dataclasses.replace(contents(0), record=None)
    assert "no operators left" in text_of(as_html(empty))


def test_a_model_of_3000_operators_stays_small() -> None:
    assert len(as_html(contents(3, 1000)).encode()) < 3e6
    assert len(as_html(contents(3000, 1)).encode()) < 10e6


POINTS = [
    {"budget": 0.0, "error": 2e-6, "error_interval": [1e-6, 4e-6], "time_ms": 10.0, "plan": "3 x openvino"},
    {
        "budget": 0.01,
        "error": 3e-3,
        "error_interval": [2e-3, 5e-3],
        "time_ms": 6.1,
        "plan": "2 x openvino -precision=bf16",
    },
    {"budget": 0.05, "error": 0, "error_interval": None, "time_ms": 4, "plan": None},
]


def test_plans_for_lengths_are_a_table() -> None:
    page = contents()
    assert 'id="lengths"' not in as_html(page)
    rows = (
        SpecialisedRow({"batch": 1, "seq": 128}, ("llvm",), 6100.0, Ratio(1.5, 1.25, 1.75)),
        SpecialisedRow(
            {"batch": 1, "seq": 512}, ("llvm",), 9000.0, Ratio(1.0, 0.97, 1.03), "it is not faster beyond doubt"
        ),
        SpecialisedRow({"batch": 1, "seq": 7}, reason="<b>no</b> kernel"),
    )
    html = as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, specialised=rows)))
    section = html[html.index('id="lengths"') : html.index('id="toolchains"')]
    told = text_of(section)
    assert "batch=1, seq=128 llvm 9.15 ms 6.1 ms 1.50 1.25 to 1.75 kept" in told
    assert "not kept: it is not faster beyond doubt" in told
    assert "<b>no</b>" not in section


@pytest.mark.parametrize("front", [{"points": POINTS}, POINTS, {"budgets": 3, "found": POINTS}])
def test_the_front_is_a_plot_and_a_table(front: Any) -> None:
    page = contents()
    html = as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, front=front)))
    section = html[html.index('id="front"') : html.index('id="toolchains"')]
    assert section.count('class="middle"') == 3
    told = text_of(section)
    assert "budget 0.01 6.1 ms 3.00e-03 2.0e-03 to 5.0e-03 2 x openvino -precision=bf16" in told
    assert "exact 10 ms 2.00e-06" in told


@pytest.mark.parametrize(
    "front",
    [
        {},
        [],
        {"points": 3},
        {"points": [1, None, {}]},
        [{"error": "x", "time_ms": 1}],
        [{"error": -1.0, "time_ms": 1.0}],
        [{"error": 1e-3, "time_ms": 1e308}],
    ],
)
def test_a_front_that_makes_no_sense_is_left_out(front: Any) -> None:
    page = contents()
    assert 'id="front"' not in as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, front=front)))


def test_reduced_precision_is_told_kernel_by_kernel() -> None:
    page = contents()
    section = {
        "summary": ["2 of 3 kernels compute in bf16"],
        "kernels": [{"name": "k", "precision": "bf16", "own_error": 0.0031, "in_float": None}, 7],
    }
    told = text_of(as_html(dataclasses.replace(page, report=dataclasses.replace(page.report, precision=section))))
    assert "2 of 3 kernels compute in bf16" in told and "k bf16 3.1e-03" in told


@pytest.mark.parametrize("summary", [5, True, {"a": 1}, [1, None]])
def test_a_summary_that_is_no_text_is_left_out(summary: Any) -> None:
    page = contents()
    report = dataclasses.replace(page.report, precision={"summary": summary})
    assert "Reduced precision" not in as_html(dataclasses.replace(page, report=report))


def test_the_picture_is_a_file_of_its_own() -> None:
    import xml.etree.ElementTree as ET

    svg = as_svg(contents(prefix=ATTACK))
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len([e for e in root.iter() if "kernel" in e.get("class", "").split()]) == 3
    assert not [e for e in root.iter() if e.tag.endswith("script")]


@pytest.mark.parametrize(
    ("time_us", "told"),
    [
        (None, "not measured"),
        (3.21, "3.21 µs"),
        (917.5, "0.917 ms"),
        (9038.9, "9.04 ms"),
        (123456.0, "123 ms"),
        (0.0, "0 µs"),
    ],
)
def test_times_in_words(time_us: float | None, told: str) -> None:
    assert amount(time_us) == told


def test_shares_and_counts_in_words() -> None:
    assert [percent(each) for each in (None, 0.0, 0.0004, 0.031, 0.914)] == ["", "0%", "< 0.1%", "3.1%", "91%"]
    assert [counted(each, "kernel") for each in (1, 2000)] == ["1 kernel", "2,000 kernels"]
