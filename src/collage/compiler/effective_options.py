"""The options of a compilation, completed by the pass context, and checked against the menu and each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from collage._errors import UsageError
from collage.device import read_device_plan
from collage.fusion import FusionOptions
from collage.options import CompileOptions
from collage.plan_file import PlanFile, read_plan
from collage.search import RefiningStrategy, strategies
from collage.target import HOST_TARGET, HOST_TOOLCHAIN, Target, TargetLike
from collage.toolchains import Registry, choose_menu
from collage.transform import PassContext

__all__ = ["check_estimator_options", "effective_options", "options_and_menu", "refuse"]

_ABOUT_TIMES = (
    "accuracy_budget",
    "finalists",
    "front",
    "limits",
    "measure_budget",
    "min_gain",
    "objective",
    "percentile",
    "remeasure",
    "search",
    "time_budget_s",
    "tune_s",
)
"""Options for timing, tuning and comparing. They have no effect if an estimator gives the costs."""


def options_and_menu(
    options: CompileOptions, targets: Iterable[TargetLike] | None, toolchains: Registry, *, is_estimated: bool = False
) -> tuple[CompileOptions, tuple[Target, ...]]:
    """Return the options of a compilation with their plan read, and its menu.

    The menu holds the targets that the user names, else those of a given plan, else the default ones and those that a plan
    of devices names.

    Args:
        options: The user's options.
        targets: The targets that the user names; None if none are named.
        toolchains: The registry of toolchains.
        is_estimated: True if the costs come from an estimator.

    Raises:
        UsageError: A file of a plan cannot be read, or an option has no effect or names nothing.
        TargetError: An unknown target, or an empty menu.
    """
    if options.plan is not None:
        # Plans made in Python may hold values of any type, as files may.
        given = options.plan
        plan = PlanFile.from_json(given.to_json()) if isinstance(given, PlanFile) else read_plan(given)
        options = replace(options, plan=plan)
    if targets is None and isinstance(options.plan, PlanFile):
        targets = [target for target in options.plan.targets if target != str(HOST_TARGET)] or None
    menu = choose_menu(targets, toolchains)
    if targets is None:
        menu = _with_planned_targets(menu, options)
    options = effective_options(options, menu, toolchains)
    if is_estimated:
        check_estimator_options(options)
    if options.baseline not in ("none", "onnxruntime"):
        toolchains.parse_targets([options.baseline])  # Says what is wrong with it.
    return options, menu


def effective_options(options: CompileOptions | None, menu: Sequence[Target], toolchains: Registry) -> CompileOptions:
    """Return options with the context's depth of kernels filled in if the options leave it open.

    Raises:
        UsageError: A fusion style or a launch penalty names no toolchain, or two targets cannot be told apart.
    """
    options = options or CompileOptions()
    known = {*toolchains.names(), *(target.toolchain for target in menu), HOST_TOOLCHAIN}
    _check_names("fusion style", (options.fusion or FusionOptions()).styles, known)
    _check_names("launch penalty", options.launch_penalties_s, known)
    titles = [target.title for target in menu]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise UsageError(
            f"two targets of the menu are {twice!r} and have different rules; give the rules different names"
        )
    context = PassContext.current()
    native, other = (context.get_config(f"collage.{kind}_max_depth") for kind in ("tvm", "byoc"))
    if options.fusion is not None or (native is None and other is None):
        return options
    return replace(options, fusion=FusionOptions(native_max_depth=native, max_depth=other))


def _with_planned_targets(menu: tuple[Target, ...], options: CompileOptions) -> tuple[Target, ...]:
    """Return the default menu and the targets that the plan of devices names, if it is given in a file."""
    devices = options.devices
    if devices is None:
        return menu
    requests = read_device_plan(devices) if isinstance(devices, str | Path) else devices
    named = [scope.target for scope in requests.devices.values() if scope.target is not None]
    return tuple(dict.fromkeys([*menu, *named]))


def check_estimator_options(options: CompileOptions) -> None:
    """Refuse options that have no effect where the costs come from an estimator.

    Raises:
        UsageError: One of them is set.
    """
    refuse(options, _ABOUT_TIMES, "the costs come from an estimator")
    if isinstance(strategies().get(options.strategy), RefiningStrategy):
        raise UsageError(
            f"option strategy: the second phase of {options.strategy!r} has no effect: the costs come from an estimator"
        )


def refuse(options: CompileOptions, names: Iterable[str], why: str) -> None:
    """Refuse options that are set and cannot hold.

    Raises:
        UsageError: One of them has another value than its default.
    """
    defaults = {each.name: each.default for each in fields(CompileOptions)}
    if given := next((name for name in names if getattr(options, name) != defaults[name]), None):
        raise UsageError(f"option {given} has no effect here: {why}")


def _check_names(what: str, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise UsageError(f"{what} of {name!r}: there is no such toolchain; {hint}")
