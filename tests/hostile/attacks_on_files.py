"""Attacks on whoever reads the file: what is no model, and what is more than it seems."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.hostile.corpus import attack, constant, model, save


@attack
def text_file(folder):
    path = folder / "model.onnx"
    path.write_text("This is not a model, whatever its name says.\n" * 20)
    return path


@attack
def empty_file(folder):
    path = folder / "model.onnx"
    path.write_bytes(b"")
    return path


@attack
def folder_instead_of_file(folder):
    return folder


@attack
def named_pipe(folder):
    path = folder / "model.onnx"
    os.mkfifo(path)
    return path


@attack
def truncated(folder):
    data = model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[constant("w", np.ones(4), np.float32)])
    path = folder / "model.onnx"
    path.write_bytes(data.SerializeToString()[:-9])
    return path


@attack
def name_that_is_no_text(folder):
    path = save(model([helper.make_node("Relu", ["x"], ["y"])]), folder)
    path.write_bytes(path.read_bytes().replace(b"Relu", b"Re\xff\xfe"))
    return path


@attack
def no_graph(folder):
    return save(onnx.ModelProto(ir_version=8), folder)


@attack
def no_outputs(folder):
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    del proto.graph.output[:]
    return save(proto, folder)


@attack
def long_string(folder):
    node = helper.make_node("Relu", ["x"], ["y"], doc_string="A" * (2**24 + 1))
    return save(model([node]), folder)


@attack
def memory_of_the_process(folder):
    return Path("/proc/self/mem")


@attack
def two_gigabytes_of_nothing(folder):
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 - 1)
    return path


@attack
def too_many_inputs_of_a_node(folder):
    return save(model([helper.make_node("Sum", ["x"] * 500_000, ["y"])]), folder)


@attack
def too_many_functions(folder):
    opsets = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    functions = [helper.make_function("local", f"f{i}", ["a"], ["b"], body, opsets) for i in range(10_001)]
    return save(model([helper.make_node("Relu", ["x"], ["y"])], functions=functions), folder)


@attack
def too_much_metadata(folder):
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    proto.graph.node[0].metadata_props.extend([onnx.StringStringEntryProto(key="k", value="v")] * 500_000)
    return save(proto, folder)


def _field(number: int, payload: bytes) -> bytes:
    """A delimited field of protobuf."""
    length = len(payload)
    digits = []
    while length >= 128:
        digits.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *digits, length]) + payload


@attack
def dimensions_by_the_million(folder):
    """Two bytes each, which become eighty: the parser would take gigabytes before anything is counted."""
    shape = _field(1, b"") * (25 * 2**20)
    tensor_type = _field(1, bytes([8, 1]) + _field(2, shape))
    graph = _field(11, _field(1, b"x") + _field(2, tensor_type))
    path = folder / "model.onnx"
    path.write_bytes(bytes([8, 9]) + _field(7, graph))
    return path


@attack
def values_by_the_million(folder):
    path = folder / "model.onnx"
    path.write_bytes(bytes([8, 9]) + _field(7, _field(13, b"") * (25 * 2**20)))
    return path
