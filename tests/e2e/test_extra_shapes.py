"""Where dimensions are symbolic, kernels are checked at lengths other than those that they are timed on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import collage
from collage._errors import UsageError
from collage.measure.session import MeasureSession
from collage.numerics.value_store import ValueStore
from collage.runtime import Executable
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from tests.e2e.conftest import LENT
from tests.figures import figures

HEADER = '<ir_version: 10, opset_import: ["" : 17]>'
ROWS = "(float[n,4] x) => (float[n,4] y) {h = Neg (x) y = Relu (h)}"
FIXED = "(float[2,4] x) => (float[2,4] y) {h = Neg (x) y = Relu (h)}"
EVEN = "(float[n] x) => (float y) <int64[2] two = {2, -1}> {h = Reshape (x, two) y = ReduceSum <keepdims = 0> (h)}"
ONE_ROW = "(float[n,4] x) => (float[n,4] y) <int64[2] one = {1, 4}> {h = Reshape (x, one) y = Relu (h)}"
"""Says that it takes any number of rows, and does not."""
CENTRED = (
    "(float[n,16] x) => (float[n,16] y) <float[1] c = {0.3}, float[1] d = {0.7}, int64[1] rows = {0}> "
    "{p = Mul (x, c) q = Mul (x, d) r = Add (p, q) m = ReduceSum <keepdims = 1> (r, rows) y = Sub (x, m)}"
)
"""Of one row nothing is left but rounding."""
LESS = "(float[n,4] x) => (float[n,4] y) <int64[2] one = {1, -1}> {h = Reshape (x, one) y = Relu (h)}"
"""Takes any number of rows, and then returns what it does not say."""


@pytest.fixture(autouse=True, scope="module")
def anew() -> Iterator[None]:
    """End the worker of the fake. Tests of one misbehaviour share it, and another misbehaviour replaces it."""
    yield
    LENT.pop("fake").kill()


def compiled(graph: str, misbehaviour: str, folder: Path, finals: bool = False, **options: object) -> Executable:
    model = onnx.ModelProto()
    model.CopyFrom(parser.parse_model(f"{HEADER} g {graph}"))
    toolchains = Registry()
    toolchains.add(FakeToolchain(misbehaviour))
    told = collage.CompileOptions(db=str(folder / "t.sqlite"), finals=finals, allow_host=True, **options)  # type: ignore[arg-type]
    return collage.compile(model, ["fake"], options=told, toolchains=toolchains, workers=LENT)


def single(executable: Executable) -> dict[str, str]:
    row: dict[str, str] = figures(executable.report)["singles"][0]
    assert row["target"] == "llvm -compiler=fake"
    return row


@pytest.mark.parametrize(
    ("graph", "length", "shape"), [pytest.param(ROWS, 1, "[2, 4]", marks=pytest.mark.slow), (EVEN, 12, "[6]")]
)
def test_who_takes_the_first_length_for_a_constant_is_wrong(
    graph: str, length: int, shape: str, tmp_path: Path
) -> None:
    executable = compiled(graph, "run:stuck", tmp_path, dims={"n": length})
    assert f"at other lengths, x{shape}: output 'y': differs" in single(executable)["reason"]
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"host"}


def test_who_cannot_have_one_of_anything_is_wrong(tmp_path: Path) -> None:
    executable = compiled(ROWS, "run:single", tmp_path, dims={"n": 12})
    assert "at other lengths, x[1, 4]: output 'y': differs" in single(executable)["reason"]
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"host"}


def test_who_refuses_other_lengths_may_be_chosen_and_the_host_stands_in(tmp_path: Path) -> None:
    executable = compiled(ROWS, "run:choosy", tmp_path, finals=True)
    assert single(executable)["reason"] is None
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"fake"}
    x = np.float32([[-1, 0, 1, 2]])
    np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(-x, 0))
    three = np.repeat(x, 3, 0)
    with pytest.warns(RuntimeWarning, match="the host ran it instead"):
        np.testing.assert_array_equal(executable.run({"x": three})["y"], np.maximum(-three, 0))


def test_lengths_are_tried_where_the_model_says_something_false_of_its_output(tmp_path: Path) -> None:
    executable = compiled(LESS, "run:stuck", tmp_path)
    assert "at other lengths, x[2, 4]: output 'y': differs" in single(executable)["reason"]
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"host"}


@pytest.mark.parametrize(("graph", "told"), [(FIXED, None), pytest.param(ONE_ROW, [], marks=pytest.mark.slow)])
def test_lengths_that_the_model_does_not_take_are_not_tried(
    graph: str, told: list[dict[str, list[int]]] | None, tmp_path: Path
) -> None:
    executable = compiled(graph, "run:stuck", tmp_path)
    assert single(executable)["reason"] is None
    assert executable.report["numerics"]["other_lengths"] == told
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"fake"}


def test_what_points_into_a_symbolic_dimension_points_everywhere_in_it(tmp_path: Path) -> None:
    graph = "(float[nodes,4] x, int64[edges] i) => (float[edges,4] y) {h = Gather (x, i) y = Relu (h)}"
    executable = compiled(graph, "run:stuck", tmp_path, dims={"nodes": 20, "edges": 40})
    assert "at other lengths, x[15, 4], i[30]: output 'y': differs" in single(executable)["reason"]


def test_given_indices_allow_longer_ones_only(tmp_path: Path) -> None:
    graph = "(float[nodes,4] x, int64[edges] i) => (float[edges,4] y) {h = Gather (x, i) y = Relu (h)}"
    indices = np.arange(20, dtype=np.int64)[::-1].copy()
    executable = compiled(graph, "run:stuck", tmp_path, dims={"nodes": 20, "edges": 20}, inputs={"i": indices})
    assert "at other lengths, x[25, 4], i[25]: output 'y': differs" in single(executable)["reason"]


def test_given_inputs_are_cut_short(tmp_path: Path) -> None:
    executable = compiled(ROWS, "run:stuck", tmp_path, inputs={"x": np.ones((12, 4), np.float32)})
    assert "at other lengths, x[9, 4]: output 'y': differs" in single(executable)["reason"]
    assert executable.report["numerics"]["other_lengths"] == [{"x": [9, 4]}, {"x": [1, 4]}]


def test_a_length_that_is_fixed_is_the_only_one(tmp_path: Path) -> None:
    executable = compiled(ROWS, "run:stuck", tmp_path, fixed={"n": 3})
    assert single(executable)["reason"] is None
    assert executable.report["numerics"]["other_lengths"] is None
    assert [spec.shape for spec in executable.inputs] == [(3, 4)]
    x = np.float32([[-1, 0, 1, 2]])
    three = np.repeat(x, 3, 0)
    np.testing.assert_array_equal(executable.run({"x": three})["y"], np.maximum(-three, 0))
    with pytest.raises(UsageError, match=r"'x'.*\[3, 4\]"):
        executable.run({"x": x})


@pytest.mark.parametrize(
    ("graph", "length", "first", "again"),
    [
        (EVEN, 12, ["other", "other", "single"], ["other"]),
        pytest.param(ROWS, 12, ["other", "single", "single"], ["other", "single"], marks=pytest.mark.slow),
        pytest.param(CENTRED, 12, ["other", "single", "single"], ["other"], marks=pytest.mark.slow),
        (ONE_ROW, 1, ["other"], []),
    ],
)
def test_which_lengths_a_model_takes_is_found_out_once(
    graph: str, length: int, first: list[str], again: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    capture = MeasureSession.capture

    def counted(measure_session: MeasureSession, model: ir.Model, target: Target, values: ValueStore) -> None:
        runs.append(values.folder.name)
        capture(measure_session, model, target, values)

    monkeypatch.setattr(MeasureSession, "capture", counted)
    for tries in (first, again):
        runs.clear()
        executable = compiled(graph, "run:stuck", tmp_path, dims={"n": length})
        kinds = [name.split("_lengths")[0] for name in runs if not name.startswith("probe_")]
        assert kinds == ["values", "other_values", *tries]
        assert ("at other lengths" in str(single(executable)["reason"])) == bool(again)
