"""What ends without an executable, in Python: nothing of what was named is of use, or the model cannot be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import collage
from collage._errors import ModelError, NothingCanRun, WrongAnswer
from collage.runtime import Executable
from collage.testing import FakeToolchain
from collage.toolchains import Availability, Registry, registry
from tests.e2e.conftest import LENT
from tests.e2e.fake_short_toolchain import ShortToolchain

HEADER = '<ir_version: 10, opset_import: ["": 20]>'
CHAIN = "(float[2,4] x) => (float[2,4] y) { [neg] h = Neg(x) [relu] y = Relu(h) }"
VIEWS = "(float[2,4] x) => (float[4,2] y) { s = Constant <value = int64[2] {4, 2}> () y = Reshape(x, s) }"
RESHAPE = "(float[4,9] x, int64[2] s) => (float[P,Q] y) { t = Mul(s, s) [one] z = Reshape <allowzero = 1> (x, t) y = Relu(z) }"


class Absent(FakeToolchain):
    """Cannot be used here."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.worker_arguments = {"name": name}

    def availability(self) -> Availability:
        return Availability(False, reason="there is no such chip; no driver either", remedy="buy one; install a driver")


def compiled(graph: str, folder: Path, *toolchains: FakeToolchain, **options: Any) -> Executable:
    given = Registry()
    for installed in registry():
        given.add(installed)
    for toolchain in toolchains:
        given.add(toolchain)
    told = collage.CompileOptions(**{"db": str(folder / "t.sqlite"), "finals": False, **options})
    model = onnx.parser.parse_model(f"{HEADER} g {graph}")
    names = [toolchain.name for toolchain in toolchains] or ["onnxruntime"]
    return collage.compile(model, names, options=told, toolchains=given, workers=LENT)


def test_each_reason_and_remedy_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(NothingCanRun) as refusal:
        compiled(CHAIN, tmp_path, Absent("one"), Absent("two"))
    assert str(refusal.value) == (
        "no target of the menu runs any of the model: one, two: there is no such chip, no driver either. What helps: buy one; "
        "install a driver. --allow-host (in Python allow_host=True) runs it without a toolchain and without optimisations"
    )
    executable = compiled(CHAIN, tmp_path, Absent("one"), Absent("two"), allow_host=True)
    x = np.float32([[-1, 0, 1, 2], [3, -4, 5, -6]])
    np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(-x, 0))


def test_a_target_that_refuses_is_no_use(tmp_path: Path) -> None:
    with pytest.raises(NothingCanRun, match="fake: ") as refusal:
        compiled(CHAIN, tmp_path, FakeToolchain("compile:refuse"))
    assert "scratch" not in str(refusal.value)


def test_a_target_that_is_wrong_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(WrongAnswer, match=r"no target of the menu runs the model rightly: fake: .*differs"):
        compiled(CHAIN, tmp_path, FakeToolchain("run:wrong"))


def test_one_target_of_use_is_enough(tmp_path: Path) -> None:
    executable = compiled(CHAIN, tmp_path, Absent("one"), FakeToolchain())
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"fake"}


def test_views_are_free_on_the_host_wherever_they_are_asked_for(tmp_path: Path) -> None:
    assert compiled(VIEWS, tmp_path).run({"x": np.ones((2, 4), np.float32)})["y"].shape == (4, 2)
    with pytest.raises(NothingCanRun):
        compiled(VIEWS, tmp_path, Absent("one"))


def test_the_host_is_a_target_where_it_is_named(tmp_path: Path) -> None:
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"), finals=False)
    model = onnx.parser.parse_model(f"{HEADER} g {CHAIN}")
    executable = collage.compile(model, ["host"], options=options, workers=LENT)
    assert {kernel.compiled.toolchain for kernel in executable.recipe.kernels} == {"host"}


def test_inputs_that_cannot_be_made_up_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"node 'one' \(Reshape\).*--input x=FILE.npy"):
        compiled(RESHAPE, tmp_path)
    given = {"s": np.array([3, 2])}
    executable = compiled(RESHAPE, tmp_path, inputs=given)
    assert executable.run({"x": np.ones((4, 9), np.float32), **given})["y"].shape == (9, 4)
    wrong = {"x": np.ones((4, 9), np.float32), "s": np.array([4, 4])}
    with pytest.raises(ModelError) as refusal:
        compiled(RESHAPE, tmp_path, inputs=wrong)
    assert "made up" not in str(refusal.value)


@pytest.mark.parametrize("options", [{}, {"finals": True, "time_budget_s": 0.01}])
def test_a_range_that_fails_leaves_its_toolchain_the_others(options: dict[str, Any], tmp_path: Path) -> None:
    nodes = "a = Relu(x) b = Abs(a) c = Relu(b) d = Neg(c) e = Abs(d) y = Relu(e)"
    executable = compiled(f"(float[2,4] x) => (float[2,4] y) {{ {nodes} }}", tmp_path, ShortToolchain(), **options)
    kernels = [(kernel.target, len(kernel.nodes)) for kernel in executable.report.kernels]
    assert kernels == [("llvm -compiler=host", 4), ("llvm -compiler=short", 2)]
    x = np.float32([[-1, 2, -3, 4], [5, 6, 7, -8]])
    np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(x, 0))
