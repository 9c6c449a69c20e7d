from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.unit.page.made_up import MENU, contents

from collage.page import PageContents, as_dot, as_html, as_svg, redacted

WRITERS = [as_html, as_svg, as_dot]


@pytest.mark.parametrize("write", WRITERS)
def test_no_part_of_a_name_is_left(write: Callable[[PageContents], str]) -> None:
    page = contents(prefix="/quokka/wombat.7")
    assert "quokka" in write(page) and "wombat" in write(page)
    text = write(redacted(page)).lower()
    for secret in ("quokka", "wombat", "block0", "value0"):
        assert secret not in text, re.findall(rf".{{60}}{secret}.{{30}}", text)


def test_types_shapes_times_and_targets_are_left() -> None:
    page = contents(prefix="/quokka")
    told = redacted(page)
    assert [kernel.target for kernel in told.kernels] == [kernel.target for kernel in page.kernels]
    assert [kernel.time_us for kernel in told.kernels] == [kernel.time_us for kernel in page.kernels]
    assert [k.op_counts for k in told.kernels] == [k.op_counts for k in page.kernels]
    assert [v.type for k in told.kernels for v in k.reads] == [v.type for k in page.kernels for v in k.reads]
    assert told.report.rows[0].rounds_us == page.report.rows[0].rounds_us
    assert told.report.model.sha256 == "" and told.report.model.path == ""


def test_one_name_is_replaced_by_one_name_everywhere() -> None:
    page = redacted(contents(4))
    for maker, reader, value in page.wires:
        if maker:
            assert value in page.kernels[maker - 1].makes
        if reader <= len(page.kernels):
            assert value in page.kernels[reader - 1].reads
    names = [operator.name for kernel in page.kernels for operator in kernel.operators]
    assert len(set(names)) == len(names)
    assert page.record is not None and list(page.record.names) == names


def test_symbols_of_shapes_are_names_too() -> None:
    import dataclasses

    from collage.page._contents import Value

    page = contents()
    first = dataclasses.replace(page.kernels[0], reads=(Value("x", "float32[quokkas, 2*quokkas + 1, 64]"),))
    told = redacted(dataclasses.replace(page, kernels=(first, *page.kernels[1:])))
    assert re.fullmatch(r"float32\[name-(\d+), 2\*name-\1 \+ 1, 64\]", told.kernels[0].reads[0].type)


def test_operators_of_own_domains_are_names_too() -> None:
    import dataclasses

    page = contents()
    custom = dataclasses.replace(page.kernels[0].operators[0], op_type="quokka.Hop")
    first = dataclasses.replace(page.kernels[0], name="host_01_Hop", operators=(custom,))
    told = redacted(dataclasses.replace(page, kernels=(first, *page.kernels[1:])))
    assert told.kernels[0].operators[0].op_type == "Custom1"
    assert told.kernels[0].name == "onnxruntime_01"
    assert "hop" not in as_html(told).lower().replace("shop", "")


def test_messages_lose_names_in_any_form_but_keep_what_they_say() -> None:
    import dataclasses

    page = contents(prefix="/quokka/wombat")
    texts = (
        "the kernel _quokka_wombat_block0_Conv_0 has no schedule",
        "cannot read /home/someone/models/quokka.onnx: not found",
        "values of 'anything quoted' are NaN",
        "a text that was cut off in the middle of quok…",
        "this machine is noisy: a tenth of the runs took 1.5 times as long",
    )
    told = redacted(dataclasses.replace(page, notes=texts)).notes
    assert told[0] == "the kernel … has no schedule"
    assert told[1] == "cannot read … not found"
    assert told[2] == "values of … are NaN"
    assert "quok" not in told[3]
    assert told[4] == texts[4]


def test_short_names_are_found_beside_other_signs() -> None:
    import dataclasses

    page = contents(prefix="/q")
    told = "collage compile m.onnx --dim wbt=4 --input-shape image:wbt,3 --time-budget 60"
    report = dataclasses.replace(page.report, dims={"wbt": 4}, command=told)
    shown = redacted(dataclasses.replace(page, report=report)).report.command
    assert shown == "collage compile … --dim … --input-shape … --time-budget 60"


def test_names_in_other_scripts_and_of_bodies_are_found_in_messages() -> None:
    import dataclasses

    from collage.report import BodyKernelRow

    page = contents(prefix="/机密")
    inner = BodyKernelRow("loop_01", MENU[0], "Add", ("wombat",))
    first = dataclasses.replace(page.report.kernels[0], bodies=(inner,))
    report = dataclasses.replace(page.report, kernels=(first, *page.report.kernels[1:]))
    texts = ("node机密:0 failed", "no schedule for fused_wombat_12")
    told = redacted(dataclasses.replace(page, report=report, notes=texts)).notes
    assert told == ("… failed", "no schedule for …")


def test_targets_that_are_not_known_here_can_be_redacted() -> None:
    import dataclasses

    page = contents()
    first = dataclasses.replace(page.kernels[0], target="newer -compiler=x")
    report = dataclasses.replace(page.report, menu=("newer -compiler=x", *page.report.menu))
    told = redacted(dataclasses.replace(page, report=report, kernels=(first, *page.kernels[1:])))
    assert told.kernels[0].name == "unknown_01"
    assert "newer -compiler=x" in as_html(told)


def test_the_page_says_that_it_is_redacted() -> None:
    assert "Names of this page are replaced" in as_html(redacted(contents()))
