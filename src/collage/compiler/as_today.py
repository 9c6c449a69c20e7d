"""The last resort where no plan keeps the rule: the whole model on ONNX Runtime, which is what the user runs today.

It is never refused for its numbers. Only a model that ONNX Runtime itself does not run repeatably has no artefact.
"""

from __future__ import annotations

from collage._errors import ToolchainError, WrongAnswer
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.plans import lower
from collage.compiler.survey import Survey
from collage.graph import IndexSet, SubGraph
from collage.measure.session import MeasureSession
from collage.plan import Plan, PlannedKernel
from collage.status import Status

__all__ = ["as_today"]

_TODAY = "onnxruntime"


def as_today(survey: Survey, session: MeasureSession, finals: FinalComparison) -> FinalComparison | None:
    """Return the whole model on ONNX Runtime with a warning; None if the menu lacks it, or if it cannot be built.

    Args:
        survey: The model and the menu.
        session: Builds it.
        finals: The comparison in which every plan was wrong.

    Raises:
        WrongAnswer: Two runs of the original model differ by more than float arithmetic errs.
    """
    problem = survey.problem
    target = next((t for t in problem.menu if t.toolchain == _TODAY and not t.is_reduced), None)
    if target is None or problem.placement is not None or session.reference_model is None:
        return None
    if (differs := session.arbiter.differs_from_itself(session.reference_model, session.values.folder)) is not None:
        raise WrongAnswer(f"nothing runs the model repeatably: two runs of it on ONNX Runtime differ, {differs}")
    whole = SubGraph(problem.graph, IndexSet((1 << len(problem.graph)) - 1))
    plan = Plan(target.title, (PlannedKernel(whole, target, "whole"),), target)
    try:
        recipe = lower(problem, session, plan)
    except ToolchainError:
        return None
    reasons = {name: found.reason for name, found in finals.standings.items() if found.status is Status.WRONG}
    reason = reasons.get(plan.name) or next(iter(reasons.values()), None) or "every other plan is wrong"
    warning = f"the model is returned as ONNX Runtime runs it, since no other plan keeps the rule: {reason}"
    others = {name: found for name, found in finals.standings.items() if name != plan.name}
    return FinalComparison(recipe, plan, [plan], others, None, None, warning=warning)
