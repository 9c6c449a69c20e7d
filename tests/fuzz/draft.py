"""Random valid ONNX models by seed.

A model grows operator by operator. Each is drawn from recipes (those of operators, moves and layers, in their files), reads
what is there already, and is computed at once by ONNX's reference implementation, so that what comes next knows shapes and
values. What would make a comparison unfair is taken back: values that are no numbers or are large, and operators of which
rounding in the last digit would change the answer (ties in TopK, halves in Round, comparisons of what is nearly equal).
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  so that NumPy knows bfloat16 by name
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = Any
FLOATS = ("float32", "float16", "float64")
INTEGERS = ("int64", "int32", "int8", "uint8")
OPSETS = range(13, 27)
"""From the oldest set that the front door leaves as it is to the newest that both references read."""
LARGEST_FLOAT, LARGEST_INTEGER = 1e3, 1e6
NOISE = {"float32": 1e-5, "float16": 2e-3, "float64": 1e-9}
WIDE = (7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96)
"""Lengths around those of vectors, tiles and blocks of channels."""
WIDE_SIZES = (5, 7, 8, 9, 14, 16, 17, 21)
"""Heights and widths of images among them."""
MOST_DRAWN, MOST_COMPUTED = 30_000, 60_000
"""Elements of wide values: ONNX's reference implementation is written in Python."""
AMPLIFIED = 30.0
"""How much larger noise may become in one operator."""
IR_VERSION = 10
_MOST_SMALL = 20_000
_SMALL = 5


Step = tuple[Any, ...]
"""A step of ``sequences.py``: its name, and numbers."""


class Rejected(Exception):
    """What a recipe made is no good here; another one is drawn."""


@dataclass(frozen=True)
class Sample:
    """A model, and what it is to be run on.

    Attributes:
        model: The model.
        feeds: Inputs by name.
        steps: What its executables go through, see ``sequences.py``.
    """

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    steps: Sequence[Step] = ()


@dataclass
class Draft:
    """A model that grows.

    Attributes:
        rng: Decides everything but numbers.
        numbers: Makes up numbers.
        opset: The operator set.
        dtype: What floating-point values are of.
        values: Every value by name, as the reference implementation computes it.
        inputs: Names of graph inputs.
        constants: Names of initializers.
        nodes: Operators so far.
        varies: Whether shapes depend on what is in the inputs.
        wide: Whether most lengths are those that kernels have vectors, tiles and threads for; otherwise all are small.
    """

    rng: random.Random
    numbers: np.random.Generator
    opset: int
    dtype: str
    values: dict[str, Array] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    varies: bool = False
    wide: bool = False

    def maybe(self, share: float = 0.5) -> bool:
        """Yes in this share of cases."""
        return self.rng.random() < share

    def array(self, name: str) -> Array:
        """What a value is."""
        return self.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a value."""
        return tuple(self.values[name].shape)

    def rank(self, name: str) -> int:
        """The number of axes of a value."""
        return len(self.shape(name))

    def sizes(self, rank: int, least: int = 1, most: int = 5) -> tuple[int, ...]:
        """A random shape; one-size axes often, empty ones seldom."""
        sizes = [1 if self.maybe(0.1) else self._length(least, most) for _ in range(rank)]
        if rank and least == 1 and self.maybe(0.02):
            sizes[self.rng.randrange(rank)] = 0
        while math.prod(sizes) > MOST_DRAWN:
            sizes[sizes.index(max(sizes))] //= 2
        return tuple(max(size, least) if size else 0 for size in sizes)

    def _length(self, least: int, most: int) -> int:
        if not self.wide or self.maybe(0.3):
            return self.rng.randint(least, most)
        return self.rng.choice([n for n in (WIDE if most <= _SMALL else WIDE_SIZES) if n >= least])

    def width(self, *few: int) -> int:
        """One of a few numbers of channels, columns or rows; where lengths are wide, mostly a wide one instead."""
        return self.rng.choice(WIDE if self.wide and self.maybe(0.7) else few)

    def axis(self, name: str) -> int:
        """One of a value's axes, counted from the front or the back."""
        rank = self.rank(name)
        if rank == 0:
            raise Rejected
        return self.rng.randrange(-rank, rank)

    def axes(self, name: str, least: int = 1) -> list[int]:
        """Some of a value's axes, in any order, counted from the front or the back."""
        rank = self.rank(name)
        if rank < least:
            raise Rejected
        chosen = self.rng.sample(range(rank), self.rng.randint(least, rank))
        return [axis - rank if self.maybe(0.4) else axis for axis in chosen]

    def made_up(self, shape: Sequence[int], dtype: str, low: float = -2, high: float = 2) -> Array:
        """Random numbers; for integers the range is whole and widened a little."""
        if dtype == "bool":
            return np.asarray(self.numbers.random(shape) < 0.5)
        if np.issubdtype(np.dtype(dtype), np.integer):
            low = 0 if dtype.startswith("u") else 2 * low
            return np.asarray(self.numbers.integers(int(low), int(2 * high), shape, endpoint=True), dtype)
        return np.asarray(self.numbers.uniform(low, high, shape), dtype)

    def constant(self, array: Array, dtype: str | None = None) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(name)
        self.values[name] = np.asarray(array, dtype)
        return name

    def graph_input(self, array: Array) -> str:
        """A graph input of this value."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.values[name] = array
        return name

    def how(self, numbers: Sequence[int] | Array, dtype: str = "int64") -> str:
        """An input that says how (axes, a shape): a constant, or seldom a graph input."""
        array = np.asarray(numbers, dtype)
        if self.maybe(0.96):
            return self.constant(array)
        self.varies = True
        return self.graph_input(array)

    def weight(self, shape: Sequence[int], dtype: str | None = None, low: float = -1, high: float = 1) -> str:
        """A parameter: a constant, or now and then a graph input."""
        array = self.made_up(shape, dtype or self.dtype, low, high)
        return self.constant(array) if self.maybe(0.85) else self.graph_input(array)

    def pick(
        self,
        rank: int | Sequence[int] | None = None,
        dtypes: Sequence[str] | None = None,
        where: Callable[[Array], bool] = lambda _: True,
        shape: Callable[[int], Sequence[int]] | None = None,
    ) -> str:
        """A value that fits, mostly one that was computed lately; or else a new graph input of such a rank."""
        ranks = (rank,) if isinstance(rank, int) else tuple(rank or range(5))
        allowed = tuple(dtypes or (self.dtype,))
        fitting = [
            name
            for name, x in self.values.items()
            if name not in self.constants and x.dtype.name in allowed and x.ndim in ranks and where(x)
        ]
        if fitting and self.maybe(0.85):
            return self.rng.choice(fitting[-3:])
        chosen = self.rng.choice(ranks if rank is not None else (1, 2, 2, 3, 3, 4, 4, 0))
        x = self.made_up((shape or self.sizes)(chosen), self.rng.choice(allowed))
        if not where(x):
            raise Rejected
        return self.graph_input(x)

    def image(self, spatial: int | None = None, dtypes: Sequence[str] | None = None, least: int = 3) -> str:
        """Something of the shape [batch, channels, sizes ...] that is large enough for a window."""
        axes = spatial or self.rng.choice((1, 2, 2, 2, 3))

        def sizes(rank: int) -> Sequence[int]:
            ahead = (self.rng.choice((1, 1, 2)), self.width(1, 2, 3, 4, 6, 8))
            behind = list(self.sizes(axes, least + 1, 8))
            while math.prod((*ahead, *behind)) > MOST_DRAWN and max(behind) > least + 1:
                behind[behind.index(max(behind))] -= 1
            return (*ahead, *behind)

        return self.pick(axes + 2, dtypes, lambda x: min(x.shape[2:]) >= least and x.size > 0, sizes)

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: int = 1, captured: Sequence[str] = (), **attributes: Any
    ) -> list[str]:
        """Appends an operator and computes it.

        Args:
            op_type: Operator.
            inputs: Names of its inputs, "" for one left out.
            outputs: The number of its outputs.
            captured: Values that its bodies read from outside.
            attributes: Attributes; those that are None are left out.

        Returns:
            Names of its outputs.

        Raises:
            Rejected: It cannot be computed, or a comparison would not be fair.
        """
        names = [f"v{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        given = {name: value for name, value in attributes.items() if value is not None and value != []}
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        node = helper.make_node(op_type, inputs, names, name=f"n{len(self.nodes)}", **given)
        self.append([node], list(dict.fromkeys([*filter(None, inputs), *captured])), names)
        return names

    def append(self, nodes: Sequence[onnx.NodeProto], read: Sequence[str], names: Sequence[str]) -> None:
        """Appends operators as one and computes them: what they hand each other need be no tensor.

        Args:
            nodes: Operators in order.
            read: Names of the values that they read.
            names: Names of the values that they make, but for those that others of them read.

        Raises:
            Rejected: As for one.
        """
        run = self._evaluator(nodes, read, names)
        computed = run({name: self.values[name] for name in read})
        for x in computed:
            _check_sane(x, MOST_COMPUTED if self.wide else _MOST_SMALL)
        for _ in range(2):
            self._check_steady(run, read, computed)
        self._check_valid(nodes, read, dict(zip(names, computed, strict=True)))
        self.values.update(zip(names, computed, strict=True))
        self.nodes.extend(nodes)

    def _evaluator(
        self, nodes: Sequence[onnx.NodeProto], read: Sequence[str], names: Sequence[str]
    ) -> Callable[[Mapping[str, Array]], list[Array]]:
        inputs = [typed(name, self.values[name], fixed=True) for name in read]
        graph = helper.make_graph(nodes, "few", inputs, [onnx.ValueInfoProto(name=name) for name in names])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                evaluator = ReferenceEvaluator(in_opset(graph, self.opset))
        except Exception as error:
            raise Rejected from error

        def run(feeds: Mapping[str, Array]) -> list[Array]:
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return [np.asarray(y) for y in evaluator.run(None, dict(feeds))]
            except Exception as error:
                raise Rejected from error

        return run

    def _check_valid(self, nodes: Sequence[onnx.NodeProto], read: Sequence[str], computed: Mapping[str, Array]) -> None:
        """Refuses what ONNX's checker or its shape inference does not agree to."""
        known = [typed(name, self.values[name], fixed=True) for name in read if name not in self.constants]
        weights = [numpy_helper.from_array(self.values[name], name) for name in read if name in self.constants]
        made = [typed(name, y, fixed=True) for name, y in computed.items()]
        graph = helper.make_graph(nodes, "few", known, made, weights)
        try:
            onnx.checker.check_model(in_opset(graph, self.opset), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise Rejected from error

    def _check_steady(
        self, run: Callable[[Mapping[str, Array]], list[Array]], read: Sequence[str], computed: Sequence[Array]
    ) -> None:
        """Refuses operators whose answer hangs on the last digits of what they read."""
        floats = [n for n in read if n not in self.constants and self.values[n].dtype.name in NOISE]
        if not floats:
            return
        noise = max(NOISE[self.values[name].dtype.name] for name in floats)
        feeds = {name: self.values[name] for name in read}
        for name in floats:
            x = feeds[name]
            shaken = x * (1 + noise * self.numbers.uniform(-1, 1, x.shape)) + noise * self.numbers.uniform(
                -1, 1, x.shape
            )
            feeds[name] = np.asarray(shaken).astype(x.dtype)
        for x, y in zip(computed, run(feeds), strict=True):
            if x.shape != y.shape or x.dtype != y.dtype:
                raise Rejected
            if x.dtype.kind in "iub":
                if not np.array_equal(x, y):
                    raise Rejected
            elif x.size and x.dtype.name in NOISE:
                gap = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
                if not gap <= AMPLIFIED * max(noise, NOISE[x.dtype.name]) * max(float(np.abs(x).max()), 0.01):
                    raise Rejected

    @contextmanager
    def attempt(self) -> Any:
        """Takes everything back where what is inside is rejected."""
        before = dict(self.values), list(self.inputs), list(self.constants), list(self.nodes), self.varies
        try:
            yield
        except Rejected:
            self.values, self.inputs, self.constants, self.nodes, self.varies = before

    def model(self) -> onnx.ModelProto:
        """The model; its outputs are what nothing reads, and now and then more."""
        read = set(names_read(self.nodes))
        made = [name for node in self.nodes for name in node.output if name in self.values]
        outputs = [n for n in made if n not in read or (self.maybe(0.1) and self.values[n].dtype.name in TYPES)]
        inputs = [name for name in self.inputs if name in read]
        symbolic = self.maybe(0.12) and not any(0 in self.shape(name) for name in inputs)
        named = self.rng.choice([n for n in inputs if self.rank(n)] or [None]) if symbolic else None
        fixed = named is None and not self.varies
        graph = helper.make_graph(
            self.nodes,
            "random",
            [typed(name, self.values[name], True, "N" if name == named else None) for name in inputs],
            [typed(name, self.values[name], fixed) for name in outputs],
            [numpy_helper.from_array(self.values[name], name) for name in self.constants if name in read],
        )
        return in_opset(graph, self.opset)


TYPES = (*FLOATS, *INTEGERS, "bool", "int16", "uint16", "uint32", "uint64")
"""Types of graph inputs and outputs: what NumPy has itself."""


def typed(name: str, x: Array, fixed: bool, first: str | None = None) -> onnx.ValueInfoProto:
    """Name, type and shape of a value; without ``fixed`` only the number of axes."""
    sizes: list[int | str | None] = list(x.shape) if fixed else [None] * x.ndim
    if first is not None:
        sizes[0] = first
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), sizes)


def in_opset(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """A model of a graph."""
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def names_read(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Names that nodes and their bodies read."""
    found: list[str] = []
    for node in nodes:
        found += node.input
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += [*names_read(attribute.g.node), *(value.name for value in attribute.g.output)]
    return found


def _check_sane(x: Array, most: int) -> None:
    if x.dtype.kind == "f" and not (np.isfinite(x).all() and np.abs(x).max(initial=0) < LARGEST_FLOAT):
        raise Rejected
    if x.dtype.kind in "iu" and x.size and np.abs(x.astype(np.float64)).max() > LARGEST_INTEGER:
        raise Rejected
    if x.size > most or x.ndim > 6:
        raise Rejected


@dataclass(frozen=True)
class Recipe:
    """A way to append operators.

    Attributes:
        grow: Appends them, or raises ``Rejected``.
        since: The first operator set that has them.
    """

    grow: Callable[[Draft], object]
    since: int


RECIPES: list[Recipe] = []


def recipe(since: int = 13, times: int = 1) -> Callable[[Callable[[Draft], object]], Callable[[Draft], object]]:
    """Registers a recipe; it is drawn ``times`` as often as others."""

    def register(grow: Callable[[Draft], object]) -> Callable[[Draft], object]:
        RECIPES.extend([Recipe(grow, since)] * times)
        return grow

    return register


def sample(seed: int, wide: bool = False, single: bool = False) -> Sample:
    """Return the model of a seed, the same every time.

    Args:
        seed: Which one.
        wide: Lengths are such as kernels have vectors, tiles and threads for (see ``Draft``).
        single: As few operators as a recipe makes, and each type of numbers as often as others.
    """
    rng = random.Random(seed)
    dtype = rng.choices(FLOATS, (0.34, 0.33, 0.33) if single else (0.88, 0.06, 0.06))[0]
    draft = Draft(rng, np.random.default_rng(seed), rng.choice(OPSETS), dtype, wide=wide)
    able = [each for each in RECIPES if each.since <= draft.opset]
    goal = 1 if single else rng.randint(3, 8)
    while len(draft.nodes) < goal:
        with draft.attempt():
            rng.choice(able).grow(draft)
    model = draft.model()
    return Sample(model, {value.name: draft.values[value.name] for value in model.graph.input})
