"""The machines that an artefact has plans for, as text and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collage.runtime._choice import choose
from collage.runtime._open import plans_in
from collage.runtime._pack import PackedPlan, general_plans
from collage.system.texts import counted
from collage.toolchains import registry

__all__ = ["machine_lines", "machine_rows"]


def machine_rows(place: str | Path) -> dict[str, Any]:
    """Return the plans of an artefact as JSON values: their machines, kernels, and which one this machine takes.

    Raises:
        UsageError: There is nothing at the place.
        ArtefactError: It is not an artefact.
    """
    is_pack, plans = plans_in(place)
    choice, general = choose(plans, registry()), general_plans(plans)
    used = () if choice.is_whole else (choice.plan, *choice.specialised)
    return {
        "pack": is_pack,
        "model": plans[0].recipe.report.model.path or None,
        "sha256": plans[0].model or None,
        "plans": [_row(plan, plan in used, None if plan in general else plan.lengths) for plan in plans],
        "note": choice.note if is_pack else None,
    }


def machine_lines(place: str | Path) -> list[str]:
    """Return lines about the plans of a pack, nothing for an artefact of one machine. Errors are those of ``machine_rows``."""
    found = machine_rows(place)
    if not found["pack"]:
        return []
    lines = [f"a pack of {counted(len(found['plans']), 'plan')}:"]
    for row in found["plans"]:
        mark = " (used here)" if row["used_here"] else ""
        only = "" if row["lengths"] is None else f" for {row['lengths']}"
        lines.append(
            f"  {row['machine']}{only}: {counted(row['kernels'], 'kernel')} on {', '.join(row['targets'])}{mark}"
        )
    return [*lines, *([] if found["note"] is None else [f"here: {found['note']}"])]


def _row(plan: PackedPlan, is_used: bool, lengths: str | None) -> dict[str, Any]:
    made_on, recipe = plan.made_on, plan.recipe
    gain = recipe.report.gain("baseline")
    return {
        "machine": str(made_on),
        "fingerprint": made_on.fingerprint or None,
        "system": made_on.system,
        "cpu": made_on.cpu or None,
        "cores": made_on.cores or None,
        "devices": list(plan.device_builds.values()),
        "manifest": plan.manifest,
        "lengths": lengths,
        "kernels": len(recipe.kernels),
        "targets": list(plan.targets),
        "native_code": any(kernel.is_built and not kernel.compiled.portable for kernel in recipe.kernels),
        "speedup": None if gain is None else gain.ratio.value,
        "fit": made_on.fit().name.lower(),
        "used_here": is_used,
    }
