"""Mutated models: whatever comes in, the front door returns a model or raises an error of ours."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, parser

from collage import CollageError
from collage.frontend import read_model
from collage.transform import prepare
from tests.hostile.corpus import constant, model


def _convolution() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("LayerNormalization", ["f", "b", ""], ["l"]),
        helper.make_node("Gemm", ["l", "k"], ["y"], transB=1),
    ]
    weights = [
        constant("w", random.standard_normal((4, 3, 3, 3)), np.float32),
        constant("b", random.standard_normal(4), np.float32),
        constant("v", np.ones(4), np.float32),
        constant("k", random.standard_normal((2, 4)), np.float32),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    return model(nodes, initializers=weights, inputs=inputs)


_CONTROL = """
<ir_version: 9, opset_import: ["" : 17]>
control (float[4] x, bool c) => (float[4] y) {
    three = Constant <value_int = 3> ()
    true = Constant <value = bool {1}> ()
    total = Loop (three, true, x) <
        body = step (int64 i, bool going, float[4] carried) => (bool on, float[4] next) {
            on = Identity (going)
            index = Cast <to = 1> (i)
            next = Add (carried, index)
        }
    >
    y = If (c) <
        then_branch = yes () => (float[4] t) { t = Relu (total) },
        else_branch = no () => (float[4] e) { e = Neg (x) }
    >
}
"""

_FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
calls (int64[2, n] tokens) => (float[2, n, 4] y)
<float[5, 4] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}> {
    e = Gather (table, tokens)
    g = local.gelu (e)
    s = Shape (g)
    flat = Reshape <allowzero = 0> (g, s)
    y = local.gelu (flat)
}
<domain: "local", opset_import: ["" : 17]>
gelu (x) => (y) {
    half = Constant <value = float {0.5}> ()
    root = Constant <value = float {0.70710678}> ()
    scaled = Mul (x, root)
    erf = Erf (scaled)
    one = CastLike (half, x)
    more = Add (erf, one)
    product = Mul (x, more)
    y = Mul (product, half)
}
"""


def _seeds() -> list[bytes]:
    models = [_convolution(), parser.parse_model(_CONTROL), parser.parse_model(_FUNCTIONS)]
    return [proto.SerializeToString() for proto in models]


def _mutate_bytes(data: bytes, random: np.random.Generator) -> bytes:
    mutant = bytearray(data)
    for _ in range(random.integers(1, 6)):
        position = int(random.integers(len(mutant)))
        match random.integers(5):
            case 0:
                mutant[position] = int(random.integers(256))
            case 1:
                mutant[position] ^= 1 << int(random.integers(8))
            case 2:
                del mutant[position : position + int(random.integers(1, 9))]
            case 3:
                start = int(random.integers(len(data)))
                mutant[position:position] = data[start : start + int(random.integers(1, 33))]
            case 4:
                mutant[position : position + 1] = b"\xff" * int(random.integers(1, 10))
        if not mutant:
            break
    return bytes(mutant)


def _mutate_fields(data: bytes, random: np.random.Generator) -> bytes:
    """Rewires, renames, drops and duplicates: mutants that are still protobuf, and reach deeper."""
    proto = onnx.ModelProto.FromString(data)
    graph = proto.graph
    names = ["", "x", "y", "ghost", *(name for node in graph.node for name in (*node.input, *node.output))]
    for _ in range(random.integers(1, 4)):
        if not graph.node:
            break
        node = graph.node[int(random.integers(len(graph.node)))]
        match random.integers(8):
            case 0 if node.input:
                node.input[int(random.integers(len(node.input)))] = str(random.choice(names))
            case 1 if node.output:
                node.output[int(random.integers(len(node.output)))] = str(random.choice(names))
            case 2:
                node.op_type = str(random.choice(["Relu", "Reshape", "If", "Pad", "Resize", "Einsum", "Split", "Loop"]))
            case 3 if node.attribute:
                del node.attribute[int(random.integers(len(node.attribute)))]
            case 4 if graph.initializer:
                tensor = graph.initializer[int(random.integers(len(graph.initializer)))]
                tensor.dims.append(int(random.choice([0, 1, -1, 2**40])))
            case 5 if graph.initializer:
                tensor = graph.initializer[int(random.integers(len(graph.initializer)))]
                tensor.data_type = int(random.integers(30))
            case 6:
                node.input.extend(["", ""])
            case 7:
                proto.opset_import[0].version = int(random.integers(-1, 30))
    return proto.SerializeToString()


_NUMBERS = (0, 1, -1, 2, 7, 9, 13, 17, 2**17, 2**20, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_WORDS = ("", "x", "y", "carried", "next", "i", "Loop", "Add", "Reshape", "Expand", "Range", "Concat", "axes", "local")


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type:
            for inner in value if field.is_repeated else [value]:
                found += _messages(inner)
    return found


def _scalar(field: FieldDescriptor, random: np.random.Generator) -> object:
    match field.type:
        case FieldDescriptor.TYPE_INT64:
            return _NUMBERS[random.integers(len(_NUMBERS))]
        case FieldDescriptor.TYPE_UINT64:
            return abs(_NUMBERS[random.integers(len(_NUMBERS))])
        case FieldDescriptor.TYPE_INT32:
            return int(random.choice([-1, 2**31 - 1, random.integers(30)]))
        case FieldDescriptor.TYPE_ENUM:
            return int(random.choice([value.number for value in field.enum_type.values]))
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return float(random.choice([0, -1, np.inf, np.nan, 1e30]))
    word = str(random.choice(_WORDS))
    return word.encode() if field.type == FieldDescriptor.TYPE_BYTES else word


def _mutate_any_field(data: bytes, random: np.random.Generator) -> bytes:
    """Clears, sets and doubles fields of any message, and puts any message where another of its kind may be."""
    proto = onnx.ModelProto.FromString(data)
    for _ in range(random.integers(1, 5)):
        messages = _messages(proto)
        message = messages[random.integers(len(messages))]
        present = [field for field, _ in message.ListFields()]
        fields = present if present and random.random() < 0.5 else list(message.DESCRIPTOR.fields)
        field = fields[random.integers(len(fields))]
        held = getattr(message, field.name)
        if random.random() < 0.25:
            message.ClearField(field.name)
        elif field.message_type:
            others = [other for other in messages if other.DESCRIPTOR is field.message_type]
            other = type(others[0])() if others else None
            if other is not None:
                other.CopyFrom(others[random.integers(len(others))])
                (held.add() if field.is_repeated else held).CopyFrom(other)
        elif field.is_repeated:
            held.append(_scalar(field, random))
        else:
            setattr(message, field.name, _scalar(field, random))
    return proto.SerializeToString()


_MUTATORS = (_mutate_bytes, _mutate_fields, _mutate_any_field)


def _fuzz(count: int, seed: int) -> tuple[int, int]:
    seeds = _seeds()
    accepted = 0
    slowest_s = 0.0
    for number in range(count):
        random = np.random.default_rng((seed, number))
        mutant = _MUTATORS[number % 3](seeds[number // 3 % len(seeds)], random)
        start_s = time.process_time()
        try:
            prepare(read_model(mutant))
            accepted += 1
        except CollageError as error:
            assert error.exit_code == 5, f"mutant {number} of seed {seed} raised {error!r}"
        except Exception as error:
            raise AssertionError(f"mutant {number} of seed {seed} raised {error!r}") from error
        slowest_s = max(slowest_s, time.process_time() - start_s)
    assert slowest_s < 20
    return accepted, count - accepted


def test_seeds_are_accepted():
    for seed in _seeds():
        prepare(read_model(seed))


def test_mutants_never_escape():
    accepted, refused = _fuzz(400, seed=1)
    assert accepted > 20 and refused > 100


@pytest.mark.slow
def test_twenty_thousand_mutants_never_escape():
    accepted, refused = _fuzz(20_000, seed=2)
    assert accepted > 1_000 and refused > 5_000
