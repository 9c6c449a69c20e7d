"""Legal forms that people meet: what ONNX Runtime runs, runs, with equal answers; what is refused, is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

import collage
from collage._errors import CollageError, InputError, ModelError
from collage.cli._run import run_once
from collage.integrations import InferenceSession
from collage.runtime import Executable
from tests.e2e.conftest import LENT
from tests.e2e.legal_forms import FORMS, REFUSED, X, floats, node
from tests.e2e.legal_forms import model as model_of


def compiled(model: onnx.ModelProto, *targets: str, allow_host: bool = False) -> Executable:
    options = collage.CompileOptions(finals=False, allow_host=allow_host)
    return collage.compile(model, targets or ["onnxruntime"], options=options, workers=LENT)


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options)


def agree(found: Mapping[str, Any], wanted: Sequence[Any]) -> None:
    for (name, value), expected in zip(found.items(), wanted, strict=True):
        if np.asarray(expected).dtype.kind in "OU":
            assert np.array_equal(value, expected), name
        else:
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_allclose(value, expected, 1e-5, 1e-6, err_msg=name)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", FORMS)
def test_what_onnx_runtime_runs_runs(name: str) -> None:
    model, all_feeds = FORMS[name]()
    session, executable = session_of(model), compiled(model)
    for feeds in all_feeds:
        agree(executable.run(feeds), session.run(None, dict(feeds)))
    assert not executable.notes
    assert list(executable.run(all_feeds[0])) == [port.name for port in session.get_outputs()]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm", "openvino"])
@pytest.mark.parametrize("name", FORMS)
def test_what_onnx_runtime_runs_runs_everywhere(name: str, target: str) -> None:
    model, all_feeds = FORMS[name]()
    session, executable = session_of(model), compiled(model, target, allow_host=True)
    for feeds in all_feeds:
        agree(executable.run(feeds), session.run(None, dict(feeds)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(CollageError, match=reason):
        compiled(make())
    with pytest.raises(Exception, match=r"\S"):
        session_of(make())


@pytest.mark.parametrize("listed", ["y z y", "w x w x"])
def test_an_output_may_be_listed_twice(listed: str, tmp_path: Path) -> None:
    """A mapping holds it once, and what is ordered has it as often as the model lists it."""
    weights = [nh.from_array(X, "w")]
    nodes = [node("Neg", "x", "y"), node("Abs", "x", "z")]
    model = model_of(nodes, floats("x"), floats(*listed.split()), weights)
    expected, executable = session_of(model).run(None, {"x": X}), compiled(model)
    agree(dict(enumerate(executable(X))), expected)  # type: ignore[arg-type]
    assert list(executable.run([X])) == list(dict.fromkeys(listed.split()))
    session = InferenceSession(executable.save(tmp_path / "a.zip"))
    agree(dict(enumerate(session.run(None, {"x": X}))), expected)  # type: ignore[arg-type]
    assert [port.name for port in session.get_outputs()] == listed.split()


@pytest.mark.parametrize(("labels", "shape"), [(["cheap", "dear"], ("n", 2)), ([7, -1], (2,))])
def test_outputs_of_zip_map_are_maps(
    labels: list[str] | list[int], shape: tuple[int | str, ...], tmp_path: Path
) -> None:
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    key = T.STRING if isinstance(labels[0], str) else T.INT64
    maps = h.make_sequence_type_proto(h.make_map_type_proto(key, h.make_tensor_type_proto(T.FLOAT, [])))
    nodes = [node("Softmax", "x", "p"), node("ZipMap", "p", "m", domain="ai.onnx.ml", **{kind: labels})]
    outputs = [h.make_value_info("m", maps), *floats("p", shape=shape)]
    model = model_of(nodes, floats("x", shape=shape), outputs, imports={"ai.onnx.ml": 1})
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    executable = collage.compile(path, ["onnxruntime"], options=collage.CompileOptions(finals=False), workers=LENT)
    artefact = executable.save(tmp_path / "a.zip")
    session, theirs = InferenceSession(artefact), session_of(model)
    (row, _) = run_once(artefact, {}, tmp_path, {})["outputs"]
    assert row["dtype"] == "maps" and [set(each) for each in json.loads(Path(row["file"]).read_text())] == [
        set(map(str, labels))
    ]
    assert [(p.name, p.type) for p in session.get_outputs()] == [(p.name, p.type) for p in theirs.get_outputs()]
    assert session.get_modelmeta().custom_metadata_map == {}
    for rows in (1, 3) if len(shape) > 1 else (0,):
        x = np.linspace(-1, 2, 2 * max(rows, 1), dtype=np.float32).reshape((rows, 2) if rows else (2,))
        wanted = theirs.run(None, {"x": x})
        for found in (executable.run({"x": x})["m"], session.run(["m"], {"x": x})[0]):
            assert [list(row) for row in found] == [list(row) for row in wanted[0]]
            numbers = [[list(row.values()) for row in each] for each in (found, wanted[0])]
            np.testing.assert_allclose(*numbers, rtol=1e-5)
        np.testing.assert_allclose(executable.run_tensors({"x": x})["m"], wanted[1], 1e-5)


def test_texts_that_are_not_unicode_are_read_with_a_warning(tmp_path: Path) -> None:
    made = model_of([node("Neg", "xAA", "y", name="nAA"), node("Abs", "y", "zAB")], floats("xAA"), floats("zAB"))
    made.doc_string, made.graph.doc_string = "tAA", "uAA"
    made.metadata_props.add(key="kAA", value="vAB")
    path = tmp_path / "latin.onnx"
    path.write_bytes(made.SerializeToString().replace(b"AA", b"\xe9\xe8").replace(b"AB", b"\xe9\xe7"))
    with pytest.warns(RuntimeWarning, match="not Unicode.*Latin-1"):
        executable = collage.compile(path, ["onnxruntime"], options=collage.CompileOptions(finals=False), workers=LENT)
    np.testing.assert_array_equal(executable.run({"xéè": X})["zéç"], abs(X))
    session = InferenceSession(executable.save(tmp_path / "a.zip"))
    assert session.get_modelmeta().custom_metadata_map == {"kéè": "véç"}
    np.testing.assert_array_equal(session.run(None, {"xéè": X})[0], abs(X))


def test_nodes_of_one_name_run() -> None:
    """ONNX leaves names of nodes free; ONNX Runtime refuses two of one name."""
    nodes = [node("Neg", "x", "a", name="n"), node("Abs", "a", "y", name="n")]
    found = compiled(model_of(nodes, floats("x"), floats("y"))).run({"x": X})
    np.testing.assert_array_equal(found["y"], abs(X))


@pytest.mark.parametrize("is_recipe", [False, True])
def test_an_artefact_holds_the_default(is_recipe: bool, tmp_path: Path) -> None:
    model, all_feeds = FORMS["an_input_with_a_default"]()
    path = compiled(model).save(tmp_path / "a.zip", recipe_only=is_recipe)
    session, loaded = session_of(model), InferenceSession(path)
    for feeds in all_feeds:
        agree(dict(zip("y", loaded.run(None, feeds), strict=True)), session.run(None, dict(feeds)))
    for ours, theirs in ((loaded.get_inputs(), session.get_inputs()),):
        assert [(port.name, port.shape, port.type) for port in ours] == [(p.name, p.shape, p.type) for p in theirs]
    (ours,), (theirs,) = loaded.get_overridable_initializers(), session.get_overridable_initializers()
    assert (ours.name, ours.shape, ours.type) == (theirs.name, theirs.shape, theirs.type)
    x = all_feeds[0]["x"]
    np.testing.assert_array_equal(loaded.executable(x), loaded.executable(x, np.array([2], np.float32)))
    with pytest.raises(InputError, match=r"unknown input 'size'.*scale: float32\[1\] \(optional\)"):
        loaded.run(None, {"x": x, "size": x})
    with pytest.raises(InputError, match="missing input 'x'"):
        loaded.run(None, {"scale": np.array([2], np.float32)})


def test_inputs_that_cannot_be_made_up_are_asked_for() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[n,11] x, int64[2] y) => (float[k,m] z) {
        sizes = Mul (y, y)
        z = Reshape <allowzero = 1> (x, sizes)
    }"""
    model = onnx.ModelProto()
    model.CopyFrom(onnx.parser.parse_model(text))
    with pytest.raises(ModelError, match=r"'x', 'y' were made up.*--input x=FILE\.npy.*--dim n=LENGTH"):
        collage.compile(model, ["onnxruntime"], workers=LENT)


CARELESS = """<ir_version: 9, opset_import: ["" : 17]> g (float[N,2] a, float[N,2] b) => (float[N,2] y, float[N,2] z) {
    y = Concat <axis = 0> (a, b)
    z = Tanh (b)
}"""


def lists(a: int, b: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal((n, 2)).astype(np.float32) for name, n in (("a", a), ("b", b))}


@pytest.mark.parametrize(
    "said", [{"inputs": lists(3, 5)}, {"dims": {"b[0]": 5, "N": 3}}, {"dims": {"b[0]": {5: 1.0, 7: 1.0}}}]
)
def test_one_symbol_may_stand_for_two_lengths(said: dict[str, Any]) -> None:
    model = onnx.parser.parse_model(CARELESS)
    executable = collage.compile(
        model, ["onnxruntime"], options=collage.CompileOptions(**said, finals=False), workers=LENT
    )
    for feeds in (lists(3, 5), lists(4, 4), lists(1, 9)):
        agree(executable.run(feeds), session_of(model).run(None, dict(feeds)))


def test_one_length_of_two_may_be_fixed() -> None:
    model = onnx.parser.parse_model(CARELESS)
    options = collage.CompileOptions(fixed={"b[0]": 5}, finals=False)
    executable = collage.compile(model, ["onnxruntime"], options=options, workers=LENT)
    agree(executable.run(lists(2, 5)), session_of(model).run(None, lists(2, 5)))
    with pytest.raises(InputError, match=r"'b' has shape \[6, 2\], but the model takes b: float32\[5, 2\]"):
        executable.run(lists(2, 6))


def test_a_second_length_of_a_symbol_is_refused_with_the_way_out() -> None:
    model = onnx.parser.parse_model(CARELESS)
    with pytest.raises(InputError, match=r"if it may have another N .* compile with --dim 'b\[0\]=5'"):
        compiled(model).run(lists(3, 5))
