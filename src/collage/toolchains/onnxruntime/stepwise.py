"""A model run operator by operator, in float64 or with perturbed operands: what right arithmetic makes of it.

In float64 the result is the *truth*. ONNX Runtime has kernels of doubles for most operators, and NumPy computes
convolutions and averages. Other operators run in float32, so each adds one rounding error.

With perturbations, each result of float arithmetic is multiplied by a random number within one unit in the last place of 1, and
so are exact operands of sums (Monte-Carlo arithmetic). Operands of decisions, such as the scores of an ArgMax, are
moved by the tolerance of floats, since two right kernels may be that far apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import Unsupported, WorkerTimeout
from collage.toolchains.onnxruntime import double_kernels
from collage.toolchains.onnxruntime.toolchain import narrow_type
from collage.toolchains.onnxruntime.unoptimised import repeatable_threads, run_session
from collage.toolchains.sdk.model_files import one_line

if TYPE_CHECKING:
    import onnx

__all__ = ["Perturbation", "StepwiseModel"]

Array = np.ndarray[Any, Any]

_SILENT = 4
_LAST_BIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Constants that decide what an operator does, such as axes, are short. ONNX Runtime wants some of them in the model.
_SHORT = 64
_EXACT = frozenset(
    (
        *(
            "Abs",
            "Cast",
            "CastLike",
            "Ceil",
            "Clip",
            "Compress",
            "Concat",
            "Constant",
            "ConstantOfShape",
            "DepthToSpace",
        ),
        *("Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Hardmax"),
        *("Identity", "Max", "MaxPool", "Min", "Neg", "OneHot", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape"),
        *("ReverseSequence", "Round", "ScatterElements", "ScatterND", "Sign", "Size", "Slice", "SpaceToDepth", "Split"),
        *("Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)
"""Operators whose floating-point results are not rounded."""
_SUMS = frozenset(
    (
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "GlobalAveragePool"),
        *("GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "LogSoftmax", "LpNormalization"),
        *("MatMul", "MeanVarianceNormalization", "RNN", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean"),
        *("ReduceSum", "ReduceSumSquare", "SkipLayerNormalization", "Softmax", "Sum"),
    )
)
"""Operators that add many products, whose order is not fixed: an error in each operand stands for that."""
_OF_ONE = frozenset(("Cos", "Erf", "HardSigmoid", "HardSwish", "Mish", "Sigmoid", "Sin", "Softsign", "Tanh"))
"""Functions that libraries compute from numbers of about 1, so that small results err by the last bit of 1."""
_DECISIONS = frozenset(
    (
        *("ArgMax", "ArgMin", "Ceil", "DynamicQuantizeLinear", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less"),
        *("LessOrEqual", "NonMaxSuppression", "QuantizeLinear", "Round", "Sign", "TopK"),
    )
)
"""Operators whose results jump where computed operands cross a border. A Cast to integers is one too."""


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Random errors of a run.

    Attributes:
        seed: Seed of the random numbers.
        margin: Largest error of the operands of decisions, as a share of the largest magnitude.
    """

    seed: int
    margin: float = 0.0


class _Run:
    """The state of one run: its random numbers, and the names of floats that were computed."""

    def __init__(self, perturbation: Perturbation | None, ends_at: float) -> None:
        self.random = None if perturbation is None else np.random.default_rng(perturbation.seed)
        self.margin = 0.0 if perturbation is None else perturbation.margin
        self.ends_at = ends_at
        self.computed: set[str] = set()
        self.decided: set[str] = set()


class StepwiseModel:
    """A model that is run operator by operator.

    Args:
        path: An ONNX file; its external data lies where it says, beside the file.

    Raises:
        Unsupported: The file cannot be read.

    Attributes:
        inputs: Names of its inputs, in order.
        outputs: Names of its outputs, in order.
        decided: Names of values that follow from decisions on computed numbers, as far as they were met.
    """

    def __init__(self, path: Path) -> None:
        import onnx
        import onnx.inliner

        try:
            proto = onnx.load(path)
            if proto.functions:
                proto = onnx.inliner.inline_local_functions(proto)
        except Exception as error:
            raise Unsupported(f"onnx: {one_line(error)}") from error
        self._opsets = [(each.domain, each.version) for each in proto.opset_import]
        self._ir_version = proto.ir_version
        self._nodes = list(proto.graph.node)
        self._weights = {each.name: _array(each) for each in proto.graph.initializer}
        self.inputs = [value.name for value in proto.graph.input]
        self.outputs = [value.name for value in proto.graph.output]
        self.decided: frozenset[str] = frozenset()
        self._kernels: dict[Any, Any] = {}

    @property
    def threads(self) -> int:
        """Threads with which ONNX Runtime runs the model repeatably; 0 is its default."""
        return repeatable_threads(self._nodes)

    def run(
        self,
        feeds: Mapping[str, Any],
        names: Collection[str],
        perturbation: Perturbation | None = None,
        ends_at: float = float("inf"),
    ) -> dict[str, Any]:
        """Return the values with these names.

        Args:
            feeds: Inputs by name.
            names: Names of values.
            perturbation: Random errors; None computes in float64.
            ends_at: Value of ``time.monotonic()`` at which it gives up.

        Raises:
            Unsupported: An operator cannot be run alone.
            WorkerTimeout: The time is up.
        """
        run = _Run(perturbation, ends_at)
        values: dict[str, Any] = {**self._weights, **feeds}
        if perturbation is None:
            values = {name: _widened(value) for name, value in values.items()}
        self._run_nodes(self._nodes, values, names, run)
        self.decided |= run.decided
        return {name: values[name] for name in names if name in values}

    def _run_nodes(
        self, nodes: Sequence[onnx.NodeProto], values: dict[str, Any], names: Collection[str], run: _Run
    ) -> None:
        """Run operators in order, and leave the values with these names among the values."""
        uses = Counter(name for node in nodes for name in _reads(node))
        uses.update(names)
        for node in nodes:
            if time.monotonic() > run.ends_at:
                raise WorkerTimeout("the operators of the model take too long, one by one")
            used = list(_reads(node))
            operands = {name: values[name] for name in used if name in values}
            if node.op_type == "If" and node.domain in ("", "ai.onnx"):
                values.update(self._run_branch(node, operands, run))
            else:
                is_computed = any(name in run.computed for name in used)
                values.update(self._run_node(node, operands, is_computed, run))
                if (is_computed and _decides(node)) or any(name in run.decided for name in used):
                    run.decided.update(filter(None, node.output))
            for name in used:
                uses[name] -= 1
                if not uses[name]:
                    values.pop(name, None)

    def _run_branch(self, node: onnx.NodeProto, operands: Mapping[str, Any], run: _Run) -> dict[str, Any]:
        wanted = "then_branch" if np.asarray(operands[node.input[0]]).any() else "else_branch"
        body = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
        weights = {each.name: _array(each) for each in body.initializer}
        inside = {**operands, **({k: _widened(v) for k, v in weights.items()} if run.random is None else weights)}
        names = [value.name for value in body.output]
        self._run_nodes(list(body.node), inside, names, run)
        for known in (run.computed, run.decided):
            known.update(outer for outer, inner in zip(node.output, names, strict=True) if inner in known)
        return {outer: inside[inner] for outer, inner in zip(node.output, names, strict=True) if outer}

    def _run_node(
        self, node: onnx.NodeProto, operands: Mapping[str, Any], is_computed: bool, run: _Run
    ) -> dict[str, Any]:
        is_double = run.random is None
        results = self._in_double(node, operands) if is_double else self._kernel(node, _moved(node, operands, run))
        is_rounded = node.op_type not in _EXACT
        for name, value in results.items():
            is_float = isinstance(value, np.ndarray) and value.dtype.name in (*_LAST_BIT, "float64")
            if is_float and (is_rounded or is_computed):
                run.computed.add(name)
            if run.random is not None and is_float and is_rounded:
                results[name] = _perturbed(value, run.random, 1.0 if node.op_type in _OF_ONE else 0.0)
        return results

    def _in_double(self, node: onnx.NodeProto, operands: Mapping[str, Any]) -> dict[str, Any]:
        own = double_kernels.run(node, [operands.get(name) for name in node.input], self._version)
        if own is not None:
            return dict(zip(node.output, own, strict=False))
        try:
            results = self._kernel(node, operands)
        except Unsupported:
            results = self._kernel(node, {name: _narrowed(value) for name, value in operands.items()})
        return {name: _widened(value) for name, value in results.items()}

    @property
    def _version(self) -> int:
        return max((version for domain, version in self._opsets if domain in ("", "ai.onnx")), default=1)

    def _kernel(self, node: onnx.NodeProto, operands: Mapping[str, Any]) -> dict[str, Any]:
        """Run one operator on ONNX Runtime. Equal operators share a session."""
        place = {name: f"v{i}" for i, name in enumerate(dict.fromkeys((*operands, *filter(None, node.output))))}
        short = {
            name: value
            for name, value in operands.items()
            if name in self._weights and isinstance(value, np.ndarray) and value.size <= _SHORT
        }
        types = tuple((place[name], _type_of(value)) for name, value in operands.items() if name not in short)
        copy = _renamed(node, place)
        key = (
            copy.SerializeToString(deterministic=True),
            types,
            tuple((place[name], value.dtype.name, value.shape, value.tobytes()) for name, value in short.items()),
        )
        if key not in self._kernels:
            self._kernels[key] = self._opened(copy, types, {place[name]: value for name, value in short.items()})
        session = self._kernels[key]
        if isinstance(session, Unsupported):
            raise session
        names = [place[name] for name in node.output if name]
        feeds = {place[name]: value for name, value in operands.items() if name not in short}
        try:
            told = {port.name: narrow_type(port.type) for port in (*session.get_inputs(), *session.get_outputs())}
            results = run_session(
                session, feeds, names, {name: narrow for name, narrow in told.items() if narrow is not None}
            )
        except Exception as error:
            raise Unsupported(f"{node.op_type}: {one_line(error)}") from error
        return {name: results[place[name]] for name in node.output if name}

    def _opened(self, node: onnx.NodeProto, types: Sequence[tuple[str, Any]], short: Mapping[str, Array]) -> Any:
        import onnx
        import onnxruntime as ort

        inputs = [onnx.ValueInfoProto(name=name, type=type_) for name, type_ in _types_of(types)]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        constants = [_proto(name, value) for name, value in short.items()]
        graph = onnx.helper.make_graph([node], "step", inputs, outputs, constants)
        opsets = [onnx.helper.make_opsetid(*each) for each in self._opsets]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=self._ir_version)
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = 1  # Each session would have threads of its own.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            return Unsupported(f"{node.op_type}: {one_line(error)}")


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that an operator reads, and those that its bodies read from outside."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
            inside = {value.name for value in (*body.input, *body.initializer)}
            for inner in body.node:
                yield from (name for name in _reads(inner) if name not in inside)
                inside.update(inner.output)
            yield from (value.name for value in body.output if value.name not in inside)


def _renamed(node: onnx.NodeProto, place: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy of an operator whose operands and results have these names, so that equal operators are equal."""
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = copy.doc_string = ""
    copy.input[:] = [place.get(name, "") for name in node.input]
    copy.output[:] = [place.get(name, "") for name in node.output]
    for attribute in copy.attribute:
        for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
            _rename_outside(body, place)
    return copy


def _rename_outside(body: onnx.GraphProto, place: Mapping[str, str]) -> None:
    inside = {value.name for value in (*body.input, *body.initializer)}
    inside.update(name for node in body.node for name in node.output)
    outside = {name: new for name, new in place.items() if name not in inside}
    for node in body.node:
        node.input[:] = [outside.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                _rename_outside(inner, outside)
    for value in body.output:
        value.name = outside.get(value.name, value.name)


def _moved(node: onnx.NodeProto, operands: Mapping[str, Any], run: _Run) -> dict[str, Any]:
    """Return the operands of an operator, with errors where it adds them up, or decides by them."""
    is_decision = _decides(node)
    found = dict(operands)
    assert run.random is not None
    for name, value in operands.items():
        if not isinstance(value, np.ndarray) or value.dtype.name not in _LAST_BIT:
            continue
        if is_decision and name in run.computed and run.margin:
            largest = float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0))
            error = run.random.uniform(-1.0, 1.0, value.shape) * (run.margin * largest)
            found[name] = np.asarray(value.astype(np.float64) + error).astype(value.dtype)
        elif node.op_type in _SUMS and name not in run.computed:
            found[name] = _perturbed(value, run.random)
    return found


def _decides(node: onnx.NodeProto) -> bool:
    return node.op_type in _DECISIONS or (node.op_type == "Cast" and _casts_to_integers(node))


def _casts_to_integers(node: onnx.NodeProto) -> bool:
    import onnx

    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), onnx.TensorProto.FLOAT)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to)).kind in "iu"


def _perturbed(value: Array, random: np.random.Generator, beside: float = 0.0) -> Array:
    """Return a value with an error of one unit in the last place, of itself and of a number ``beside`` it inside."""
    if value.dtype.name not in _LAST_BIT:
        return value
    wide = value.astype(np.float32, copy=False)
    with np.errstate(all="ignore"):
        error: Any = (random.random(value.shape, np.float32) - 0.5) * (2.0 * _LAST_BIT[value.dtype.name])
        error *= np.abs(wide) + np.float32(beside)
        return np.asarray(np.where(np.isfinite(error), wide + error, wide)).astype(value.dtype, copy=False)


def _widened(value: Any) -> Any:
    is_narrow = isinstance(value, np.ndarray) and value.dtype.name in _LAST_BIT
    return value.astype(np.float64) if is_narrow else value


def _narrowed(value: Any) -> Any:
    is_wide = isinstance(value, np.ndarray) and value.dtype == np.float64
    with np.errstate(all="ignore"):
        return value.astype(np.float32) if is_wide else value


def _array(tensor: onnx.TensorProto) -> Array:
    import onnx.numpy_helper

    return np.asarray(onnx.numpy_helper.to_array(tensor))


def _proto(name: str, value: Array) -> onnx.TensorProto:
    import onnx.numpy_helper

    return onnx.numpy_helper.from_array(np.asarray(value, order="C"), name)


def _type_of(value: Any) -> tuple[str, int]:
    if isinstance(value, list):
        return "list", _element_type(np.asarray(value[0]).dtype if value else np.dtype(np.float32))
    if value is None:
        raise Unsupported("an optional that is absent")
    return "tensor", _element_type(np.asarray(value).dtype)


def _element_type(dtype: Any) -> int:
    import onnx

    return int(onnx.TensorProto.STRING if dtype.kind in "OSUT" else onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _types_of(types: Sequence[tuple[str, tuple[str, int]]]) -> Iterator[tuple[str, onnx.TypeProto]]:
    """Yield ONNX's types of operands by name."""
    import onnx

    for name, (kind, element) in types:
        tensor = onnx.helper.make_tensor_type_proto(element, None)
        yield name, tensor if kind == "tensor" else onnx.helper.make_sequence_type_proto(tensor)
