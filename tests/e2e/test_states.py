"""Models with states: decoders whose cache grows, and detectors with an If, a recurrent layer, and lengths without names."""

from __future__ import annotations

import importlib.util
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.runtime._sources import HostKernels
from tests.e2e.conftest import LENT

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"db": "sqlite:///:memory:", "finals": False}

DECODER = """<ir_version: 9, opset_import: ["": 17]>
g (float[1,seq,8] x, float[1,past,8] past_key) => (float[1,seq,8] y, float[1,total,8] present_key) {
    present_key = Concat <axis = 1> (past_key, x)
    turned = Transpose <perm = [0,2,1]> (present_key)
    scores = MatMul (x, turned)
    shares = Softmax <axis = -1> (scores)
    y = MatMul (shares, present_key)
}"""


def detector() -> onnx.ModelProto:
    """Return a detector of windows of at least 64 samples: reflecting padding, an LSTM, and an If on the sampling rate."""
    random = np.random.default_rng(0)

    def branch(name: str, stride: int) -> onnx.GraphProto:
        text = f"""{name} () => (float[p,1] {name}_o, float[2,k,4] {name}_s) {{
            {name}_l = Unsqueeze (input, one)
            {name}_p = Pad <mode = "reflect"> ({name}_l, pads)
            {name}_c = Conv <strides = [{stride}]> ({name}_p, filter)
            {name}_f = Relu ({name}_c)
            {name}_t = Transpose <perm = [2,0,1]> ({name}_f)
            {name}_h, {name}_d = Split <axis = 0> (state)
            {name}_y, {name}_hn, {name}_cn = LSTM <hidden_size = 4> ({name}_t, W, R, , , {name}_h, {name}_d)
            {name}_q = Squeeze ({name}_hn, zero)
            {name}_m = MatMul ({name}_q, last)
            {name}_o = Sigmoid ({name}_m)
            {name}_s = Concat <axis = 0> ({name}_hn, {name}_cn)
        }}"""
        return onnx.parser.parse_graph(text)

    weights = {
        "filter": random.standard_normal((4, 1, 160)).astype("f") / 8,
        "W": random.standard_normal((1, 16, 4)).astype("f") / 2,
        "R": random.standard_normal((1, 16, 4)).astype("f") / 2,
        "last": random.standard_normal((4, 1)).astype("f"),
        "rate": np.array(16000),
        "one": np.array([1]),
        "zero": np.array([0]),
        "pads": np.array([0, 0, 8, 0, 0, 8]),
    }
    nodes = [
        onnx.helper.make_node("Equal", ["sr", "rate"], ["fast"]),
        onnx.helper.make_node(
            "If", ["fast"], ["output", "stateN"], then_branch=branch("a", 32), else_branch=branch("b", 16)
        ),
    ]
    tensor, single = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "detector",
        [
            tensor("input", single, [None, None]),
            tensor("state", single, [2, None, 4]),
            tensor("sr", onnx.TensorProto.INT64, []),
        ],
        [tensor("output", single, [None, 1]), tensor("stateN", single, [None, None, None])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return onnx.helper.make_model(graph, ir_version=9, opset_imports=[onnx.helper.make_opsetid("", 17)])


def stream(exe: collage.Executable, model: bytes, windows: list[np.ndarray[Any, Any]], more: dict[str, Any]) -> None:
    """Run windows one after the other, each side with the states that it returned, and compare with ONNX Runtime."""
    session = onnxruntime.InferenceSession(model)
    shapes = {port.name: port.shape for port in session.get_inputs()}
    made = [port.name for port in session.get_outputs()][1:]
    names = [name for name in shapes if name != "input" and name not in more]
    batch = len(windows[0]) if isinstance(shapes["input"][0], str | None) else 1
    first = {n: np.zeros([d if isinstance(d, int) else batch for d in shapes[n]], np.float32) for n in names}
    ours, theirs = dict(first), dict(first)
    for window in windows:
        right = session.run(None, {"input": window, **more, **theirs})
        found = list(exe.run({"input": window, **more, **ours}).values())
        for one, other in zip(found, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
        theirs = dict(zip(names, right[1:], strict=True))
        ours = dict(zip(names, found[1:], strict=True))
        assert len(made) == len(names)


def test_a_detector_with_nameless_lengths_needs_no_option_and_keeps_its_state() -> None:
    model = detector()
    exe = collage.compile(model, ["onnxruntime"], options=collage.CompileOptions(**OPTIONS), workers=LENT)
    assert any("--dim 'input[1]=LENGTH'" in note for note in exe.report.warnings)
    random = np.random.default_rng(1)
    for batch, rate in ((1, 16000), (3, 8000)):
        windows = [random.standard_normal((batch, 256)).astype("f") for _ in range(3)]
        stream(exe, model.SerializeToString(), windows, {"sr": np.array(rate)})


def test_a_cache_goes_from_step_to_step_without_a_copy_and_without_the_host(monkeypatch) -> None:
    model = onnx.parser.parse_model(DECODER)
    options = collage.CompileOptions(dims={"seq": {1: 9, 5: 1}, "past": {6: 9, 0: 1}}, **OPTIONS)
    exe = collage.compile(model, ["onnxruntime"], options=options, workers=LENT)
    assert exe.recipe.empty == ("past",)

    def refused(*_: Any) -> Any:
        raise AssertionError("the host ran a kernel")

    monkeypatch.setattr(HostKernels, "run", refused)
    random, tokens = np.random.default_rng(2), 20_000
    x = random.standard_normal((1, 5, 8)).astype("f")
    out = exe.run({"x": x, "past_key": np.zeros((1, 0, 8), "f")})
    np.testing.assert_array_equal(out["present_key"], x)
    past = exe.run({"x": x, "past_key": np.zeros((1, tokens, 8), "f")})["present_key"]
    step = {"x": x[:, :1], "past_key": past}
    exe.run(step)
    tracemalloc.start()
    try:
        present = exe.run(step)["present_key"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert present.shape == (1, tokens + 6, 8)
    assert peak < past.nbytes / 4  # NumPy's memory is traced, ONNX Runtime's is not.


@pytest.mark.slow
def test_the_example_generates_the_same_tokens_as_onnx_runtime_and_openvino(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLLAGE_DB", f"sqlite:///{tmp_path}/timings.db")
    spec = importlib.util.spec_from_file_location("generate_text", ROOT / "examples" / "generate_text.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "generate_text", example)
    spec.loader.exec_module(example)
    words = ["--out", str(tmp_path), "--layers", "1", "--width", "64", "--tokens", "8", "--target", "onnxruntime"]
    assert example.main([*words, "--seconds", "20"]) == 0
    assert "all generate the same tokens" in capsys.readouterr().out


def wheel_files(package: str, pattern: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    folders = [] if found is None else list(found.submodule_search_locations or ())
    return sorted(path for folder in folders for path in Path(folder).glob(pattern))


@pytest.mark.slow
@pytest.mark.parametrize("path", wheel_files("silero_vad", "data/*.onnx"), ids=lambda path: path.stem)
def test_every_file_of_silero_vad_needs_no_option_and_keeps_its_state(path: Path) -> None:
    exe = collage.compile(path, ["onnxruntime", "openvino"], options=collage.CompileOptions(**OPTIONS), workers=LENT)
    takes = {port.name for port in exe.inputs}
    random, model = np.random.default_rng(3), path.read_bytes()
    size = 1 if "sequence" not in path.stem else 4
    windows = [random.standard_normal((size, 576)).astype("f") / 4 for _ in range(4)]
    stream(exe, model, windows, {"sr": np.array(16000)} if "sr" in takes else {})


@pytest.mark.slow
@pytest.mark.parametrize("path", wheel_files("magika", "models/*/model.onnx"), ids=lambda path: path.parent.name)
def test_magika_needs_no_option(path: Path) -> None:
    exe = collage.compile(path, ["onnxruntime", "openvino"], options=collage.CompileOptions(**OPTIONS), workers=LENT)
    x = np.random.default_rng(4).integers(0, 257, (3, 2048)).astype(np.int32)
    (right,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"bytes": x})
    np.testing.assert_allclose(exe(x), right, rtol=1e-3, atol=1e-4)
