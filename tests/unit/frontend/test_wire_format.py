"""Files that are no protobuf are refused from a few bytes of them."""

from __future__ import annotations

import io

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from collage import CollageError
from collage.frontend import Budgets
from collage.frontend._wire_format import check_framing

MODEL = helper.make_model(
    helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="n" * 300)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    ),
    producer_name="a test",
)


def check(data: bytes, most_fields: int = 100, most_bytes: int = 10_000) -> None:
    check_framing(io.BytesIO(data), len(data), Budgets(items=most_fields, structure_bytes=most_bytes))


def test_a_model_passes_and_is_read_from_its_beginning() -> None:
    file = io.BytesIO(MODEL.SerializeToString())
    check_framing(file, len(file.getvalue()), Budgets())
    assert file.tell() == 0


@given(st.integers(1, len(MODEL.SerializeToString()) - 1))
def test_what_it_refuses_is_no_model_and_a_cut_field_is_refused(length: int) -> None:
    data = MODEL.SerializeToString()[:length]
    try:
        check(data)
    except CollageError:
        with pytest.raises(Exception, match="parsing"):
            onnx.ModelProto.FromString(data)
    else:
        onnx.ModelProto.FromString(data)


@pytest.mark.parametrize("data", [b"\0" * 50, b"\xff" * 50, b"\x0a", b"\x0a\x05abc", b"\x0b\x0c", b"\x09abc"])
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(CollageError):
        check(data)


def test_fields_are_counted() -> None:
    with pytest.raises(CollageError, match="more than 9 fields"):
        check(b"\x08\x01" * 10, most_fields=9)


def _with_weights(nodes: int, weight_bytes: int) -> bytes:
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.graph.node.extend([MODEL.graph.node[0]] * nodes)
    model.graph.initializer.add(
        name="w", dims=[weight_bytes], data_type=TensorProto.UINT8, raw_data=bytes(weight_bytes)
    )
    return model.SerializeToString()


def test_weights_are_no_structure() -> None:
    check(_with_weights(10, 100_000), most_bytes=10_000)


def test_structure_is_counted_beside_weights() -> None:
    with pytest.raises(CollageError, match="more than 10,000 bytes of nodes"):
        check(_with_weights(90, 100_000), most_bytes=10_000)


def test_fields_within_fields_are_counted() -> None:
    with pytest.raises(CollageError, match="more than 80 fields"):
        check(_with_weights(90, 100_000), most_fields=80)


@pytest.mark.parametrize("field", ["doc_string", "producer_name"])
def test_texts_are_counted_beside_weights(field: str) -> None:
    model = onnx.ModelProto.FromString(_with_weights(1, 100_000))
    setattr(model, field, "a" * 5000)
    data = model.SerializeToString()
    budgets = Budgets(structure_bytes=10_000, text_bytes=4000)
    with pytest.raises(CollageError, match="more than 4,000 bytes of texts"):
        check_framing(io.BytesIO(data), len(data), budgets)


def test_what_is_unknown_counts_as_text() -> None:
    data = _with_weights(1, 100_000) + b"\x7a\x88\x27" + bytes(5000)
    with pytest.raises(CollageError, match="bytes of texts"):
        check_framing(io.BytesIO(data), len(data), Budgets(structure_bytes=10_000, text_bytes=4000))
