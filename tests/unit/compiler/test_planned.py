"""Plan files with bodies become plans only if they fit the bodies of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tests.unit.runtime.test_control_flow import counting_loop

from collage import CompileOptions
from collage._errors import UsageError
from collage.compiler.effective_options import options_and_menu
from collage.compiler.given_plan import earlier_candidates
from collage.compiler.planned import plan_file_of, plan_of_file
from collage.compiler.problem import Part, Problem
from collage.frontend import read_model
from collage.measure.jobs import inner_targets, structure_of
from collage.plan import leaves_of
from collage.plan_file import LabelledPart, PlanFile, PlanFileKernel
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.transform import prepare

HOST, LEFT, RIGHT = "llvm -compiler=host", "llvm -compiler=left", "llvm -compiler=right"
GROW, SQUASH = PlanFileKernel(LEFT, ("grow",)), PlanFileKernel(RIGHT, ("squash",))
END = PlanFileKernel(LEFT, ("sum", "test"))
LOOP = PlanFileKernel(HOST, ("loop",), bodies=((GROW, END, SQUASH),))
PLAN = PlanFile((PlanFileKernel(LEFT, ("scale",)), LOOP))


@pytest.fixture(scope="module")
def problem() -> Problem:
    toolchains = Registry()
    for name in ("left", "right"):
        toolchains.add(FakeToolchain(name=name))
    model = prepare(read_model(counting_loop()))
    return Problem.of(model, [Target.parse(LEFT), Target.parse(RIGHT)], toolchains, CompileOptions())


def test_a_plan_with_bodies_comes_back_from_its_file(problem: Problem) -> None:
    plan = plan_of_file(problem, PLAN, "")
    file = plan_file_of(problem, plan, "")
    assert plan_of_file(problem, file, "").same_kernels(plan)
    assert [kernel.nodes for kernel in file.kernels[1].bodies[0]] == [kernel.nodes for kernel in LOOP.bodies[0]]
    assert plan.leaves == leaves_of(plan.kernels[1]) == (Target.parse(LEFT), Target.parse(RIGHT))
    assert len(problem.kernels.of(plan.kernels[1]).functions) == 3


def test_kernels_with_other_plans_of_bodies_are_other_kernels(problem: Problem) -> None:
    turned = replace(LOOP, bodies=((replace(GROW, target=RIGHT), END, SQUASH),))
    one, other = (
        plan_of_file(problem, PlanFile((PlanFileKernel(LEFT, ("scale",)), loop)), "") for loop in (LOOP, turned)
    )
    assert not one.same_kernels(other)
    assert problem.key_of(one.kernels[1]) != problem.key_of(other.kernels[1])
    models = [problem.kernels.of(plan.kernels[1]) for plan in (one, other)]
    assert structure_of(models[0]) != structure_of(models[1])
    assert inner_targets(models[0]) != inner_targets(models[1])


def test_kernels_of_a_body_are_put_in_an_order_in_which_they_run(problem: Problem) -> None:
    turned = replace(LOOP, bodies=((END, SQUASH, GROW),))
    plan = plan_of_file(problem, PlanFile((PlanFileKernel(LEFT, ("scale",)), turned)), "")
    (body,) = plan.kernels[1].bodies
    assert body.kernels[0].sub_graph.inside.first == 0


@dataclass(frozen=True)
class _Surveyed:
    """The part of a survey that candidates of an earlier part need."""

    problem: Problem
    usable: tuple[Target, ...]


def test_the_kernels_of_an_earlier_part_are_candidates_if_they_fit(problem: Problem) -> None:
    def candidates(plan: PlanFile | None, *usable: str) -> list[tuple[str, tuple[str, ...]]] | None:
        survey = _Surveyed(replace(problem, part=Part(plan=plan)), tuple(map(Target.parse, usable)))
        index = earlier_candidates(survey)  # type: ignore[arg-type]
        found = [(str(c.target), tuple(str(node.name) for node in c.sub_graph.nodes)) for c in index or ()]
        return None if index is None else found

    there = PlanFile((PlanFileKernel(LEFT, ("scale",)), PlanFileKernel(RIGHT, ("loop",))))
    assert candidates(there, LEFT, RIGHT) == [(LEFT, ("scale",)), (RIGHT, ("loop",))]
    assert candidates(there, LEFT) is None
    assert candidates(None, LEFT, RIGHT) is None
    assert candidates(PlanFile(()), LEFT, RIGHT) is None
    assert candidates(PlanFile((PlanFileKernel(LEFT, ("scale", "another")),)), LEFT, RIGHT) is None


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (replace(LOOP, bodies=((GROW, SQUASH),)), "no kernel has operator"),
        (replace(LOOP, bodies=((GROW, GROW, SQUASH, END),)), "'grow' is in kernels 1 and 2"),
        (replace(LOOP, bodies=((GROW, SQUASH, replace(END, nodes=("sum", "scale"))),)), "no operator 'scale'"),
        (replace(LOOP, bodies=((GROW, SQUASH, END), ())), "bodies are those of one operator"),
        (replace(LOOP, target=LEFT), "bodies are those of one operator"),
        (replace(LOOP, bodies=((replace(GROW, branch=1), SQUASH, END),)), "in no branch"),
        (replace(LOOP, bodies=((replace(GROW, device="cpu"), SQUASH, END),)), "no devices are planned"),
        (replace(LOOP, bodies=((replace(GROW, bodies=((),)), SQUASH, END),)), "bodies are those of one operator"),
        (replace(LOOP, bodies=((replace(GROW, target="llvm -compiler=other"), SQUASH, END),)), "other"),
        (replace(LOOP, bodies=((GROW, SQUASH, replace(END, target=f"{HOST} -bodies=0")),)), "bodies"),
        (
            replace(LOOP, bodies=((GROW, SQUASH, replace(END, parts=(LabelledPart("p", ("grow",)),))),)),
            "does not fit",
        ),
        (
            replace(LOOP, bodies=((PlanFileKernel(LEFT, ("grow", "test")), PlanFileKernel(LEFT, ("squash", "sum"))),)),
            "feed each other|does not fit",
        ),
    ],
)
def test_a_plan_that_does_not_fit_the_bodies_is_refused(problem: Problem, loop: PlanFileKernel, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_of_file(problem, PlanFile((PlanFileKernel(LEFT, ("scale",)), loop)), "")


@pytest.mark.parametrize(
    "kernels",
    [
        None,
        "x",
        (5,),
        (replace(GROW, target=None),),  # type: ignore[arg-type]
        (replace(GROW, nodes="grow"),),  # type: ignore[arg-type]
        (replace(GROW, nodes=()),),
        (replace(GROW, tuned=b"x"),),  # type: ignore[arg-type]
        (replace(LOOP, bodies=1),),  # type: ignore[arg-type]
    ],
)
def test_a_plan_made_in_python_is_checked_as_one_from_a_file(problem: Problem, kernels: tuple[PlanFileKernel]) -> None:
    for targets in (None, [LEFT]):
        with pytest.raises(UsageError):
            options_and_menu(CompileOptions(plan=PlanFile(kernels)), targets, problem.toolchains)
