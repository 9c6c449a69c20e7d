"""The first operator at which a toolchain differs from the reference by more than the noise of float arithmetic.

The model is cut after its n-th operator, in an order in which operators can run. The shortest such beginning that is wrong ends
with the operator that shows the difference, and is found by bisection. Then the kernel is made small: operators before that one
are left out, and their values come from the reference, as long as the kernel is still wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from collage._errors import ToolchainError, UsageError
from collage.compiler.opening import open_model
from collage.compiler.refusals import check_reference
from collage.compiler.survey import Survey
from collage.database.database import Database
from collage.graph import IndexSet, SubGraph
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.session import MeasureSession
from collage.options import CompileOptions, compile_options
from collage.system.scratch import scratch
from collage.target import Target, TargetLike
from collage.toolchains import Registry, choose_menu, registry

__all__ = ["Difference", "first_differences"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of one target.

    Attributes:
        target: Printed form.
        verdict: ``right``, ``wrong``, or ``failed`` if no beginning of the model could be compared.
        reason: The difference of the whole model, or the reason that it could not be built or run.
        node: Name of the operator that shows the difference; likewise:
        operator: Its type.
        kernel: Names of the operators of the smallest kernel that was found to be wrong.
        difference: The difference of that kernel.
        folder: Folder of the kernel as ``kernel.onnx``, its ``inputs.npz`` and the ``reference.npz``.
    """

    target: str
    verdict: str
    reason: str | None = None
    node: str | None = None
    operator: str | None = None
    kernel: tuple[str, ...] = ()
    difference: str | None = None
    folder: str | None = None

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def first_differences(
    source: Any,
    targets: Iterable[TargetLike] | None = None,
    folder: Path | None = None,
    *,
    options: CompileOptions | Mapping[str, Any] | None = None,
    toolchains: Registry | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Difference]:
    """Return the first difference of each target from the reference. Nothing is timed.

    Args:
        source: As for ``compile``.
        targets: The targets; None is the default menu.
        folder: The folder to write wrong kernels to; None writes none. It does not exist, or is empty.
        options: As for ``compile``: inputs, and lengths of dimensions.
        toolchains: As for ``compile``.
        say: Called with each line of progress.

    Raises:
        UsageError: The folder holds something.
        ModelError: The source is not a valid model, or cannot be run.
    """
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder")
    options, toolchains = compile_options(options), toolchains or registry()
    with ExitStack() as stack:
        workspace, database = stack.enter_context(scratch()), stack.enter_context(Database(options.db))
        menu = choose_menu(targets, toolchains)
        survey, session, _ = open_model(
            source, menu, options, toolchains, workspace, database, stack, workers=None, say=say, is_timed=False
        )
        check_reference(survey, session)
        return [_Bisection(survey, session, target, say).result(folder) for target in menu]


class _Bisection:
    """The search for the first difference of one target."""

    def __init__(self, survey: Survey, session: MeasureSession, target: Target, say: Callable[[str], None]) -> None:
        self._problem, self._session, self._target, self._say = survey.problem, session, target, say
        self._estimator = MeasuringCostEstimator(session, 0)
        self._failure: str | None = None

    def result(self, folder: Path | None) -> Difference:
        """Return the difference, and write its kernel."""
        count, target = len(self._problem.graph), str(self._target)
        whole = self._why_wrong(0, count)
        if whole is None and self._failure is None:
            return Difference(target, "right")
        # If the whole model fails, a part of it may be wrong: each operator is looked at alone.
        end = self._shortest_beginning(count) if whole is not None else self._first_alone(count)
        if end is None:
            return Difference(target, "failed", self._failure)
        start, difference = self._smallest(end)
        node = self._problem.graph.node(end - 1)
        names = tuple(str(self._problem.graph.node(i).name) for i in range(start, end))
        place = None if folder is None else str(self._write(start, end, folder))
        return Difference(
            target, "wrong", whole or self._failure, str(node.name), node.op_type, names, difference, place
        )

    def _shortest_beginning(self, count: int) -> int:
        """Return the number of operators of the shortest beginning that is wrong, if a longer one than that is wrong too."""
        right, wrong = 0, count
        while wrong - right > 1:
            middle = (right + wrong) // 2
            self._say(f"{self._target.short}: the first difference lies in operators {right + 1} to {wrong} of {count}")
            if self._why_wrong(0, middle) is None:
                right = middle
            else:
                wrong = middle
        return wrong

    def _first_alone(self, count: int) -> int | None:
        """Return the number of operators up to the first that is wrong alone; None if none is."""
        for end in range(1, count + 1):
            self._say(f"{self._target.short}: operator {end} of {count} alone")
            if self._why_wrong(end - 1, end) is not None:
                return end
        return None

    def _smallest(self, end: int) -> tuple[int, str]:
        """Return the start of a small wrong kernel that ends with an operator, and its difference."""
        right, width = 0, 1
        while width < end and self._why_wrong(end - width, end) is None:
            right, width = width, 2 * width
        wrong = min(width, end)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (middle, wrong) if self._why_wrong(end - middle, end) is None else (right, middle)
        return end - wrong, self._why_wrong(end - wrong, end) or "it was wrong once, and is right now"

    def _why_wrong(self, start: int, end: int) -> str | None:
        """Return why the kernel of a range of operators is wrong; None if it is right, or cannot be built or run."""
        try:
            return self._estimator.why_wrong(self._kernel(start, end), self._target)
        except ToolchainError as error:
            self._failure = " ".join(str(error).split())[:400]
            return None

    def _kernel(self, start: int, end: int) -> ir.Model:
        sub_graph = SubGraph(self._problem.graph, IndexSet.range(start, end))
        return self._problem.kernels.model(sub_graph, self._target)

    def _write(self, start: int, end: int, folder: Path) -> Path:
        """Write a kernel, its inputs and the reference values of its outputs."""
        kernel, values = self._kernel(start, end), self._session.values
        place = folder / re.sub(r"[^\w=.]+", "_", self._target.short).strip("_")
        place.mkdir(parents=True)
        # Weights of any size are written into the file, up to the 2 GiB that it can have; else beside it.
        onnx.save(onnx.load(self._session.written(kernel)), place / "kernel.onnx")
        for file, ports in (("inputs.npz", kernel.graph.inputs), ("reference.npz", kernel.graph.outputs)):
            stored = {str(value.name): values.get(str(value.name)) for value in ports if str(value.name) in values}
            # Texts are left out: NumPy would write them as programs.
            arrays: dict[str, Any] = {name: array for name, array in stored.items() if array.dtype.kind != "O"}
            np.savez(place / file, **arrays)
        return place
