"""If, Loop and Scan whose bodies are kernels of their own: the operator runs here, and calls them.

Cases that it cannot run raise: stacking tensors of unequal shapes, an empty result of unknown shape, bodies without
inputs. The host then runs the whole operator, as for every kernel that fails.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and its kin with NumPy
import numpy as np

from collage._errors import ToolchainError
from collage.runtime._device_chain import executor_of
from collage.runtime._executor import Step
from collage.system.codec import from_json, read_text, to_json
from collage.toolchains import Compiled, Kernel

__all__ = ["Body", "Constant", "ControlFlowKernel", "LoadKernel", "Program"]

Array = np.ndarray[Any, np.dtype[Any]]
LoadKernel = Callable[[Compiled], Kernel]
Record = Callable[[int, Mapping[str, Any]], None]
"""Called before each run of a body, with its number and the values that it reads, by name."""

_OPERATORS = ("If", "Loop", "Scan")
_MOST_BYTES = 64 << 20
"""Largest size of a program's file."""
_LOOP_OWN = 2
"""Inputs of a Loop before its states, and of its body: the number and the condition."""
_BRANCHES = 2


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that the operator or a body returns.

    Attributes:
        dtype: Name of the element type.
        shape: Its shape.
        data: Its bytes in base64.
    """

    dtype: str
    shape: tuple[int, ...]
    data: str

    @classmethod
    def of(cls, array: Array) -> Constant:
        """Return a constant with the values of an array."""
        return cls(array.dtype.name, array.shape, base64.b64encode(np.ascontiguousarray(array).tobytes()).decode())

    def array(self) -> Array:
        """Return the values.

        Raises:
            ValueError: The bytes are not those of such an array.
        """
        made = np.frombuffer(base64.b64decode(self.data, validate=True), np.dtype(self.dtype))
        return made.reshape(self.shape).copy()


@dataclass(frozen=True, slots=True)
class Body:
    """One body.

    Attributes:
        inputs: Names of its inputs.
        outputs: Names of the values that it returns: results of its kernels, its inputs, constants, or values from outside.
        reads: Names of the values from outside that its kernels read.
        kernels: Names of the inputs and of the outputs of each kernel, in the order in which they run.
        results: Element type and lengths of each output, None if a length is not known; None if nothing is.
        ranks: Number of axes of each input; None if it is not known.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    kernels: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    results: tuple[tuple[str, tuple[int | None, ...]] | None, ...]
    ranks: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The flow of values through an operator with bodies, between its kernels.

    Attributes:
        op_type: ``If``, ``Loop`` or ``Scan``.
        reads: Names of the operator's inputs; empty if one is absent.
        makes: Names of its outputs; empty if one is absent.
        bodies: Its bodies in order of attribute name: of an If the else branch comes first.
        constants: Constants by name.
        scanned: For a Scan: axis and direction of each scanned input, and of each stacked output.
    """

    op_type: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    bodies: tuple[Body, ...]
    constants: Mapping[str, Constant]
    scanned: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = field(default=((), ()))

    def __post_init__(self) -> None:
        if self.op_type not in _OPERATORS or len(self.bodies) != (_BRANCHES if self.op_type == "If" else 1):
            raise ValueError(f"{self.op_type!r} has {len(self.bodies)} bodies")

    def save(self, path: Path) -> None:
        """Write the program to a file."""
        path.write_text(json.dumps(to_json(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Program:
        """Return the program in a file.

        Raises:
            ToolchainError: It is not one.
        """
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            return from_json(cls, read_text(path.read_bytes()), longest_text=_MOST_BYTES)
        except ValueError as error:
            raise ToolchainError(f"{path.name} is not a program of control flow: {str(error)[:200]}") from error


class ControlFlowKernel:
    """An operator with bodies whose kernels are loaded.

    Args:
        program: The steps of the operator.
        compiled: Its kernels, and the names of its inputs and outputs.
        load: Loads one of its kernels.

    Attributes:
        record: Called before each run of a body; None in the usual case.

    Raises:
        ToolchainError: The program does not fit the kernels.
    """

    reuses_outputs = False
    allocates_outputs = True

    def __init__(self, program: Program, compiled: Compiled, load: LoadKernel) -> None:
        if len(compiled.parts) != sum(len(body.kernels) for body in program.bodies):
            raise ToolchainError(f"{len(compiled.parts)} kernels are not those of a {program.op_type}")
        self.record: Record | None = None
        self._program = program
        self._inputs, self._outputs = compiled.inputs, compiled.outputs
        try:
            self._constants = {name: constant.array() for name, constant in program.constants.items()}
            parts = iter(compiled.parts)
            known = {*self._inputs, *self._constants}
            self._bodies = [
                _LoadedBody(body, [next(parts) for _ in body.kernels], load, known) for body in program.bodies
            ]
            if missing := {*filter(None, program.reads)} - known:
                raise ValueError(f"nothing makes {min(missing)!r}")
            self._results = [program.makes.index(name) for name in self._outputs]
        except (ValueError, TypeError) as error:
            raise ToolchainError(f"no program of these kernels: {str(error)[:200]}") from error
        self._run = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[program.op_type]

    @property
    def bodies(self) -> int:
        """The number of its bodies."""
        return len(self._bodies)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Runs the operator; see ``Kernel``."""
        values = {**self._constants, **dict(zip(self._inputs, inputs, strict=True))}
        made = self._run([values[name] if name else None for name in self._program.reads], values)
        return _apart([made[position] for position in self._results], list(values.values()))

    def _if(self, given: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        return self._body(1 if _truth(given[0]) else 0, (), values)

    def _loop(self, given: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        most, condition, *states = given
        trips = None if most is None else int(np.reshape(most, -1)[0])
        goes_on, count = condition is None or _truth(condition), 0
        body = self._program.bodies[0]
        stacked: list[list[Any]] = [[] for _ in body.outputs[1 + len(states) :]]
        number_axes, condition_axes = (body.ranks[i] or 0 for i in range(_LOOP_OWN))
        while goes_on and (trips is None or count < trips):
            number = np.full((1,) * number_axes, count, np.int64)
            made = self._body(0, (number, np.full((1,) * condition_axes, True), *states), values)
            goes_on = _truth(made[0])
            states = list(made[1 : 1 + len(states)])
            for elements, element in zip(stacked, made[1 + len(states) :], strict=True):
                elements.append(element)
            count += 1
        results = body.results[1 + len(states) :]
        return [*states, *(_stacked(each, result) for each, result in zip(stacked, results, strict=True))]

    def _scan(self, given: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        ways_in, ways_out = self._program.scanned
        body = self._program.bodies[0]
        states = list(given[: len(given) - len(ways_in)])
        scanned = [_along(x, axis) for x, (axis, _) in zip(given[len(states) :], ways_in, strict=True)]
        lengths = {len(x) for x in scanned}
        if len(lengths) != 1:
            raise ToolchainError(f"a Scan over {sorted(lengths)} elements")
        (length,) = lengths
        stacked: list[list[Any]] = [[] for _ in ways_out]
        for step in range(length):
            # The dots keep an element of a vector an array, of texts too.
            elements = [
                x[length - 1 - step if way else step, ...] for x, (_, way) in zip(scanned, ways_in, strict=True)
            ]
            made = self._body(0, (*states, *elements), values)
            states = list(made[: len(states)])
            for found, element in zip(stacked, made[len(states) :], strict=True):
                found.append(element)
        results = []
        for found, (axis, way), result in zip(stacked, ways_out, body.results[len(states) :], strict=True):
            whole = _stacked(found[::-1] if way else found, result)
            results.append(np.ascontiguousarray(np.moveaxis(whole, 0, axis)) if axis else whole)
        return [*states, *results]

    def _body(self, number: int, inputs: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        body = self._bodies[number]
        if self.record is not None:
            outside = {name: values[name] for name in body.reads}
            self.record(number, {**outside, **dict(zip(body.inputs, inputs, strict=True))})
        return body.run(inputs, values)


class _LoadedBody:
    """A body whose kernels are loaded, one executor over all of them."""

    def __init__(self, body: Body, parts: Sequence[Compiled], load: LoadKernel, known: set[str]) -> None:
        self.inputs, self.reads = body.inputs, body.reads
        made, steps = {*body.inputs, *body.reads}, []
        if missing := {*body.reads} - known:
            raise ValueError(f"nothing outside makes {min(missing)!r}")
        for number, (part, (inputs, outputs)) in enumerate(zip(parts, body.kernels, strict=True)):
            if (len(inputs), len(outputs)) != (len(part.inputs), len(part.outputs)) or not made.issuperset(inputs):
                raise ValueError(f"kernel {number} of a body does not take, or make, what it was compiled for")
            if not made.isdisjoint(outputs) or len(set(outputs)) != len(outputs):
                raise ValueError(f"kernel {number} of a body makes a value that exists already")
            steps.append(Step(f"body kernel {number}", load(part), inputs, outputs))
            made.update(outputs)
        computed = dict.fromkeys(name for _, outputs in body.kernels for name in outputs)
        wanted = [name for name in dict.fromkeys(body.outputs) if name in computed]
        # Every other output is handed on as it is: an executor would copy it.
        if missing := {*body.outputs} - made - known:
            raise ValueError(f"nothing makes {min(missing)!r}")
        self._sources = [(name in computed, wanted.index(name) if name in computed else name) for name in body.outputs]
        self._executor = executor_of(steps, [*body.inputs, *body.reads], wanted, None) if steps else None

    def run(self, inputs: Sequence[Any], values: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of one run. Inputs, constants and values from outside are returned without a copy.

        Raises:
            ToolchainError: A tensor without elements is given to kernels.
        """
        made: Sequence[Any] = ()
        if self._executor is not None:
            given = [*inputs, *(values[name] for name in self.reads)]
            if any(isinstance(value, np.ndarray) and not value.size for value in given):
                # Toolchains get nothing wrong as often as nothing.
                raise ToolchainError("a body was given a tensor without elements")
            made = self._executor.run(given)
        handed = {**values, **dict(zip(self.inputs, inputs, strict=True))} if len(made) < len(self._sources) else {}
        return [made[source] if is_made else handed[source] for is_made, source in self._sources]  # type: ignore[index]


def _truth(value: Any) -> bool:
    return bool(np.reshape(value, -1)[0])


def _along(x: Array, axis: int) -> Array:
    """Return a tensor whose slices along an axis lie one after the other."""
    return np.ascontiguousarray(np.moveaxis(x, axis, 0)) if axis % x.ndim else x


def _stacked(elements: Sequence[Any], result: tuple[str, tuple[int | None, ...]] | None) -> Array:
    """Return tensors of equal shape as one.

    Raises:
        ToolchainError: Shapes differ, or there are no tensors and their shape is not known.
    """
    if elements:
        try:
            return np.stack(elements)
        except ValueError as error:
            raise ToolchainError(f"results of iterations cannot be stacked: {error}") from error
    if result is None or None in result[1]:
        raise ToolchainError("no iteration ran, and nothing says which shape its result would have")
    dtype, lengths = result
    return np.zeros((0, *(length for length in lengths if length is not None)), dtype)


def _apart(results: list[Any], others: Sequence[Any]) -> list[Any]:
    """Return results that share no memory with each other, with inputs or with constants."""
    for position, made in enumerate(results):
        taken = [*others, *results[:position]]
        if isinstance(made, np.ndarray) and any(
            isinstance(x, np.ndarray) and np.may_share_memory(made, x) for x in taken
        ):
            results[position] = made.copy()
    return results
