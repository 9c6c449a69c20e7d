"""The lab of a compilation: a surveyed model, and all that measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from collage.compiler.cost_table import CostTable
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.database import Database
from collage.measure.session import MeasureSession

__all__ = ["Lab"]


@dataclass(frozen=True)
class Lab:
    """All that a search and a comparison measure with. Functions that need several of its parts take the lab.

    Attributes:
        survey: The known facts about the model.
        session: Builds and measures kernels, and has the values of the reference run.
    """

    survey: Survey
    session: MeasureSession

    @property
    def problem(self) -> Problem:
        """The model, the menu and the options."""
        return self.survey.problem

    @property
    def database(self) -> Database:
        """The database that holds timings, facts and results."""
        return self.session.database

    @property
    def say(self) -> Callable[[str], None]:
        """Takes each line of progress."""
        return self.session.say

    @cached_property
    def costs(self) -> CostTable:
        """The costs of kernels of this survey. Only ``learn`` and what follows measure."""
        return CostTable(self.survey, self.session)
