"""Random models that take indices, and inputs with indices in range, at the edge, beyond it, and huge.

``python -m tests.hostile.index_graphs TARGET FIRST COUNT`` runs some of them on one target, or on a mix, and prints the faults.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from collage import CollageError
from collage.testing._explicit_plan import executable_of

Array = np.ndarray[Any, Any]

MIX = "mix"
"""In place of a target: every operator is a kernel of its own, on one of the toolchains."""
ROWS, COLUMNS = 5, 4
_POINTS = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
_NARROW = ("Gather", "GatherElements", "ScatterElements")
_LENGTHS = ("ReverseSequence", "GRU", "LSTM")
_SIZES = ("OneHot", "Slice", "TopK", "Tile", "Expand", "Pad", "Range", "ConstantOfShape", "Split", "Trilu")
_AXES = ("CumSum", "Unsqueeze", "ReduceSum")
OPERATORS = (*_POINTS * 3, *_LENGTHS, *_SIZES, *_AXES)
_MADE = (
    "cast",
    "of_floats",
    "offset",
    "less",
    "remainder",
    "clipped",
    "sliced",
    "moved",
    "transposed",
    "where",
    "twice",
)
SOURCES = ("given", "given", *_MADE)
_FAR = (ROWS, -ROWS - 1, ROWS + 3, 12345, 10**9, -(10**9), 2**31 - 1)
_FARTHER = (2**31, 2**31 + 1, 2**32 + 1, 2**33 + 2, 2**62, -(2**63), 2**63 - 1, -(2**32))
_SIZES_TRIED = (-7, -2, -1, 0, 1, 2, 3, 4, 5, 6, 9, 2**62)
"""Sizes in the hundreds of millions would be computed by every runtime, and take all memory."""


@dataclass
class Case:
    """A model, and inputs for it.

    Attributes:
        text: What it is, for people.
        model: The model.
        feeds: Sets of inputs.
    """

    text: str
    model: onnx.ModelProto
    feeds: list[dict[str, Array]]


@dataclass
class _Draft:
    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, tuple[Any, Sequence[Any]]] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        outputs = [name, f"{name}_i"] if op == "TopK" else [name]
        self.nodes.append(helper.make_node(op, inputs, outputs, f"layer/{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"k{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def pick(self, *options: Any) -> Any:
        return options[self.random.integers(len(options))]


def random_case(seed: int) -> Case:
    """Return a model with one or two operators that take indices from one source, and some sets of inputs."""
    draft = _Draft(np.random.default_rng(seed))
    op = str(draft.pick(*OPERATORS))
    source = str(draft.pick(*SOURCES))
    dtype = np.dtype(draft.pick(np.int32, np.int64) if op in (*_NARROW, "OneHot", "CumSum") else np.int64)
    dtype = np.dtype(np.int32) if op in ("GRU", "LSTM") else dtype
    is_open = bool(draft.pick(True, False, False))
    shape = _shape_of_indices(draft, op)
    indices = _source(draft, source, dtype, shape)
    made = _operator(draft, op, indices, dtype, shape, is_open)
    made = draft.add("Relu", [made]) if draft.pick(True, False) else made
    if op in _POINTS and draft.pick(True, False):
        # Something for compilers to merge with.
        made = draft.add("Mul", [made, made])
    nodes, outputs = draft.nodes, [helper.make_tensor_value_info(made, TensorProto.FLOAT, None)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), lengths)
        for name, (kind, lengths) in draft.inputs.items()
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in draft.weights.items()]
    graph = helper.make_graph(nodes, "indices", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    text = f"{op} of {source} {dtype.name}{' open' if is_open else ''}"
    return Case(text, model, [_feeds(draft, op, numbers) for numbers in _numbers(draft, op, source, shape)])


def _shape_of_indices(draft: _Draft, op: str) -> tuple[int, ...]:
    if op in ("GatherElements", "ScatterElements"):
        return ROWS, COLUMNS
    if op in ("GatherND", "ScatterND"):
        return 3, int(draft.pick(1, 2))
    if op in _LENGTHS:
        return (COLUMNS,)
    if op in ("Gather", "OneHot"):
        return tuple(draft.pick((3,), (2, 2), (1,)))
    return (1,)


def _source(draft: _Draft, source: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Add operators that make indices of the input ``i``."""
    given: Any = dtype
    if source == "cast":
        given = np.dtype(np.int32 if dtype == np.int64 else np.int64)
    elif source == "of_floats":
        given = np.dtype(np.float32)
    lengths = {"sliced": (2, *shape), "transposed": shape[::-1]}.get(source, shape)
    draft.inputs["i"] = given, lengths
    to = helper.np_dtype_to_tensor_dtype(dtype)
    if source in ("cast", "of_floats"):
        return draft.add("Cast", ["i"], to=to)
    if source == "offset":
        return draft.add("Add", ["i", draft.constant(np.array(2, dtype))])
    if source == "less":
        more = draft.add("Add", [draft.constant(np.array([3], dtype)), "i"])
        return draft.add("Sub", [more, draft.constant(np.array(draft.pick(2, 5), dtype))])
    if source == "transposed":
        return draft.add("Transpose", ["i"])
    if source == "remainder":
        return draft.add("Mod", ["i", draft.constant(np.array(3, dtype))])
    if source == "clipped":
        least = draft.add("Max", ["i", draft.constant(np.array(-1, dtype))])
        return draft.add("Min", [least, draft.constant(np.array(9, dtype))])
    if source == "sliced":
        return draft.add("Gather", ["i", draft.constant(np.array(1))])
    if source == "moved":
        flat = draft.add("Reshape", ["i", draft.constant(np.array([-1]))])
        return draft.add("Reshape", [flat, draft.constant(np.array(shape))])
    if source == "where":
        small = draft.add("Less", ["i", draft.constant(np.array(1000, dtype))])
        return draft.add("Where", [small, "i", draft.constant(np.array(ROWS + 1, dtype))])
    if source == "twice":
        return draft.add("Gather", [draft.constant(np.array([1, 0, 3, 2, ROWS], dtype)), "i"])
    return "i"


def _data(draft: _Draft, is_open: bool, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> str:
    """A table: a constant, an input, or computed."""
    name = str(draft.pick("constant", "x", "made"))
    if name == "constant" and not is_open:
        return draft.constant(draft.random.standard_normal(shape).astype(np.float32))
    draft.inputs["x"] = np.float32, ("rows", *shape[1:]) if is_open else shape
    return "x" if name != "made" else draft.add("Neg", ["x"])


def _operator(draft: _Draft, op: str, i: str, dtype: np.dtype[Any], shape: tuple[int, ...], is_open: bool) -> str:
    random = draft.random
    if op == "Gather":
        return draft.add(op, [_data(draft, is_open), i], axis=int(draft.pick(0, 1)))
    if op == "GatherElements":
        return draft.add(op, [_data(draft, False), i], axis=int(draft.pick(0, 1)))
    if op == "GatherND":
        return draft.add(op, [_data(draft, is_open), i])
    if op == "ScatterElements":
        updates = draft.constant(random.standard_normal(shape).astype(np.float32))
        return draft.add(op, [_data(draft, False), i, updates], axis=int(draft.pick(0, 1)))
    if op == "ScatterND":
        rows = (3, COLUMNS) if shape[-1] == 1 else (3,)
        return draft.add(
            op, [_data(draft, is_open), i, draft.constant(random.standard_normal(rows).astype(np.float32))]
        )
    if op == "ReverseSequence":
        return draft.add(op, [_data(draft, is_open), i], time_axis=0, batch_axis=1)
    if op in ("GRU", "LSTM"):
        gates = {"GRU": 3, "LSTM": 4}[op] * 2
        w, r = (random.standard_normal((1, gates, n)).astype(np.float32) for n in (3, 2))
        x = _data(draft, is_open, (ROWS, COLUMNS, 3))
        return draft.add(op, [x, draft.constant(w), draft.constant(r), "", i], hidden_size=2)
    if op == "OneHot":
        values = draft.constant(np.array([0, 1], np.float32))
        return draft.add(op, [i, draft.constant(np.array(ROWS, dtype)), values])
    x = _data(draft, False)
    if op == "Slice":
        ends, axes = draft.constant(np.array([4])), draft.constant(np.array([0]))
        return draft.add(op, [x, *draft.pick((i, ends), (draft.constant(np.array([0])), i)), axes])
    if op == "TopK":
        return draft.add(op, [x, i], axis=0)
    if op in ("Tile", "Expand"):
        one = draft.constant(np.array([1]))
        return draft.add(op, [x, draft.add("Concat", [i, one], axis=0)])
    if op == "Pad":
        none = draft.constant(np.array([0, 0, 0]))
        return draft.add(op, [x, draft.add("Concat", [i, none], axis=0)])
    if op == "Split":
        sizes = draft.add("Concat", [i, draft.constant(np.array([2]))], axis=0)
        draft.nodes.append(helper.make_node("Split", [x, sizes], ["part", "rest"], axis=0))
        return draft.add("Neg", ["part"])
    if op == "Range":
        start, step = (draft.constant(np.array(n)) for n in (0, 1))
        end = draft.add("Squeeze", [i])
        return draft.add("Cast", [draft.add(op, [start, end, step])], to=TensorProto.FLOAT)
    if op == "ConstantOfShape":
        return draft.add(op, [i])
    if op == "Trilu":
        return draft.add(op, [x, draft.add("Squeeze", [i])])
    if op == "ReduceSum":
        return draft.add(op, [x, i], keepdims=1)
    return draft.add(op, [x, i])


def _numbers(draft: _Draft, op: str, source: str, shape: tuple[int, ...]) -> Iterator[Array]:
    """Sets of indices: all in range, one at an edge, one beyond, one huge, one in another of the sizes tried."""
    kind = np.dtype(draft.inputs["i"][0])
    lengths = draft.inputs["i"][1]
    most = min(COLUMNS, ROWS)
    for _ in range(2):
        yield draft.random.integers(0 if op in _POINTS else 1, most - 1, lengths).astype(kind)
    far = [n for n in (*_FAR, *_FARTHER) if kind == np.int64 or -(2**31) <= n < 2**31]
    if source == "clipped":  # ONNX Runtime's Max and Min of int64 are wrong on numbers beyond 32 bits.
        far = [n for n in far if abs(n) < 2**31]
    edges = [-1, -most, most - 1, most, 0]
    tried: list[int] = (
        [*edges[:3], *edges[3:], *far] if op in (*_POINTS, *_LENGTHS, "OneHot", *_AXES) else list(_SIZES_TRIED)
    )
    for number in draft.random.permutation(np.array(tried, object))[:8]:
        with np.errstate(all="ignore"):
            numbers = draft.random.integers(1, most - 1, lengths).astype(kind)
            if kind == np.float32 or np.iinfo(kind).min <= number <= np.iinfo(kind).max:
                numbers.reshape(-1)[draft.random.integers(numbers.size)] = number
        yield numbers
    if kind == np.float32:
        yield np.full(lengths, np.nan, np.float32)


def _feeds(draft: _Draft, op: str, numbers: Array) -> dict[str, Array]:
    feeds = {"i": numbers}
    if "x" in draft.inputs:
        lengths = draft.inputs["x"][1]
        shape = [int(draft.pick(ROWS, ROWS, ROWS - 2)) if n == "rows" else n for n in lengths]
        feeds["x"] = draft.random.standard_normal(shape).astype(np.float32)
    return feeds


def faults(target: str, seed: int) -> Iterator[str]:
    """Yield what a target, or a mix of targets, does differently from ONNX Runtime in one case."""
    case = random_case(seed)
    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(case.model.SerializeToString(), options)
    random = np.random.default_rng(seed)
    try:
        executable = _executable(case.model, target, random)
    except CollageError as error:
        if "-v" in sys.argv:
            print(f"  {case.text}: refused, {str(error)[:150]}")
        return
    for feeds in case.feeds:
        shown = f"seed {seed}, {case.text}, {feeds['i'].reshape(-1).tolist()}"
        try:
            wanted = session.run(None, feeds)[0]
        except Exception:
            wanted = None
        try:
            got = next(iter(executable.run(feeds).values()))
        except CollageError as error:
            if wanted is not None:
                yield f"{shown}: an error, and ONNX Runtime has none: {str(error)[:200]}"
            continue
        if np.isnan(feeds["i"]).any():
            continue  # ONNX does not define the integer that NaN becomes.
        if wanted is None:
            yield f"{shown}: no error, {got.reshape(-1)[:6].tolist()}"
        elif got.shape != wanted.shape or not np.allclose(got, wanted, 1e-4, 1e-5, equal_nan=True):
            yield f"{shown}: another answer, {got.reshape(-1)[:6].tolist()} instead of {wanted.reshape(-1)[:6].tolist()}"


def _executable(model: onnx.ModelProto, target: str, random: np.random.Generator) -> Any:
    if target != MIX:
        return executable_of(model, target)
    from collage.frontend import read_model
    from collage.graph import DataflowGraph
    from collage.transform import parse_pipeline

    targets = ["llvm", "openvino", "onednn", "onnxruntime"]
    count = len(DataflowGraph(parse_pipeline("prepare")(read_model(model))))
    for _ in range(8):
        try:
            return executable_of(model, [([i], targets[random.integers(len(targets))]) for i in range(count)])
        except CollageError:
            continue
    return executable_of(model, [([i], "host") for i in range(count)])


def main() -> int:
    """Run cases, and print the faults."""
    target, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    bad = 0
    for seed in range(first, first + count):
        print(f"seed {seed}", file=sys.stderr, flush=True)
        for fault in faults(target, seed):
            bad += 1
            print(fault, flush=True)
    print(f"{bad} faults")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
