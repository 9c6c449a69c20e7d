"""The fields of ``CompileOptions`` as keywords, for type checkers. Written by ``python tools/option_keywords.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collage.cost.objective import Limit
    from collage.device import DeviceRequests
    from collage.frontend import Lengths
    from collage.fusion import FusionOptions
    from collage.plan_file import PlanFile

__all__ = ["OptionKeywords"]


class OptionKeywords(TypedDict, total=False):
    """Options of ``compile`` as keywords; see ``CompileOptions``. Options of the command line may be texts, too."""

    threads: int
    db: str | None
    dims: Lengths | str | Sequence[str]
    fixed: Mapping[str, int] | str | Sequence[str]
    specialise: bool | None
    inputs: Mapping[str, Any]
    time_budget_s: str | float | None
    tune_s: float | str
    use_tuned: bool
    search: str
    strategy: str
    objective: str
    neighbour: str
    limits: Sequence[str | Limit]
    percentile: int | str
    precision: str | None
    accuracy_budget: str | float | None
    data: Any
    metric: str | None
    max_drop: str | float | None
    front: bool
    measure_budget: int | None
    remeasure: bool
    finalists: int
    finals: bool
    min_gain: float
    fusion: FusionOptions | None
    launch_penalties_s: Mapping[str, float] | str | Sequence[str]
    seed: int
    devices: str | Path | DeviceRequests | None
    plan: str | Path | PlanFile | None
    plan_out: str | Path | None
    force: tuple[str, ...]
    forbid: tuple[str, ...]
    allow_host: bool
    probe: str | None
    baseline: str
    passes: str
