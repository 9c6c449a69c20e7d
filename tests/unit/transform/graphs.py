"""Random models and a reference to run them with."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from collage.transform._pass import _FACTORIES


def run(model: ir.Model | onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of a model by ONNX Runtime with all its own optimisations off."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def generic_passes() -> list[str]:
    """Names of the passes that this room ships and that promise to keep outputs; PrintIR would only be noisy."""
    made_here = (name for name, make in _FACTORIES.items() if make.__module__.startswith("collage.transform."))
    return sorted(name for name in made_here if name != "PrintIR")


def assert_same(expected: list[np.ndarray], actual: list[np.ndarray], tolerance: float = 1e-4) -> None:
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


def random_model(seed: int, nodes: int = 25) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model on tensors [2, C, 4, 4] with constants, shape arithmetic, identities, repeats, bodies and BatchNorms."""
    grower = _Grower(seed)
    for _ in range(nodes):
        grower.grow()
    return grower.finish()


def inside_function(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, with all its nodes in one local function, and its weights as Constant nodes there."""
    graph = proto.graph
    names = [value.name for value in graph.input], [value.name for value in graph.output]
    weights = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "whole", *names, [*weights, *graph.node], opsets)
    outer = helper.make_graph(
        [helper.make_node("whole", *names, domain="local")], "outer", list(graph.input), list(graph.output)
    )
    opsets.append(helper.make_opsetid("local", 1))
    return helper.make_model(outer, ir_version=10, opset_imports=opsets, functions=[function])


class _Grower:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values = {"x": 3}  # name to number of channels
        self.constants: list[str] = []
        self.flag = "flag"

    def grow(self) -> None:
        kinds = [
            self._unary,
            self._unary,
            self._binary,
            self._binary,
            self._convolution,
            self._constant_arithmetic,
            self._shape_arithmetic,
            self._identity,
            self._repeat,
            self._transposes,
            self._reshapes,
            self._branch,
            self._loop,
            self._dropout,
            self._split,
            self._channel_scale,
            self._layer_norm,
        ]
        kinds[self.random.integers(len(kinds))]()

    def finish(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        names = list(self.values)[1:] or [self._emit("Relu", ["x"], 3)]
        picked = list(dict.fromkeys([names[-1], *self.random.choice(names, size=min(2, len(names)))]))
        outputs = [helper.make_tensor_value_info(str(name), TensorProto.FLOAT, None) for name in picked]
        inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4, 4]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ]
        graph = helper.make_graph(self.nodes, "random", inputs, outputs, self.weights)
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
        feeds = {
            "x": self.random.standard_normal((2, 3, 4, 4)).astype(np.float32),
            "flag": np.array(bool(self.random.integers(2))),
        }
        return model, feeds

    def _name(self) -> str:
        return f"v{len(self.nodes)}_{len(self.weights)}"

    def _pick(self) -> str:
        return str(self.random.choice(list(self.values)))

    def _weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _emit(self, kind: str, inputs: list[str], channels: int, outputs: list[str] | None = None, **attrs) -> str:
        outputs = outputs or [self._name()]
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attrs))
        self.values[outputs[0]] = channels
        return outputs[0]

    def _helper(self, kind: str, inputs: list[str], **attrs) -> str:
        name = self._name()
        self.nodes.append(helper.make_node(kind, inputs, [name], **attrs))
        return name

    def _unary(self) -> None:
        x = self._pick()
        self._emit(str(self.random.choice(["Relu", "Sigmoid", "Tanh", "Neg", "Abs"])), [x], self.values[x])

    def _binary(self) -> None:
        x = self._pick()
        same = [name for name, channels in self.values.items() if channels == self.values[x]]
        kind = str(self.random.choice(["Add", "Sub", "Mul", "Max"]))
        self._emit(kind, [x, str(self.random.choice(same))], self.values[x])

    def _convolution(self) -> None:
        x = self._pick()
        c_in, c_out = self.values[x], 4
        w = self._weight(self.random.standard_normal((c_out, c_in, 3, 3)).astype(np.float32) / 5)
        inputs = [x, w]
        if self.random.integers(2):
            inputs.append(self._weight(self.random.standard_normal(c_out).astype(np.float32)))
        y = self._emit("Conv", inputs, c_out, pads=[1, 1, 1, 1])
        if self.random.integers(3):
            parts = [self.random.standard_normal(c_out) for _ in range(3)] + [self.random.uniform(0.5, 2, c_out)]
            norm = [self._weight(part.astype(np.float32)) for part in parts]
            self._emit("BatchNormalization", [y, *norm], c_out)

    def _constant_arithmetic(self) -> None:
        x = self._pick()
        a = self._helper("Constant", [], value_float=float(self.random.standard_normal()))
        b = self._weight(np.float32(self.random.integers(3)))
        c = self._helper(str(self.random.choice(["Add", "Mul", "Sub"])), [a, b])
        self._emit("Mul", [x, c], self.values[x])

    def _shape_arithmetic(self) -> None:
        x = self._pick()
        shape = self._helper("Shape", [x])
        index = self._weight(np.array([0], np.int64))
        batch = self._helper("Gather", [shape, index], axis=0)
        rest = self._weight(np.array([self.values[x], 16], np.int64))
        target = self._helper("Concat", [batch, rest], axis=0)
        flat = self._helper("Reshape", [x, target])
        self._emit("Reshape", [flat, shape], self.values[x])

    def _identity(self) -> None:
        x = self._pick()
        self._emit("Identity", [x], self.values[x])

    def _repeat(self) -> None:
        if self.nodes:
            node = self.nodes[self.random.integers(len(self.nodes))]
            if len(node.output) == 1 and node.output[0] in self.values:
                again = onnx.NodeProto()
                again.CopyFrom(node)
                again.output[0] = self._name()
                if not any(a.HasField("g") for a in again.attribute):
                    self.nodes.append(again)
                    self.values[again.output[0]] = self.values[node.output[0]]

    def _transposes(self) -> None:
        x = self._pick()
        there = self._helper("Transpose", [x], perm=[0, 2, 3, 1])
        self._emit("Transpose", [there], self.values[x], perm=[0, 3, 1, 2])

    def _reshapes(self) -> None:
        x = self._pick()
        flat = self._helper("Reshape", [x, self._weight(np.array([0, -1], np.int64))])
        self._emit("Reshape", [flat, self._weight(np.array([-1, self.values[x], 4, 4], np.int64))], self.values[x])

    def _branch(self) -> None:
        x = self._pick()

        def branch(kind: str) -> onnx.GraphProto:
            name = self._name() + kind
            scale = helper.make_node("Constant", [], ["t" + name], value_float=2.0)
            nodes = [
                scale,
                helper.make_node(kind, [x], ["s" + name]),
                helper.make_node("Mul", ["s" + name, "t" + name], [name]),
            ]
            return helper.make_graph(nodes, kind, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

        flag = "flag" if self.random.integers(2) else self._weight(np.array(bool(self.random.integers(2))))
        self._emit("If", [flag], self.values[x], then_branch=branch("Relu"), else_branch=branch("Neg"))

    def _loop(self) -> None:
        x, other = self._pick(), "x"
        stem = self._name()
        names = {key: f"{stem}_{key}" for key in ("i", "go", "on", "state", "next", "sum", "scaled", "factor")}
        body = helper.make_graph(
            [
                helper.make_node("Identity", [names["go"]], [names["on"]]),
                helper.make_node("ReduceMean", [other], [names["sum"]], keepdims=0),
                helper.make_node("Add", [names["state"], names["sum"]], [names["scaled"]]),
                helper.make_node("Tanh", [names["scaled"]], [names["next"]]),
            ],
            "body",
            [
                helper.make_tensor_value_info(names["i"], TensorProto.INT64, []),
                helper.make_tensor_value_info(names["go"], TensorProto.BOOL, []),
                helper.make_tensor_value_info(names["state"], TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info(names["on"], TensorProto.BOOL, []),
                helper.make_tensor_value_info(names["next"], TensorProto.FLOAT, None),
            ],
        )
        trips, go = self._weight(np.array(2, np.int64)), self._weight(np.array(True))
        self._emit("Loop", [trips, go, x], self.values[x], body=body)

    def _dropout(self) -> None:
        x = self._pick()
        self._emit("Dropout", [x, self._weight(np.float32(0.3))], self.values[x])

    def _split(self) -> None:
        x = self._pick()
        name = self._name()
        sizes = self._weight(np.array([1, self.values[x] - 1], np.int64))
        self.nodes.append(helper.make_node("Split", [x, sizes], [name + "a", name + "b"], axis=1))
        self._emit("Concat", [name + "b", name + "a"], self.values[x], outputs=[name], axis=1)

    def _channel_scale(self) -> None:
        """A scale per channel, at times before or after a convolution, with an activation between at times."""
        x = self._pick()
        if self.random.integers(2):
            self._convolution()
            x = list(self.values)[-1]
        if self.random.integers(2):
            x = self._emit("Relu", [x], self.values[x])
        channels = self.values[x]
        scale = self._weight(self.random.uniform(-0.5, 1.5, (channels, 1, 1)).astype(np.float32))
        kind = str(self.random.choice(["Mul", "Add"]))
        y = self._emit(kind, [scale, x], channels)
        if self.random.integers(2):
            w = self._weight(self.random.standard_normal((4, channels, 1, 1)).astype(np.float32))
            self._emit("Conv", [y, w], 4)

    def _layer_norm(self) -> None:
        x = self._pick()
        axes, two, epsilon = (self._weight(np.array(a)) for a in (np.int64([-1]), np.float32(2), np.float32(1e-2)))
        mean = self._helper("ReduceMean", [x, axes])
        centred = self._helper("Sub", [x, mean])
        variance = self._helper("ReduceMean", [self._helper("Pow", [centred, two]), axes])
        deviation = self._helper("Sqrt", [self._helper("Add", [variance, epsilon])])
        normal = self._emit("Div", [centred, deviation], self.values[x])
        if self.random.integers(2):
            scale = self._weight(self.random.uniform(0.5, 1.5, 4).astype(np.float32))
            self._emit("Mul", [normal, scale], self.values[x])
