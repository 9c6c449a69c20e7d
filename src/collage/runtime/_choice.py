"""The choice of a plan among those of a pack, for the machine that this process runs on.

The plan of this machine comes first. Then comes the nearest whose native code runs here: of the same system, with an
instruction set that is this machine's or a part of it. Otherwise one portable kernel for the whole model is used: that of a
plan, or the model on ONNX Runtime. Native code of another kind of machine is never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.runtime._made_on import Fit, MadeOn
from collage.runtime._pack import PackedPlan, general_plans
from collage.runtime._recipe import Recipe
from collage.system.machine import Machine, this_machine
from collage.target import Target
from collage.toolchains import Registry, availability_for, importing_here

__all__ = ["Choice", "choose"]

_WHY: Mapping[Fit, str] = {
    Fit.SAME: "it is for this machine with another device",
    Fit.SAME_KIND: "its processor has the same instruction set",
    Fit.SMALLER: "this processor has all instructions of its processor, and more",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan of a pack for this machine.

    Attributes:
        plan: The plan.
        is_whole: True if only its model is used, and runs as one kernel on ONNX Runtime.
        note: The reason for the choice, None if the plan is that of this machine.
        specialised: The plans of the same machine that are for some lengths only.
    """

    plan: PackedPlan
    is_whole: bool = False
    note: str | None = None
    specialised: tuple[PackedPlan, ...] = ()


def choose(plans: Sequence[PackedPlan], toolchains: Registry, here: Machine | None = None) -> Choice:
    """Return the plan that this machine is to run, and those that it is to run at some lengths.

    Args:
        plans: The plans of a pack, at least one.
        toolchains: The registry that tells which toolchains are usable here.
        here: The machine, this one by default.
    """
    general = general_plans(plans) or plans
    choice = _chosen(general, toolchains, this_machine() if here is None else here)
    if choice.is_whole:
        return choice
    alike = [plan for plan in plans if plan not in general and plan.machine == choice.plan.machine]
    return replace(choice, specialised=tuple(p for p in alike if _why_unusable(p.recipe, toolchains) is None))


def _chosen(plans: Sequence[PackedPlan], toolchains: Registry, here: Machine) -> Choice:
    """Return the plan that this machine is to run, among plans that take the same lengths.

    Args:
        plans: The plans of a pack, at least one.
        toolchains: The registry that tells which toolchains are usable here.
        here: The machine.
    """
    ranked = sorted(plans, key=lambda plan: plan.made_on.distance(here))
    left: list[str] = []
    for fit in (Fit.SAME, Fit.SAME_KIND, Fit.SMALLER):
        usable = []
        for plan in (plan for plan in ranked if plan.made_on.fit(here) is fit):
            if (reason := _why_unusable(plan.recipe, toolchains)) is not None:
                left.append(f"the plan for {plan.made_on} is left out, since {reason}")
                continue
            usable.append(plan)
            # Further plans are not looked at if this one is for the devices here: to ask a toolchain may import it.
            if not _devices_that_differ(plan, toolchains):
                break
        if not usable:
            continue
        plan = min(usable, key=lambda plan: len(_devices_that_differ(plan, toolchains)))
        differ = "".join(f"; it was compiled for {build}" for build in _devices_that_differ(plan, toolchains))
        if fit is Fit.SAME and not differ:
            return Choice(plan)
        return Choice(plan, note=_note(here, [*left, f"the nearest, for {plan.made_on}, is used: {_WHY[fit]}{differ}"]))
    for plan in ranked:
        if _is_portable_single(plan.recipe) and _why_unusable(plan.recipe, toolchains) is None:
            told = f"the plan for {plan.made_on} is used: one portable kernel on {plan.targets[0]}"
            return Choice(plan, note=_note(here, [*left, told]))
    told = "the whole model runs on onnxruntime, and compiling it here would be faster"
    return Choice(ranked[0], is_whole=True, note=_note(here, [*left, told]))


def _why_unusable(recipe: Recipe, toolchains: Registry) -> str | None:
    """Return which toolchain of a recipe is not usable here and why, None if all are."""
    for text in dict.fromkeys(kernel.target for kernel in recipe.kernels):
        target = Target.parse(text)
        try:
            with importing_here():
                found = availability_for(toolchains.get(target.toolchain), target)
        except Exception as error:  # A toolchain that is not installed, or a plug-in that breaks its word.
            return f"{target.toolchain} is not usable here: {error}"
        if not found.available:
            return f"{target.toolchain} is not usable here: {found.reason}"
    return None


def _devices_that_differ(plan: PackedPlan, toolchains: Registry) -> list[str]:
    """Return the builds for devices that are not those here."""
    if not plan.device_builds:
        return []
    targets = {Target.parse(kernel.target) for kernel in plan.recipe.kernels}
    with importing_here():
        here = {each.build_name: availability_for(toolchains.get(each.toolchain), each).build for each in targets}
    return [build for name, build in plan.device_builds.items() if here.get(name) != build]


def _is_portable_single(recipe: Recipe) -> bool:
    if len(recipe.kernels) != 1 or recipe.devices is not None:
        return False
    (kernel,) = recipe.kernels
    # The error of a reduced kernel was measured on the machine of the plan.
    return kernel.is_built and kernel.compiled.portable and not Target.parse(kernel.target).is_reduced


def _note(here: Machine, told: Sequence[str]) -> str:
    me = MadeOn(here.system, here.isa, here.cores, here.quota, here.fingerprint, here.cpu)
    return "; ".join([f"the pack has no usable plan for this machine, {me}", *told])
