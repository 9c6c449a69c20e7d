"""Explanations of artefacts: nothing is loaded and nothing is built for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collage._errors import ArtefactError
from collage.explain import RECORD
from collage.report import KernelRow
from collage.runtime._manifest import read_recipe
from collage.runtime._open import glanced
from collage.runtime._recipe import Recipe

if TYPE_CHECKING:
    from collage.explain import Explanation

__all__ = ["explain_artefact", "explanation_of", "kernel_rows"]


def explanation_of(recipe: Recipe, folder: Path) -> Explanation:
    """Return the explanation of a recipe whose files are in a folder.

    Raises:
        ArtefactError: There is no record of what was tried, or it is damaged.
    """
    # Late: hardly a process that runs a model explains it.
    from collage.explain import Explanation, read_record

    record = read_record(folder)
    if record is None:
        raise ArtefactError("there is no record of what was tried; compile or build the model again")
    return Explanation.of(record, recipe.report, kernel_rows(recipe))


def kernel_rows(recipe: Recipe) -> list[KernelRow]:
    """Return the kernels of a recipe as the report has them; a partitioned model that was built has no report of them."""
    rows = {row.name: row for row in recipe.report.kernels}
    return [
        rows.get(kernel.name) or KernelRow(kernel.name, kernel.target, device=kernel.device, branch=kernel.branch)
        for kernel in recipe.kernels
    ]


def explain_artefact(path: Path) -> Explanation:
    """Return the explanation of an artefact, of which only the manifest and the record are read and verified.

    Of a pack, the plan that this machine takes is explained.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: It is not an artefact, or one of the two was changed.
    """
    with glanced(path) as (folder, _):
        return explanation_of(read_recipe(folder, RECORD), folder)
