"""Compilations without an artefact: the model cannot be run, or no target of the menu runs any part of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from collage._distribution import WHERE, install_command
from collage._errors import CollageError, ModelError, NothingCanRun, ToolchainError, WorkerDied, WrongAnswer
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.frontend import describe_inputs, free_dimensions, is_contributed, shape_misfit
from collage.graph import bodies, is_view
from collage.measure.baselines import TargetBaseline
from collage.measure.body_problem import is_searchable
from collage.measure.reference_run import how_to_give
from collage.measure.session import MeasureSession
from collage.plan import Plan
from collage.status import Status
from collage.target import HOST_TARGET, Target
from collage.toolchains import NOT_INSTALLED, Availability

__all__ = [
    "OVER_TIME",
    "check_chosen",
    "check_menu",
    "check_reference",
    "in_short",
    "nothing_to_choose",
    "one_choice",
    "placement_costs",
    "told_once",
    "unsearched_bodies",
    "with_named_targets",
]

_STATUS = re.compile(r"(?:Exception caught: )?\[ONNXRuntimeError\] : \d+ : \w+ : ")
_AT_NODE = re.compile(
    r"Non-zero status code returned while running (?P<op>\S+) node\. Name:'(?P<name>.*?)' Status Message: (?P<why>.*)"
)
_PLACE = re.compile(r"^\S*onnxruntime\S*:\d+ (?:[^()]*\([^()]*\)(?: const)? )?(?:\[with [^\]]*\] )?")
"""The place in ONNX Runtime's source, and the function, with which it begins what it has to say."""

_SLOWER = 1.2
"""A plan of devices is reported if it takes this many times as long as one target alone."""

OVER_TIME = 1.1
"""A compilation that takes this many times its time budget is reported."""
_SEVERAL = 2
_INSTALL = install_command("cpu") + WHERE


def check_reference(survey: Survey, session: MeasureSession) -> None:
    """Refuse a model that could not be run for reference.

    Raises:
        ModelError: The original runtime cannot run it either, or shapes do not fit for any input.
        NothingCanRun: It has operators that nothing here knows, or its process ended.
    """
    if survey.reference.failure is None or not len(survey.problem.graph):
        return
    values = session.values
    if (misfit := shape_misfit(survey.problem.model)) is not None:
        raise ModelError(f"the model cannot be run: {misfit}")
    unknown = [node for node in survey.problem.graph.nodes if not _is_known(node, survey.problem.model)]
    if unknown:
        node = unknown[0]
        raise NothingCanRun(
            f"nothing can run the model: node {node.name!r} is a {node.domain}::{node.op_type}, which neither "
            "ONNX Runtime nor ONNX's reference evaluator knows"
        )
    if survey.problem.options.allow_host:
        return
    shapes = {str(v.name): values.shape(str(v.name)) for v in survey.problem.model.graph.inputs if v.name in values}
    why = shape_misfit(survey.problem.model, shapes) or _why_original_fails(survey, session)
    if why is None:
        raise NothingCanRun(f"nothing can run the model: {in_short(survey.reference.failure, session.workspace)}")
    raise ModelError(f"the model cannot be run: {why}{_advice(survey.problem)}")


def _is_known(node: ir.Node, model: ir.Model) -> bool:
    version = model.opset_imports.get("") or 1
    return onnx.defs.has(node.op_type, node.domain) or is_contributed(node.domain, node.op_type, version)


def _why_original_fails(survey: Survey, session: MeasureSession) -> str | None:
    """Return why the user's own model does not run on the inputs of the reference run; None if it does, or its process died."""
    if survey.reference.original is None:
        return None
    try:
        survey.reference.original.run(session.values)
    except WorkerDied:
        return None
    except ToolchainError as error:
        return in_short(str(error), session.workspace)
    return None


def _advice(problem: Problem) -> str:
    """Return advice for the user if inputs were made up."""
    specs = [spec for spec in describe_inputs(problem.model) if spec.name not in problem.options.inputs]
    made_up = [spec.name for spec in specs]
    if not made_up:
        return ""
    free = free_dimensions(problem.model, problem.options.dims, problem.options.inputs)
    lengths = f" or other lengths ({' '.join(f'--dim {shlex.quote(name)}=LENGTH' for name in free)})" if free else ""
    return (
        f"; {', '.join(map(repr, made_up))} {'was' if len(made_up) == 1 else 'were'} made up: give real inputs "
        f"{how_to_give(specs)}{lengths}"
    )


def check_menu(survey: Survey, session: MeasureSession) -> None:
    """Refuse to go on where no target of the menu runs any part of the model.

    Raises:
        NothingCanRun: No target does, and the host is not allowed to run everything.
        WrongAnswer: No target does, because one computes wrongly.
    """
    # What is built operator by operator may do where all of it at once does not, and so may what is in bodies.
    some = any(support.ok for found in survey.baselines.values() for support in found.support.values())
    if survey.problem.placement is None and survey.usable:
        some = some or any(map(is_searchable, survey.problem.graph.nodes))
    if not (some or _may_be_host(survey.problem)):
        raise _refusal(survey, session)


def with_named_targets(survey: Survey, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that use a target of the menu; all of them if there are none, or the host alone will do."""
    named = [plan for plan in plans if plan.targets != (HOST_TARGET,)]
    return named if named and not _may_be_host(survey.problem) else list(plans)


def check_chosen(survey: Survey, session: MeasureSession, finals: FinalComparison) -> None:
    """Refuse a plan if no target of the menu runs any operator in it. Views are the host's in every plan.

    Raises:
        NothingCanRun: It is such a plan, and that is not allowed.
        WrongAnswer: It is, because a target computes wrongly.
    """
    is_host_alone = finals.plan is not None and finals.plan.targets == (HOST_TARGET,)
    if (
        is_host_alone
        and not _may_be_host(survey.problem)
        and not all(is_view(node) for node in survey.problem.graph.nodes)
    ):
        raise _refusal(survey, session)


def placement_costs(survey: Survey, finals: FinalComparison) -> list[str]:
    """Warn if a plan of devices makes a model slower than one target alone is without it."""
    alone_s = survey.best_single_s
    is_placed = finals.plan is not None and survey.problem.placement is not None
    if not is_placed or finals.time is None or finals.time.median_s <= _SLOWER * alone_s:
        return []
    best = min(
        (found.whole.time.median_s, target.title)
        for target, found in survey.baselines.items()
        if found.whole.time is not None
    )
    return [
        f"the plan of devices makes this model slower: it takes {finals.time.median_s * 1e6:.4g} µs, and {best[1]} alone, "
        f"without devices, takes {best[0] * 1e6:.4g} µs"
    ]


def unsearched_bodies(survey: Survey) -> list[str]:
    """Warn if most operators are inside bodies of control flow that are not searched, since devices are planned."""
    graph = survey.problem.graph
    if survey.problem.placement is None:
        return []
    holders = {node: [inner for body in bodies(node) for inner in body.all_nodes()] for node in graph.nodes}
    holders = {node: inner for node, inner in holders.items() if inner}
    inside = sum(map(len, holders.values()))
    if len(survey.takers) < _SEVERAL or inside <= len(graph):
        return []
    names = ", ".join(f"{node.name!r} ({node.op_type})" for node in list(holders)[:3])
    return [
        f"{inside} of {inside + len(graph)} operators are in bodies of control flow, which are not searched where devices "
        f"are planned: {names} runs as one kernel on one target"
    ]


def over_time(budget_s: float | None, took_s: float, survey_s: float) -> list[str]:
    """Warn if a compilation exceeded the user's time budget, and name the parts that cannot be shorter.

    Args:
        budget_s: The time budget.
        took_s: Seconds that the compilation took.
        survey_s: Seconds until the model was read and timed on every target.
    """
    if budget_s is None or took_s <= OVER_TIME * budget_s:
        return []
    if 2 * survey_s > budget_s:
        why = (
            f"Reading the model and timing the whole of it on every target took {_told_s(survey_s)}, and is never cut "
            f"short; name fewer targets, or allow about {_told_s(2 * survey_s)}"
        )
    else:
        why = "Builds and rounds that have begun are never cut short, and other programs may hold them up"
    return [f"the time budget of {budget_s:g} s did not hold: {_told_s(took_s)}. {why}"]


def _told_s(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def nothing_to_choose(menu: Mapping[Target, Availability]) -> str | None:
    """Return a sentence if one toolchain of a menu can be used here, or none, since others are not installed; else None."""
    usable = dict.fromkeys(target.toolchain for target, found in menu.items() if found.available)
    absent = dict.fromkeys(target.toolchain for target, found in menu.items() if found.reason == NOT_INSTALLED)
    if len(usable) > 1 or not absent or any(name in usable for name in absent):
        return None
    if usable:
        (name,) = usable
        brings = f"brings {', '.join(absent)}"
        return f"{name} is the only toolchain that can be used here, so there is nothing to choose from: {_INSTALL} {brings}"
    return (
        f"no toolchain is installed, so there is nothing to choose from: {_INSTALL}"
        if all(found.reason == NOT_INSTALLED for found in menu.values())
        else None
    )


def _may_be_host(problem: Problem) -> bool:
    return problem.options.allow_host or HOST_TARGET in problem.menu or not len(problem.graph)


def _refusal(survey: Survey, session: MeasureSession) -> CollageError:
    told_host = "--allow-host (in Python allow_host=True) runs it without a toolchain and without optimisations"
    if not survey.usable and (nothing := nothing_to_choose(_menu(survey))) is not None:
        return NothingCanRun(f"{nothing}; {told_host}")
    reasons = {target.short: _reasons(found, survey, session) for target, found in survey.baselines.items()}
    told = told_once(reasons)
    if any(outcome.status is Status.WRONG for found in survey.baselines.values() for outcome in found.outcomes):
        return WrongAnswer(f"no target of the menu runs the model rightly: {told}")
    remedies = [found.availability.remedy for found in survey.baselines.values() if not found.availability.available]
    parts = dict.fromkeys(part for remedy in remedies if remedy for part in remedy.split("; "))
    helps = f"What helps: {'; '.join(parts)}. " if parts else ""
    return NothingCanRun(f"no target of the menu runs any of the model: {told}. {helps}{told_host}")


def _menu(survey: Survey) -> Mapping[Target, Availability]:
    return {target: found.availability for target, found in survey.baselines.items()}


def one_choice(survey: Survey) -> list[str]:
    """Warn if only one toolchain of the default menu is installed."""
    told = nothing_to_choose(_menu(survey))
    return [] if told is None else [told]


def _reasons(found: TargetBaseline, survey: Survey, session: MeasureSession) -> list[str]:
    """Return why a target runs nothing."""
    if not found.availability.available:
        return (found.availability.reason or "not available").split("; ")
    whole = found.whole
    if whole.ok and whole.error is not None and not survey.is_right(whole):
        return [
            f"differs by {whole.error:.1e} of the largest output, more than {survey.problem.tolerance:.0e}; a larger "
            "--accuracy-budget admits it"
        ]
    told = [whole.reason, *(outcome.reason for outcome in found.outcomes)]
    return [in_short(next(filter(None, told), whole.status.value), session.workspace)]


def told_once(reasons: Mapping[str, Sequence[str]]) -> str:
    """Return reasons by name as one text that states each reason once, after the names that share it."""
    names: dict[str, list[str]] = {}
    for name, told in reasons.items():
        for reason in dict.fromkeys(told):
            names.setdefault(reason, []).append(name)
    together: dict[tuple[str, ...], list[str]] = {}
    for reason, named in names.items():
        together.setdefault(tuple(named), []).append(reason)
    return "; ".join(f"{', '.join(named)}: {', '.join(told)}" for named, told in together.items())


def in_short(text: str, workspace: Path) -> str:
    """Return a toolchain's message without this process's folders and without places in the toolchain's source."""
    text = _STATUS.sub("", " ".join(text.replace(f"{workspace}/", "").split()))
    if (found := _AT_NODE.search(text)) is None:
        return text
    return f"node {found['name']!r} ({found['op']}): {_PLACE.sub('', found['why'])}"
