"""Plans from files and to files: the content of a plan file is checked against the model, the menu and the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage._errors import TargetError, UsageError
from collage.compiler.problem import Problem
from collage.graph import ANY_VALID, DataflowGraph, IndexSet, NestedSubGraph, SubGraph, bodies
from collage.plan import Plan, PlannedKernel
from collage.plan_file import LabelledPart, PlanFile, PlanFileKernel
from collage.runtime import BODIES_TARGET
from collage.target import HOST_TARGET, Target
from collage.toolchains import TUNED

__all__ = ["plan_file_of", "plan_of_file", "target_on"]

_NAME = "the given plan"
_SHOWN = 3
_OWN_OPTIONS = ("trials", "seed", "threads")
"""Options that kernels may have beside those of the menu: tuned ones, and those of branches."""


def plan_file_of(problem: Problem, plan: Plan, model_digest: str, name_of: Callable[[Target], str] = str) -> PlanFile:
    """Return a plan as the content of its file, with targets by their names."""
    return PlanFile(
        tuple(
            replace(
                _file_kernel(place, name_of),
                device=None if place.device is None else str(place.device),
                branch=place.branch,
                tuned=problem.kernels.of(place).metadata_props.get(TUNED),
            )
            for place in plan.kernels
        ),
        model_digest,
    )


def _file_kernel(kernel: PlannedKernel, name_of: Callable[[Target], str]) -> PlanFileKernel:
    sub_graph, target = kernel.sub_graph, HOST_TARGET if kernel.bodies else kernel.target
    parts = tuple(_part_of(sub_graph.graph, part) for part in sub_graph.nested)
    inner = tuple(tuple(_file_kernel(each, name_of) for each in body.kernels) for body in kernel.bodies)
    names = _names_of(sub_graph.graph, sub_graph.inside)
    return PlanFileKernel(name_of(target), names, parts, bodies=inner, rule=kernel.rule)


def plan_of_file(problem: Problem, file: PlanFile, model_digest: str) -> Plan:
    """Return the plan that a file holds, checked.

    Args:
        problem: The model and the menu.
        file: The plan file.
        model_digest: The digest of the model.

    Raises:
        UsageError: It does not fit: an unknown operator or target, an operator in two kernels or in none, kernels that
            feed each other in a circle, labelled parts that overlap, or another device than the model's plan allows.
    """
    reader = _Reader(problem, file.model in ("", model_digest))
    kernels = reader.kernels(problem.graph, file.kernels)
    single = kernels[0].target if len(kernels) == 1 and kernels[0].target in problem.menu else None
    return Plan(_NAME, tuple(kernels), single)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the kernels of a plan file.

    Attributes:
        problem: The model and the menu.
        is_for_it: True unless the plan was made for another model.
    """

    problem: Problem
    is_for_it: bool

    def kernels(self, graph: DataflowGraph, kernels: Sequence[PlanFileKernel]) -> list[PlannedKernel]:
        """Return the kernels of a graph, be it a body, in an order in which they can run."""
        places = {str(node.name): i for i, node in enumerate(graph.nodes)}
        known = [(kernel, self._indices(kernel.nodes, places)) for kernel in kernels]
        _check_cover(graph, known)
        return _in_order(graph, [self._kernel(graph, kernel, nodes, places) for kernel, nodes in known])

    def _indices(self, names: Sequence[str], places: Mapping[str, int]) -> tuple[int, ...]:
        unknown = [name for name in names if name not in places]
        if unknown:
            other = "" if self.is_for_it else "; the plan was made for another model"
            raise UsageError(
                f"the plan does not fit: the prepared model has no operator {unknown[0]!r}{_more(len(unknown))}{other}"
            )
        return tuple(places[name] for name in names)

    def _kernel(
        self, graph: DataflowGraph, kernel: PlanFileKernel, nodes: Sequence[int], places: Mapping[str, int]
    ) -> PlannedKernel:
        problem, target = self.problem, target_on(self.problem, kernel.target)
        parts = [_nested(part, places) for part in kernel.parts]
        sub_graph = SubGraph(graph, IndexSet.from_indices(nodes), parts)
        shown = f"kernel of {', '.join(kernel.nodes[:_SHOWN])}{_more(len(kernel.nodes), _SHOWN)} on {target.short}"
        reason = sub_graph.why_ill_formed(ANY_VALID) if target == HOST_TARGET else sub_graph.why_invalid()
        if reason is not None:
            raise UsageError(f"the plan does not fit: {shown}: {reason}")
        inner = self._bodies(sub_graph, kernel, target, shown) if kernel.bodies else ()
        target = BODIES_TARGET if inner else target
        if kernel.tuned is not None and graph is problem.graph:
            problem.kernels.annotate(sub_graph, target, {TUNED: kernel.tuned})
        rule = kernel.rule or "plan file"
        if problem.placement is None or graph is not problem.graph:
            if kernel.device is not None:
                raise UsageError(
                    f"the plan does not fit: {shown} is for device {kernel.device}, and no devices are planned"
                )
            return PlannedKernel(sub_graph, target, rule, branch=kernel.branch, bodies=inner)
        if kernel.branch is not None:
            raise UsageError(f"the plan does not fit: {shown} is in branch {kernel.branch}, and devices are planned")
        allowed = problem.placement.devices_for(sub_graph.nodes, target)
        device = next((each for each in allowed if str(each) == kernel.device), None)
        if not allowed or (kernel.device is not None and device is None):
            raise UsageError(f"the plan does not fit: {shown} cannot run on {kernel.device or 'any one device'}")
        return PlannedKernel(sub_graph, target, rule, device, bodies=inner)

    def _bodies(self, sub_graph: SubGraph, kernel: PlanFileKernel, target: Target, shown: str) -> tuple[Plan, ...]:
        """Return the plans of the bodies of an operator."""
        graphs = [DataflowGraph(body, model=self.problem.model) for node in sub_graph.nodes for body in bodies(node)]
        if target != HOST_TARGET or len(sub_graph) != 1 or len(graphs) != len(kernel.bodies):
            raise UsageError(
                f"the plan does not fit: {shown}: bodies are those of one operator, which has as many, on the host"
            )
        if any(inner.branch is not None for body in kernel.bodies for inner in body):
            raise UsageError(f"the plan does not fit: {shown}: kernels of bodies are in no branch")
        inner = zip(graphs, kernel.bodies, strict=True)
        return tuple(Plan("", tuple(self.kernels(graph, body))) for graph, body in inner)


def _check_cover(graph: DataflowGraph, known: Sequence[tuple[PlanFileKernel, Sequence[int]]]) -> None:
    """Raise UsageError unless every operator is in exactly one kernel."""
    owner: dict[int, int] = {}
    for number, (_, nodes) in enumerate(known, 1):
        for i in nodes:
            if i in owner:
                name = graph.node(i).name
                raise UsageError(f"the plan does not fit: {name!r} is in kernels {owner[i]} and {number}")
            owner[i] = number
    left = [str(node.name) for i, node in enumerate(graph.nodes) if i not in owner]
    if left:
        raise UsageError(f"the plan does not fit: no kernel has operator {left[0]!r}{_more(len(left))}")


def _in_order(graph: DataflowGraph, kernels: Sequence[PlannedKernel]) -> list[PlannedKernel]:
    """Return kernels in an order in which they can run.

    Raises:
        UsageError: They feed each other in a circle.
    """
    waiting = list(kernels)
    ordered: list[PlannedKernel] = []
    done = 0
    while waiting:
        ready = next((place for place in waiting if not place.sub_graph.input_bits & ~done), None)
        if ready is None:
            first = graph.node(waiting[0].sub_graph.inside.first).name
            raise UsageError(
                f"the plan does not fit: {len(waiting)} kernels feed each other in a circle, the one with {first!r} among them"
            )
        waiting.remove(ready)
        ordered.append(ready)
        done |= ready.sub_graph.inside.bits
    return ordered


def target_on(problem: Problem, text: str) -> Target:
    """Return the target of the menu with this name, the host, or a variant of one of them.

    Raises:
        UsageError: There is none.
    """
    titles = {target.title: target for target in (*problem.menu, HOST_TARGET)}
    if text in titles:
        return titles[text]
    try:
        target = problem.toolchains.parse_target(text)
    except TargetError as error:
        raise UsageError(f"the plan does not fit: {error}") from error
    options = dict(target.options)
    own = {name: options.pop(name) for name in _OWN_OPTIONS if name in options}
    plain = replace(target, options=tuple(options.items()))
    if own and str(plain) in titles:
        return titles[str(plain)].with_options(**own)
    if target not in problem.menu:
        menu = ", ".join(each.short for each in problem.menu)
        raise UsageError(f"the plan does not fit: {target.short} is not on the menu, which is {menu}")
    return target


def _nested(part: LabelledPart, places: Mapping[str, int]) -> NestedSubGraph:
    unknown = [name for name in part.nodes if name not in places]
    if unknown:
        raise UsageError(f"the plan does not fit: the prepared model has no operator {unknown[0]!r}")
    inside = IndexSet.from_indices(places[name] for name in part.nodes)
    return NestedSubGraph(inside, part.label, tuple(_nested(each, places) for each in part.parts))


def _part_of(graph: DataflowGraph, part: NestedSubGraph) -> LabelledPart:
    nested = tuple(_part_of(graph, each) for each in part.nested)
    return LabelledPart(part.label, _names_of(graph, part.inside), nested)


def _names_of(graph: DataflowGraph, nodes: IndexSet) -> tuple[str, ...]:
    return tuple(str(graph.node(i).name) for i in nodes)


def _more(count: int, shown: int = 1) -> str:
    return f" and {count - shown} more" if count > shown else ""
