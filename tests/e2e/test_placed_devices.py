"""What a plan of devices leaves free goes where it is cheapest, within what is demanded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage.compiler.fuse_ops_pass import CollageFuseOps
from collage.cost import Cost
from collage.device import AnnotateSEScopes, SEScope, read_device_plan
from collage.frontend import read_model
from collage.graph import kernels_of
from collage.target import Target
from collage.toolchains import Registry
from collage.transform import PassContext
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_two_device_toolchains import NearToolchain, TextureToolchain

NEAR = {"Relu": 2e-3, "MatMul": 30e-3, "Exp": 2e-3, "Abs": 2e-3}
FAR = {"Relu": 12e-3, "MatMul": 3e-3, "Exp": 12e-3, "Abs": 12e-3}
X = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)}
DEVICES = '[devices.near]\ndevice = "cpu:0"\n[devices.far]\ndevice = "cuda:0"\n'


@pytest.fixture(scope="module")
def menu() -> Registry:
    toolchains = Registry()
    toolchains.add(NearToolchain(NEAR))
    toolchains.add(NearToolchain(FAR, "far", "cuda"))
    return toolchains


def chain() -> onnx.ModelProto:
    """Products are faster there, all else is faster here; the last product gains least."""
    operators = ["Relu", "MatMul", "Exp", "Abs", "MatMul", "Relu"]
    nodes = [
        helper.make_node(
            op, [f"v{i}" if i else "x", *(["w"] if op == "MatMul" else [])], [f"v{i + 1}"], name=f"{op}{i}"
        )
        for i, op in enumerate(operators)
    ]
    tensor = (TensorProto.FLOAT, [4, 4])
    return model_of(nodes, {"x": tensor}, {"v6": tensor}, {"w": np.eye(4, dtype=np.float32)})


def devices_of(executable: collage.Executable) -> dict[str, str]:
    return {node: row["device"] for row in executable.report["kernels"] for node in row["nodes"]}


def compiled(menu: Registry, rest: str = "", head: str = "") -> collage.Executable:
    plan = read_device_plan((head + DEVICES + rest).encode())
    executable = collage.compile(
        chain(),
        ["near", "cuda:far"],
        options=collage.CompileOptions(devices=plan, finals=False, min_gain=0.0),
        toolchains=menu,
        workers=LENT,
    )
    expected = ort.InferenceSession(chain().SerializeToString()).run(None, X)[0]
    np.testing.assert_allclose(executable.run(X)["v6"], expected, rtol=1e-5)
    return executable


@pytest.fixture(scope="module")
def placed(menu: Registry) -> collage.Executable:
    """With nothing demanded."""
    return compiled(menu)


def test_every_operator_goes_to_the_device_on_which_it_is_cheapest(placed: collage.Executable) -> None:
    where = devices_of(placed)
    assert {where["MatMul1"], where["MatMul4"]} == {"cuda:0"}
    assert {where[name] for name in ("Relu0", "Exp2", "Abs3", "Relu5")} == {"cpu:0"}
    copies = [(copy.source, copy.src, copy.dst) for copy in placed.recipe.devices.copies]
    assert len(copies) == 4 and {src for _, src, _ in copies} == {"cpu:0", "cuda:0"}
    assert all(scope in (None, "cpu:0", "cuda:0") for kernel in placed.recipe.kernels for scope in kernel.reads)


def test_what_is_pinned_stays_and_the_rest_is_placed_around_it(menu: Registry) -> None:
    where = devices_of(compiled(menu, '[nodes]\nMatMul4 = "near"\nAbs3 = "far"\n'))
    assert where == {
        **{"Relu0": "cpu:0", "MatMul1": "cuda:0", "Exp2": "cpu:0"},
        **{"Abs3": "cuda:0", "MatMul4": "cpu:0", "Relu5": "cpu:0"},
    }


def test_a_default_leaves_nothing_to_the_search(menu: Registry) -> None:
    where = devices_of(compiled(menu, '[nodes]\nMatMul1 = "far"\n', head='default = "near"\n'))
    assert {where.pop("Relu0"), where.pop("MatMul1")} == {"cuda:0"}, "a reader pulls what it reads"
    assert set(where.values()) == {"cpu:0"}


def annotated(*scopes: tuple[str, set[str]]) -> ir.Model:
    """Return the chain, whose operators may be in the first scope or in others of which they are not left out."""
    takes = [(scope, lambda node, out=out: node.name not in out) for scope, out in scopes]
    return AnnotateSEScopes(takes)(read_model(chain()))


def test_of_several_candidate_scopes_the_search_takes_the_cheapest(menu: Registry) -> None:
    """Not only the first one, which a plan by hand takes; and none that is not among them."""
    model = annotated(("llvm -compiler=near", {"Abs3"}), ("cuda -compiler=far", {"MatMul4"}))
    options = collage.CompileOptions(devices=read_device_plan(DEVICES.encode()), finals=False, min_gain=0.0)
    executable = collage.compile(model, ["near", "cuda:far"], options=options, toolchains=menu, workers=LENT)
    where = devices_of(executable)
    assert {name for name, device in where.items() if device == "cuda:0"} == {"MatMul1", "Abs3"}
    expected = ort.InferenceSession(chain().SerializeToString()).run(None, X)[0]
    np.testing.assert_allclose(executable.run(X)["v6"], expected, rtol=1e-5)


def test_of_several_candidate_targets_of_one_device_any_may_compile_an_operator() -> None:
    seconds = {"one": 3e-3, "two": 2e-3, "best": 1e-3}
    toolchains = Registry()
    for name, each_s in seconds.items():
        toolchains.add(NearToolchain(dict.fromkeys(NEAR, each_s), name))
    model = annotated(("llvm -compiler=one", set()), ("llvm -compiler=two", {"Exp2", "Abs3"}))
    options = collage.CompileOptions(finals=False, min_gain=0.0)
    executable = collage.compile(model, list(seconds), options=options, toolchains=toolchains, workers=LENT)
    on = {node: row["target"].split("=")[1] for row in executable.report["kernels"] for node in row["nodes"]}
    assert on == {name: "one" if name in ("Exp2", "Abs3") else "two" for name in on} and len(on) == 6


def test_a_target_of_one_kind_never_serves_a_device_of_another(placed: collage.Executable) -> None:
    kinds = {row["device"].partition(":")[0]: row["target"].split()[0] for row in placed.report["kernels"]}
    assert kinds == {"cpu": "llvm", "cuda": "cuda"}


def test_an_artefact_that_was_placed_runs_in_debug_mode_too(
    placed: collage.Executable, menu: Registry, tmp_path: Path
) -> None:
    loaded = collage.load(placed.save(tmp_path / "placed.collage"), toolchains=menu, debug=True)
    np.testing.assert_array_equal(loaded.run(X)["v6"], placed.run(X)["v6"])


def test_the_memories_that_a_toolchain_demands_are_planned_and_the_runtime_sees_them(tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(NearToolchain(NEAR))
    toolchains.add(TextureToolchain(FAR, "far", "cuda"))
    executable = compiled(toolchains)
    products = [kernel for kernel in executable.recipe.kernels if kernel.device == "cuda:0"]
    assert len(products) == 2
    assert all(kernel.reads[0] == "cuda:0/texture" and kernel.writes == ("cuda:0/global",) for kernel in products)
    moved = {(copy.src, copy.dst) for copy in executable.recipe.devices.copies}
    assert ("cpu:0", "cuda:0/texture") in moved and ("cuda:0/global", "cpu:0") in moved
    loaded = collage.load(executable.save(tmp_path / "m.collage"), toolchains=toolchains, debug=True)
    np.testing.assert_array_equal(loaded.run(X)["v6"], executable.run(X)["v6"])


class ByOperator:
    """A cost estimator: what the operators cost, on the kind of device that the target is for."""

    def estimate(self, module: ir.Model, target: Target) -> Cost:
        known = NEAR if target.kind == "llvm" else FAR
        return Cost(seconds=sum(known[node.op_type] for node in module.graph))


def test_the_pass_places_with_an_estimator_too(menu: Registry) -> None:
    plan = read_device_plan((DEVICES + '[nodes]\nRelu0 = "far"\n').encode())
    fuse = CollageFuseOps(
        ["near", "cuda:far"],
        ByOperator(),
        options=collage.CompileOptions(devices=plan),
        toolchains=menu,
    )
    with PassContext(config={"collage.enable_collage": True}):
        partitioned = fuse(read_model(chain()))
    scopes = [
        (sorted(node.op_type for node in call.function), SEScope.parse(call.function.metadata_props["result_se_scope"]))
        for call in kernels_of(partitioned)
    ]
    assert [(nodes, str(scope.device)) for nodes, scope in scopes] == [
        (["MatMul", "Relu"], "cuda:0"),
        (["Abs", "Exp"], "cpu:0"),
        (["MatMul"], "cuda:0"),
        (["Relu"], "cpu:0"),
    ]
