"""External functions: a registry of library functions, by label, that native kernels may call.

A library offers functions. Each has a label, a pattern that says which operators it can stand for, and a way to bind it
to such operators. Binding packs their constants once. The bound function is called with views of the kernel's memory.
``docs/toolchains.md`` has an example under "Functions of libraries inside native kernels".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeAlias

from collage.toolchains import Unsupported, UsageError
from collage.toolchains.sdk.model_files import elem_type, one_line

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "GROUP",
    "NATIVE",
    "BoundFunction",
    "ExternCall",
    "ExternFunction",
    "ExternLibraries",
    "ExternLibrary",
    "extern_libraries",
]

GROUP = "collage.extern_functions"
"""The entry-point group: name of the library = ``module:function``, which returns an ``ExternLibrary`` or raises."""

NATIVE = "native"
"""The label of operators that a function could compute, but native code does."""

BoundFunction: TypeAlias = Callable[..., None]
"""Called with the operators' varying inputs, in the order in which they are first read, and last with the output, which it
fills. All are tensors in row-major order that speak DLPack; nothing is copied, and nothing may be kept.
"""


@dataclass(frozen=True, slots=True)
class ExternFunction:
    """A function of a library that can compute some operators.

    Attributes:
        label: The Composite label, ``library.function``.
        pattern: The operators: a pattern of ``collage.pattern`` whose inner results have no other use.
        bind: Packs the constants, given these operators as a standalone model (constants are its initializers) and the
            number of threads. May raise ``Unsupported``.
        refusal: Returns the reason why it cannot compute matching operators, or None.
        types: Element types, as ONNX names them, of everything that varies.
        channels_last: True if tensors of three or more dimensions are [N, H, W, C] in memory, and so to be handed over,
            where the model says [N, C, H, W]. If two such functions follow each other, nothing is transposed.
    """

    label: str
    pattern: Any
    bind: Callable[[ir.Model, int], BoundFunction]
    refusal: Callable[[Sequence[ir.Node]], str | None] = lambda nodes: None
    types: frozenset[str] = frozenset({"FLOAT"})
    channels_last: bool = False

    def why_not(self, nodes: Sequence[ir.Node]) -> str | None:
        """Return why it cannot replace the given operators, or None if it can. They match its pattern."""
        inputs, outputs = _border(nodes)
        if len(outputs) != 1:
            return f"{self.label} has one output, not {len(outputs)}"
        for value in (*inputs, *outputs):
            dtype = elem_type(value)
            if dtype is None or dtype.name not in self.types:
                return f"{self.label} computes in {_listed(self.types)}; {value.name!r} is {_named(dtype)}"
            if value.shape is None or not value.shape.is_static():
                return f"{self.label} is called with static shapes; {value.name!r} is {value.shape}"
            if 0 in value.shape:
                return f"{self.label} is not called for nothing; {value.name!r} is {value.shape}"
        return self.refusal(nodes)


@dataclass(frozen=True, slots=True)
class ExternLibrary:
    """A library and its functions.

    Attributes:
        name: Begins all its labels.
        build: Everything that must be equal for timings to be comparable, such as its version.
        functions: Its functions in order of preference: those that compute more operators first.
    """

    name: str
    build: str
    functions: tuple[ExternFunction, ...]

    def __post_init__(self) -> None:
        for function in self.functions:
            if self.name == NATIVE or not function.label.startswith(f"{self.name}."):
                raise UsageError(f"library {self.name!r} cannot offer {function.label!r}; write {self.name}.FUNCTION")


class ExternLibraries:
    """Libraries by name, found by entry point.

    A library whose entry point fails counts as absent: ``broken`` says why.
    """

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        self._libraries: dict[str, ExternLibrary] = {}
        self.broken: dict[str, str] = {}
        for point in sorted(entry_points(group=GROUP) if points is None else points, key=lambda point: point.name):
            try:
                self.add(point.load()())
            except Exception as error:
                self.broken[point.name] = f"{type(error).__name__}: {one_line(error)}"

    def add(self, library: ExternLibrary) -> None:
        """Register a library in this process only, for tests and notebooks; workers find theirs by entry point."""
        self._libraries[library.name] = library

    def __iter__(self) -> Iterator[ExternLibrary]:
        return iter(self._libraries.values())

    def functions(self) -> tuple[ExternFunction, ...]:
        """All functions, library by library."""
        return tuple(function for library in self for function in library.functions)

    def get(self, label: str) -> ExternFunction:
        """The function with a label.

        Raises:
            Unsupported: There is none here.
        """
        for function in self.functions():
            if function.label == label:
                return function
        why = self.broken.get(label.partition(".")[0])
        raise Unsupported(f"extern: no function is called {label!r} here" + (f" ({why})" if why else ""))


@functools.cache
def extern_libraries() -> ExternLibraries:
    """The libraries of this process."""
    return ExternLibraries()


def _border(nodes: Sequence[ir.Node]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the inputs that are not constant, and the values that are used outside."""
    inside = set(nodes)
    used = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    inputs = [value for value in used if value.producer() not in inside and value.const_value is None]
    made = [value for node in nodes for value in node.outputs]
    outputs = [v for v in made if v.is_graph_output() or any(user not in inside for user, _ in v.uses())]
    return inputs, outputs


def _listed(types: Iterable[str]) -> str:
    return " or ".join(sorted(name.lower() for name in types))


def _named(dtype: ir.DataType | None) -> str:
    return "of unknown type" if dtype is None else dtype.name.lower()


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A call of a function in a kernel.

    Attributes:
        symbol: Name of the function in the kernel's code.
        function: The function.
        model: The operators that it computes, with their constants.
    """

    symbol: str
    function: ExternFunction
    model: ir.Model
