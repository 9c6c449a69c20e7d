"""TVM's own loops for recurrent layers, against ONNX Runtime and the reference of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import Unsupported
from collage.target import Target
from collage.testing._toolchain_kernels import kernel as parsed_kernel
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm import importer, recurrent
from collage.toolchains.tvm.known_wrong import support
from collage.toolchains.tvm.processor import Processor
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
KINDS = [
    ("LSTM", {}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {}),
    ("RNN", {}),
    ("RNN", {"activations": ["Relu"]}),
]
Length = int | str


def model_of(
    op_type: str,
    lengths: tuple[Length, Length, int, int],
    *,
    given: str = "bsc",
    outputs: Sequence[str] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A layer of (steps, sequences, inputs, states); ``given`` has b for a bias, s for a first state, and c for a cell."""
    steps, batch, width, hidden = lengths
    rng, gates = np.random.default_rng(1), GATES[op_type]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * directions

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32), name)

    weights = [weight("w", directions, gates * hidden, width), weight("r", directions, gates * hidden, hidden)]
    weights += [weight("b", directions, 2 * gates * hidden)] if "b" in given else []
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, width])]
    state = [directions, batch, hidden]
    names = ["x", "w", "r", "b" if "b" in given else "", ""]
    for letter in "sc" if op_type == "LSTM" else "s":
        names.append(letter if letter in given else "")
        inputs += [helper.make_tensor_value_info(letter, TensorProto.FLOAT, state)] if letter in given else []
    made = list(outputs or (["y", "last", "cell"] if op_type == "LSTM" else ["y", "last"]))
    node = helper.make_node(op_type, names, made, hidden_size=hidden, **attributes)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made if name]
    graph = helper.make_graph([node], "kernel", inputs, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def check(model: onnx.ModelProto, folder: Path, *lengths: Mapping[str, int]) -> None:
    """Compare with ONNX Runtime at lengths, twice: the second time memory holds what the first one left."""
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, folder)
    kernel = toolchain.load(made, TARGET, folder, LoadOptions(2, exclusive=True))
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for known in lengths or [{}]:
        feeds = {}
        for port in model.graph.input:
            shape = [n.dim_value or known[n.dim_param] for n in port.type.tensor_type.shape.dim]
            feeds[port.name] = rng.standard_normal(shape).astype(np.float32)
        expected = reference.run(None, feeds)
        for _ in range(2):
            for actual, right in zip(kernel(list(feeds.values())), expected, strict=True):
                np.testing.assert_allclose(actual, right, rtol=1e-4, atol=2e-6)


@pytest.mark.few(5)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "attributes"), KINDS, ids=str)
def test_layers(op_type: str, attributes: dict[str, Any], direction: str, tmp_path: Path) -> None:
    for i, (lengths, given) in enumerate([((1, 1, 4, 8), "bsc"), ((5, 3, 7, 20), ""), ((3, 9, 16, 33), "bs")]):
        model = model_of(op_type, lengths, given=given, direction=direction, **attributes)
        (tmp_path / str(i)).mkdir()
        check(model, tmp_path / str(i))


@pytest.mark.few(3)
@pytest.mark.parametrize("free", [("t", 5), (6, "n"), ("t", "n")])
@pytest.mark.parametrize(("op_type", "attributes"), KINDS[:3], ids=str)
def test_free_lengths(op_type: str, attributes: dict[str, Any], free: tuple[Length, Length], tmp_path: Path) -> None:
    model = model_of(op_type, (*free, 8, 40), direction="bidirectional", **attributes)
    check(model, tmp_path, *({"t": t, "n": n} for t, n in ((1, 1), (6, 5), (3, 8), (7, 11))))


@pytest.mark.parametrize(("op_type", "attributes"), KINDS[:3], ids=str)
def test_threads_that_share_steps(
    op_type: str, attributes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "_STEP_WORK", 1)
    monkeypatch.setattr(importer, "current_processor", lambda: Processor(16, 32, 16))
    check(model_of(op_type, (9, 3, 8, 70), direction="bidirectional", **attributes), tmp_path)


@pytest.mark.parametrize("processor", [Processor(8, 16, 2), Processor(4, 16, 1)])
def test_narrow_vectors(processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "current_processor", lambda: processor)
    check(model_of("LSTM", (4, 7, 5, 50)), tmp_path)


@pytest.mark.parametrize("outputs", [["y"], ["", "last"], ["", "", "cell"], ["y", "", "cell"]])
def test_outputs_that_are_read(outputs: list[str], tmp_path: Path) -> None:
    check(model_of("LSTM", (3, 2, 5, 16), outputs=outputs), tmp_path)


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_lengths_that_do_not_fit_are_no_memory_beside_a_tensor(op_type: str, gates: int, tmp_path: Path) -> None:
    text = (
        f"(float[t,n,i] x, float[d,m,k] h) => (float[t,1,n,3] y) {{y = {op_type} <hidden_size = 3> (x, w, r, , , h)}}"
    )
    weights = {"w": np.ones((1, 3 * gates, 4), np.float32), "r": np.ones((1, 3 * gates, 3), np.float32)}
    toolchain = TvmToolchain()
    made = toolchain.compile(parsed_kernel("k", text, weights), TARGET, tmp_path)
    loaded = toolchain.load(made, TARGET, tmp_path, LoadOptions())
    assert loaded([np.ones((5, 2, 4), np.float32), np.ones((1, 2, 3), np.float32)])[0].shape == (5, 1, 2, 3)
    for x, h in ((9, (1, 2, 3)), (4, (1, 1, 3)), (4, (1, 2, 2)), (4, (2, 2, 3))):
        with pytest.raises((RuntimeError, ValueError)):
            loaded([np.ones((5, 2, x), np.float32), np.ones(h, np.float32)])


def test_sequences_do_not_mix(tmp_path: Path) -> None:
    """A sequence of no numbers leaves the others alone; so does what fills the last tile."""
    model = model_of("GRU", (4, 6, 3, 21), given="b")
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, tmp_path)
    kernel = toolchain.load(made, TARGET, tmp_path, LoadOptions(2))
    x = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(np.float32)
    right, _ = (y.copy() for y in kernel([x]))
    x[2, 4, 1] = np.nan
    y, last = kernel([x])
    others = np.arange(6) != 4
    np.testing.assert_array_equal(y[:, :, others], right[:, :, others])
    np.testing.assert_array_equal(y[:2], right[:2])
    assert np.isnan(y[2:, :, 4]).all() and np.isnan(last[:, 4]).all()


def test_refused(tmp_path: Path) -> None:
    """Refuse what the loops lack before anything is built."""

    def reason(change: Any, op_type: str = "LSTM", **attributes: Any) -> str:
        model = model_of(op_type, (3, 2, 5, 16), **attributes)
        change(model.graph.node[0].input)
        return str(support(ir.serde.deserialize_model(model).graph[0]).reason)

    def with_lengths(names: Any) -> None:
        names[4] = "s"

    def with_peepholes(names: Any) -> None:
        names.append("w")

    def with_matrix(names: Any) -> None:
        names[2] = "s"

    def unchanged(names: Any) -> None: ...

    assert "lengths of sequences" in reason(with_lengths)
    assert "peepholes" in reason(with_peepholes) and "bounds" in reason(unchanged, clip=1.0)
    assert "not constant" in reason(with_matrix)
    assert "other functions" in reason(unchanged, activations=["Sigmoid", "Relu", "Tanh"])
    assert "other functions" in reason(unchanged, "GRU", activations=["Tanh", "Tanh"])
    assert reason(unchanged, activations=["sigmoid", "TANH", "Tanh"]) in ("", "None")
    assert "first axis" in reason(unchanged, layout=1)


def test_another_device_has_none(tmp_path: Path) -> None:
    import tvm

    from collage.toolchains.tvm.kernels import import_kernel

    goal = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
    with pytest.raises(Unsupported, match="tvm has no GRU but for processors"):
        import_kernel(ir.serde.deserialize_model(model_of("GRU", (3, 2, 5, 16))), tmp_path, goal)
