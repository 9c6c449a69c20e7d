"""Plans from files and to files: what a plan file says is checked against the model, the menu and the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage._errors import TargetError, UsageError
from collage.compiler.plans import Plan, PlannedKernel
from collage.compiler.problem import Problem
from collage.graph import ANY_VALID, IndexSet, NestedSubGraph, SubGraph
from collage.plan_file import LabelledPart, PlanFile, PlanFileKernel
from collage.target import HOST_TARGET, Target

__all__ = ["plan_file_of", "plan_of_file"]

_NAME = "the given plan"
_SHOWN = 3


def plan_file_of(problem: Problem, plan: Plan, model_digest: str) -> PlanFile:
    """Return a plan as what its file holds."""
    return PlanFile(
        tuple(
            PlanFileKernel(
                str(place.target),
                _names_of(problem, place.sub_graph.inside),
                tuple(_part_of(problem, part) for part in place.sub_graph.nested),
                None if place.device is None else str(place.device),
                place.branch,
            )
            for place in plan.kernels
        ),
        model_digest,
    )


def plan_of_file(problem: Problem, file: PlanFile, model_digest: str) -> Plan:
    """Return the plan that a file holds, checked.

    Raises:
        UsageError: It does not fit: an unknown operator or target, an operator in two kernels or in none, kernels that
            feed each other in a circle, labelled parts that overlap, or another device than the model's plan allows.
    """
    places = {str(node.name): i for i, node in enumerate(problem.graph.nodes)}
    known = [(kernel, _indices(kernel.nodes, places, file, model_digest)) for kernel in file.kernels]
    _check_cover(problem, known)
    kernels = _in_order(problem, [_kernel(problem, kernel, nodes, places) for kernel, nodes in known])
    single = kernels[0].target if len(kernels) == 1 and kernels[0].target in problem.menu else None
    return Plan(_NAME, tuple(kernels), single, problem.placement)


def _indices(names: Sequence[str], places: Mapping[str, int], file: PlanFile, model_digest: str) -> tuple[int, ...]:
    unknown = [name for name in names if name not in places]
    if unknown:
        other = "" if file.model in ("", model_digest) else "; the plan was made for another model"
        raise UsageError(
            f"the plan does not fit: the prepared model has no operator {unknown[0]!r}{_more(len(unknown))}{other}"
        )
    return tuple(places[name] for name in names)


def _check_cover(problem: Problem, known: Sequence[tuple[PlanFileKernel, Sequence[int]]]) -> None:
    """Raise UsageError unless every operator is in exactly one kernel."""
    owner: dict[int, int] = {}
    for number, (_, nodes) in enumerate(known, 1):
        for i in nodes:
            if i in owner:
                name = problem.graph.node(i).name
                raise UsageError(f"the plan does not fit: {name!r} is in kernels {owner[i]} and {number}")
            owner[i] = number
    left = [str(node.name) for i, node in enumerate(problem.graph.nodes) if i not in owner]
    if left:
        raise UsageError(f"the plan does not fit: no kernel has operator {left[0]!r}{_more(len(left))}")


def _kernel(problem: Problem, kernel: PlanFileKernel, nodes: Sequence[int], places: Mapping[str, int]) -> PlannedKernel:
    target = _target(problem, kernel.target)
    parts = [_nested(part, places) for part in kernel.parts]
    sub_graph = SubGraph(problem.graph, IndexSet.from_indices(nodes), parts)
    shown = f"kernel of {', '.join(kernel.nodes[:_SHOWN])}{_more(len(kernel.nodes), _SHOWN)} on {target.short}"
    reason = sub_graph.why_ill_formed(ANY_VALID) if target == HOST_TARGET else sub_graph.why_invalid()
    if reason is not None:
        raise UsageError(f"the plan does not fit: {shown}: {reason}")
    if problem.placement is None:
        if kernel.device is not None:
            raise UsageError(
                f"the plan does not fit: {shown} is for device {kernel.device}, and no devices are planned"
            )
        return PlannedKernel(sub_graph, target, "plan file", branch=kernel.branch)
    if kernel.branch is not None:
        raise UsageError(f"the plan does not fit: {shown} is in branch {kernel.branch}, and devices are planned")
    allowed = problem.placement.devices_for(sub_graph.nodes, target)
    device = next((each for each in allowed if str(each) == kernel.device), None)
    if not allowed or (kernel.device is not None and device is None):
        raise UsageError(f"the plan does not fit: {shown} cannot run on {kernel.device or 'any one device'}")
    return PlannedKernel(sub_graph, target, "plan file", device)


def _in_order(problem: Problem, kernels: Sequence[PlannedKernel]) -> list[PlannedKernel]:
    """Return kernels in an order in which they can run.

    Raises:
        UsageError: They feed each other in a circle.
    """
    waiting = sorted(kernels, key=lambda place: place.sub_graph.exit.last)
    ordered: list[PlannedKernel] = []
    done = 0
    while waiting:
        ready = next((place for place in waiting if not place.sub_graph.input_bits & ~done), None)
        if ready is None:
            first = problem.graph.node(waiting[0].sub_graph.inside.first).name
            raise UsageError(
                f"the plan does not fit: {len(waiting)} kernels feed each other in a circle, the one with {first!r} among them"
            )
        waiting.remove(ready)
        ordered.append(ready)
        done |= ready.sub_graph.inside.bits
    return ordered


def _target(problem: Problem, text: str) -> Target:
    try:
        target = HOST_TARGET if text == str(HOST_TARGET) else problem.toolchains.parse_target(text)
    except TargetError as error:
        raise UsageError(f"the plan does not fit: {error}") from error
    if target not in (*problem.menu, HOST_TARGET):
        menu = ", ".join(each.short for each in problem.menu)
        raise UsageError(f"the plan does not fit: {target.short} is not on the menu, which is {menu}")
    return target


def _nested(part: LabelledPart, places: Mapping[str, int]) -> NestedSubGraph:
    unknown = [name for name in part.nodes if name not in places]
    if unknown:
        raise UsageError(f"the plan does not fit: the prepared model has no operator {unknown[0]!r}")
    inside = IndexSet.from_indices(places[name] for name in part.nodes)
    return NestedSubGraph(inside, part.label, tuple(_nested(each, places) for each in part.parts))


def _part_of(problem: Problem, part: NestedSubGraph) -> LabelledPart:
    nested = tuple(_part_of(problem, each) for each in part.nested)
    return LabelledPart(part.label, _names_of(problem, part.inside), nested)


def _names_of(problem: Problem, nodes: IndexSet) -> tuple[str, ...]:
    return tuple(str(problem.graph.node(i).name) for i in nodes)


def _more(count: int, shown: int = 1) -> str:
    return f" and {count - shown} more" if count > shown else ""
