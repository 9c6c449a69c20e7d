"""Limits as texts, and the figures that they are about."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage._errors import UsageError
from collage.cost.objective import QUANTITIES, Figures, Limit, amount, read_limits
from collage.options import CompileOptions


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("p99<=20ms", "p99", 0.02),
        (" p50 <= 1.5 s ", "p50", 1.5),
        ("p95<=250us", "p95", 250e-6),
        ("rss<=400MB", "rss", 4e8),
        ("rss<=1GiB", "rss", 2.0**30),
        ("size<=1e1KB", "size", 1e4),
        ("throughput>=50/s", "throughput", 50.0),
    ],
)
def test_limits_are_read(text: str, quantity: str, value: float) -> None:
    limit = Limit.parse(text)
    assert (limit.quantity, limit.value) == (quantity, pytest.approx(value))
    assert limit.text == "".join(text.split())
    assert Limit.parse(limit.text) == limit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p99",
        "p99<=20",
        "p99<20ms",
        "p99=20ms",
        "p99>=20ms",
        "throughput<=50/s",
        "throughput>=50",
        "p42<=1ms",
        "p99<=20MB",
        "rss<=20ms",
        "rss<=0MB",
        "rss<=-1MB",
        "p99<=nanms",
        "p99<=infms",
        "p99<=1e999ms",
        "p99<=1e-999ms",
        "p99<=\u0663ms",
        "p99<=20ms; rss<=1MB",
        "p99<=20ms\x00",
        "p99<=" + "9" * 100_000 + "ms",
    ],
)
def test_what_is_not_a_limit_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Limit.parse(text)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 300 and str(refusal.value).isprintable()
    with pytest.raises(UsageError):
        CompileOptions(limits=(text,))


def test_options_say_what_is_wrong_with_an_objective() -> None:
    with pytest.raises(UsageError, match="latency, throughput, memory, size"):
        CompileOptions(objective="beauty")
    for options in ({"objective": "size"}, {"limits": ("p99<=1ms",)}):
        with pytest.raises(UsageError, match="finals=False"):
            CompileOptions(finals=False, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not int"):
        CompileOptions(limits=(3,))  # type: ignore[arg-type]


def test_one_limit_may_be_a_text() -> None:
    assert read_limits("rss<=4MB") == (Limit("rss", 4e6, "rss<=4MB"),)
    assert CompileOptions().is_plain and not CompileOptions(limits=("p99<=4ms",)).is_plain


@given(st.sampled_from(sorted(QUANTITIES)), st.floats(1e-6, 1e12), st.floats(1e-6, 1e12))
def test_a_limit_is_kept_on_its_own_side(quantity: str, bound: float, value: float) -> None:
    limit = Limit(quantity, bound, "")
    figures = Figures(**{QUANTITIES[quantity]: value})
    assert limit.is_kept(figures) == (value >= bound if quantity == "throughput" else value <= bound)
    assert not limit.is_kept(Figures())
    excess = limit.excess(figures)
    assert excess is not None and math.isclose(excess, bound / value if quantity == "throughput" else value / bound)


def test_amounts_have_units() -> None:
    assert amount("p99", 0.0182) == "18.200 ms"
    assert amount("rss", 395.2e6) == "395.2 MB"
    assert amount("size", 26_000.0) == "0.026 MB"
    assert amount("throughput", 1543.2) == "1543 runs/s"
