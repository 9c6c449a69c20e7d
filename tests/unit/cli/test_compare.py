"""`collage compare`: what it prints, and when it fails a build."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collage._errors import UsageError
from collage.cli._compare import REGRESSION, show_comparison


def found(speedup: float | None, low: float = 0.0, high: float = 0.0, **changed: Any) -> dict[str, Any]:
    def row(name: str) -> dict[str, Any]:
        times = {f"{what}_us": 1000.0 for what in ("median", "p10", "p90", "p95", "p99")}
        return {"name": name, "artefact": f"{name}.collage", **times, "max_rel_error": 1e-7, "reason": None}

    return {
        "a": "a.collage",
        "b": "b.collage",
        "rows": [row("a"), row("b")],
        "speedup": speedup,
        "speedup_interval": None if speedup is None else [low, high],
        "plan": {
            "kernels": [1, 2],
            "moved": [{"from": "llvm", "to": "llvm -compiler=x", "operators": ["n"] * 7}],
            "only_a": [],
            "only_b": ["q"],
        },
        "versions": [{"toolchain": "tvm", "a": "1", "b": None}],
        "same_model": False,
        **changed,
    }


@pytest.mark.parametrize(
    ("speedup", "interval", "limit", "code"),
    [
        (0.90, (0.85, 0.95), 0.98, REGRESSION),
        (0.97, (0.93, 1.01), 0.98, 0),  # May as well be noise.
        (1.50, (1.40, 1.60), 0.98, 0),
        (1.50, (1.40, 1.60), 2.0, REGRESSION),
        (0.10, (0.09, 0.11), None, 0),
    ],
)
def test_a_build_fails_beyond_doubt_only(
    speedup: float, interval: tuple[float, float], limit: float | None, code: int
) -> None:
    assert show_comparison(found(speedup, *interval), limit, json=True) == code


def test_an_artefact_that_does_not_run_rightly_is_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    told = found(None)
    told["rows"][1] |= {"median_us": None, "reason": "output 'y' differs"}
    assert show_comparison(told, 0.98, json=True) == REGRESSION
    assert json.loads(capsys.readouterr().out)["regression"] is True
    assert show_comparison(told, None, json=False) == 0


def test_nothing_can_be_said_where_the_first_does_not_run() -> None:
    told = found(None)
    told["rows"][0] |= {"median_us": None, "reason": "crash"}
    with pytest.raises(UsageError, match=r"a\.collage does not run here"):
        show_comparison(told, 0.98, json=True)


def test_what_changed_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison(found(0.9, 0.85, 0.95), 0.98, json=False)
    said = capsys.readouterr().out
    for words in (
        "b is 0.900x as fast as a (95 % interval 0.850 to 0.950)",
        "kernels: 1 -> 2",
        "llvm -> x: n, n, n, n, n and 2 more",
        "0 are only in a, 1 only in b",
        "tvm: 1 -> not used",
        "different files",
        "regression: b is below the limit of 0.98",
    ):
        assert words in said
