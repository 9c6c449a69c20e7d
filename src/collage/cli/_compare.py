"""``collage compare``: two artefacts side by side, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage._errors import UsageError
from collage.cli._console import print_json
from collage.cli._report import print_table
from collage.report import short_name
from collage.system.texts import printable

__all__ = ["REGRESSION", "show_comparison"]

REGRESSION = 6
"""Exit code where the second artefact is slower than ``--fail-below`` allows, or does not run rightly."""

_SHOWN = 5


def show_comparison(found: Mapping[str, Any], fail_below: float | None, *, json: bool) -> int:
    """Print a comparison.

    Args:
        found: The result of ``compare_artefacts``.
        fail_below: The least speed-up of the second artefact that is not a regression; None if none is.
        json: Print JSON.

    Returns:
        The exit code: 0, or ``REGRESSION``. The whole interval of the speed-up has to lie below the limit, so that noise
        does not fail a build.

    Raises:
        UsageError: The first artefact did not run, so there is nothing to compare the second with.
    """
    is_regression = _is_regression(found, fail_below)
    if json:
        print_json({**found, "fail_below": fail_below, "regression": is_regression})
    else:
        _print(found, fail_below, is_regression=is_regression)
    before, after = found["rows"]
    if fail_below is not None and before["median_us"] is None and after["median_us"] is not None:
        raise UsageError(f"{found['a']} does not run here, so there is nothing to compare with: {before['reason']}")
    return REGRESSION if is_regression else 0


def _is_regression(found: Mapping[str, Any], fail_below: float | None) -> bool:
    if fail_below is None:
        return False
    if found["rows"][1]["median_us"] is None:
        return True
    interval = found["speedup_interval"]
    return interval is not None and bool(interval[1] < fail_below)


def _print(found: Mapping[str, Any], fail_below: float | None, *, is_regression: bool) -> None:
    rows = [
        (
            row["name"],
            row["artefact"],
            *(_ms(row[f"{name}_us"]) for name in ("median", "p10", "p90", "p99")),
            "" if row["max_rel_error"] is None else f"{row['max_rel_error']:.1e}",
            row["reason"] or "",
        )
        for row in found["rows"]
    ]
    print_table("", ("", "artefact", "ms", "p10", "p90", "p99", "error", ""), rows, (2, 3, 4, 5, 6))
    lines = []
    if found["speedup"] is not None:
        low, high = found["speedup_interval"]
        lines.append(f"b is {found['speedup']:.3f}x as fast as a (95 % interval {low:.3f} to {high:.3f})")
    lines += _plan_lines(found["plan"])
    lines += [
        f"{each['toolchain']}: {each['a'] or 'not used'} -> {each['b'] or 'not used'}" for each in found["versions"]
    ]
    if not found["same_model"]:
        lines.append("the artefacts were compiled from different files")
    if is_regression:
        lines.append(f"regression: b is below the limit of {fail_below:g}")
    print(printable("\n".join(lines)))


def _plan_lines(plan: Mapping[str, Any]) -> list[str]:
    before, after = plan["kernels"]
    lines = [f"kernels: {before} -> {after}"] if before != after else []
    for each in plan["moved"]:
        names = each["operators"]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        lines.append(f"{short_name(each['from'])} -> {short_name(each['to'])}: {', '.join(names[:_SHOWN])}{more}")
    if plan["only_a"] or plan["only_b"]:
        lines.append(
            f"prepared to different operators: {len(plan['only_a'])} are only in a, {len(plan['only_b'])} only in b"
        )
    return lines or ["the plans give every operator to the same target"]


def _ms(us: float | None) -> str:
    return "" if us is None else f"{us / 1e3:.3f}"
