"""Legal forms that people meet: what ONNX Runtime runs, runs, with equal answers; what is refused, is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import collage
from collage._errors import CollageError, InputError, ModelError
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


def test_an_output_listed_twice_is_refused_with_the_remedy() -> None:
    """ONNX Runtime returns it twice; here outputs are a mapping."""
    twice = model_of([node("Neg", "x", "y")], floats("x"), floats("y", "y"))
    with pytest.raises(ModelError, match=r"two outputs called 'y'.*list it once"):
        compiled(twice)


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
