"""The page in Chromium, without network: drawn in time, without an error, on a phone and on a desk, in both themes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Page, chromium, find_chromium
from tests.unit.page.made_up import contents
from tests.unit.page.test_page import ATTACK

from collage.page import PageContents, as_html

PATIENCE_S = 60.0

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed; set CHROMIUM to its path")

CONTRAST = """
(() => {
  const parse = (text) => (/rgba?\\(([^)]*)\\)/.exec(text) || [, "0,0,0,0"])[1].split(/[ ,/]+/).map(Number);
  const light = ([r, g, b]) => {
    const part = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const bad = [];
  for (const e of document.querySelectorAll("main *, header *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("script") || !e.getClientRects().length) continue;
    const svg = e.namespaceURI.includes("svg");
    const ink = parse(svg ? getComputedStyle(e).fill : getComputedStyle(e).color);
    let ground = behind(svg ? e.closest("svg").parentElement : e);
    const rect = svg && e.localName === "text" && e.parentNode.querySelector("rect.box, rect.fill, rect.port");
    if (rect) ground = parse(getComputedStyle(rect).fill);
    if (svg && e.localName === "title") continue;
    if (ratio(ink, ground) < 4.5) bad.push([e.localName, e.textContent.slice(0, 30), ratio(ink, ground)]);
  }
  return bad;
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    assert PROGRAM is not None
    with chromium(PROGRAM) as page:
        yield page


def written(tmp_path: Path, page: PageContents) -> Path:
    file = tmp_path / "report.html"
    file.write_text(as_html(page), encoding="utf-8")
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_it_fits_the_screen_and_can_be_read(browser: Page, tmp_path: Path, width: int, scheme: str) -> None:
    browser.open(written(tmp_path, contents(12)), width=width, height=800, scheme=scheme)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(CONTRAST) == []
    assert browser.value("document.querySelector('.answers').getBoundingClientRect().bottom") < 800
    assert browser.errors == []


def test_names_run_no_script_and_load_nothing(browser: Page, tmp_path: Path) -> None:
    browser.requests.clear()
    file = written(tmp_path, contents(4, prefix=ATTACK))
    browser.open(file)
    assert browser.value("document.images.length") == 0
    assert browser.requests == [file.resolve().as_uri()]
    assert browser.errors == []


def test_a_click_shows_the_details_of_a_kernel(browser: Page, tmp_path: Path) -> None:
    browser.open(written(tmp_path, contents(5)))
    shown = "[...document.querySelectorAll('.kernel-details')].filter(e => e.getClientRects().length).map(e => e.id)"
    assert browser.value(shown) == ["kernel-5"]  # The one that takes the longest.
    browser.click("a[href='#kernel-2'] .box")
    assert browser.value(shown) == ["kernel-2"]
    assert browser.value("document.querySelectorAll('.wire.on').length") == 3
    assert browser.errors == []


def test_the_keyboard_moves_through_the_kernels(browser: Page, tmp_path: Path) -> None:
    browser.open(written(tmp_path, contents(5)))
    browser.value("document.querySelector(\".picture a[href='#kernel-1']\").focus()")
    current = "document.querySelector('.picture a[aria-current]').getAttribute('href')"
    browser.press("Enter")
    assert browser.value(current) == "#kernel-1"
    browser.press("ArrowDown")
    assert browser.value(current) == "#kernel-2"
    browser.press("Tab")
    assert browser.value("document.activeElement.getAttribute('href')") == "#kernel-3"
    assert browser.errors == []


def test_an_operator_is_found_by_its_name(browser: Page, tmp_path: Path) -> None:
    browser.open(written(tmp_path, contents(5)))
    browser.value(
        "(() => { const f = document.getElementById('find'); f.value = 'block3/'; f.dispatchEvent(new Event('input')); })()"
    )
    assert browser.value("document.getElementById('found').textContent") == "4 operators in 1 kernel"
    assert browser.value("document.querySelectorAll('.picture .dim').length") == 4
    assert browser.value("document.querySelector('.picture a[aria-current]').getAttribute('href')") == "#kernel-4"


@pytest.mark.parametrize(("kernels", "operators"), [(3, 1000), (300, 10), (3000, 1)])
def test_3000_operators_are_drawn_without_an_error(browser: Page, tmp_path: Path, kernels: int, operators: int) -> None:
    """The page is for two seconds on a machine at rest; the bound leaves room for one that is busy."""
    assert browser.open(written(tmp_path, contents(kernels, operators))) < 20
    assert browser.value("document.querySelectorAll('.picture .kernel').length") == kernels
    assert browser.errors == []


def test_it_prints(browser: Page, tmp_path: Path) -> None:
    browser.open(written(tmp_path, contents(5)), scheme="dark")
    browser.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.call("Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False)
    assert browser.value("document.documentElement.scrollWidth") <= 718  # A4 less its margins.
    browser.call("Emulation.setEmulatedMedia", media="screen")
    assert browser.errors == []


def test_the_summary_is_copied_and_the_card_saved(browser: Page, tmp_path: Path) -> None:
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.open(written(tmp_path, contents(5)))
    browser.click("#copy")
    told = "document.getElementById('shared').textContent"
    assert _eventually(browser, told, "Copied.", "Press Ctrl+C to copy the text below.")
    browser.click("#save")
    assert _eventually(browser, told, "Saved as net.onnx.png.")
    end = time.monotonic() + PATIENCE_S
    while not (tmp_path / "net.onnx.png").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (tmp_path / "net.onnx.png").read_bytes().startswith(b"\x89PNG")
    assert browser.errors == []


def _eventually(browser: Page, expression: str, *wanted: str) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not (found := browser.value(expression) in wanted) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def test_tables_need_no_second_dimension_on_a_phone(browser: Page, tmp_path: Path) -> None:
    browser.open(written(tmp_path, contents(5)), width=390, height=844)
    wide = "[...document.querySelectorAll('.stack')].filter(e => e.scrollWidth > e.parentNode.clientWidth + 1).length"
    assert browser.value("document.querySelectorAll('.stack').length") > 5
    assert browser.value(wide) == 0
