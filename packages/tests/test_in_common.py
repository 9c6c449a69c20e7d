"""Properties of every toolchain, of those that packages bring. The core's tests try its own."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from tests.toolchain import test_import_probe, test_threads
from tests.toolchain.test_contrib_ops import ENCODER, NORMALISED, with_weights
from tests.toolchain.test_odd_nodes import nodes

from collage.target import Target
from collage.testing import executable_of
from collage.toolchains import registry, revision_of, support_for
from collage.toolchains.sdk import import_probe
from collage.transform import InferType

PACKAGES = sorted(path.parent for path in Path(__file__).parents[1].glob("*/pyproject.toml"))
PUBLIC = (
    "collage",
    "collage.graph",
    "collage.pattern",
    "collage.system.forks",
    "collage.target",
    "collage.toolchains",
    "collage.transform",
)
"""Modules of Collage that packages may use, and those below ``collage.toolchains.sdk`` and ``collage.pattern``."""
EXTENDED = {
    "collage-cuda": ("collage.toolchains.onnxruntime.toolchain", "collage.toolchains.tvm."),
    "collage-extern": ("collage.toolchains.tvm.",),
}
"""Packages that extend or drive a toolchain of Collage's own, and its modules."""
NAMES = ("extern", "inductor", "iree", "ncnn", "onednn")
GENERAL = ("extern", "inductor", "iree", "onednn")
"""The names of toolchains that take sequences, and not images only."""


def _slow_where_it_is(names: Iterable[str]) -> list[Any]:
    """Inductor builds for a minute. `extern` is TVM and oneDNN, which are tried by themselves."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in ("extern", "inductor") else name for name in names]


def usable(name: str) -> Any:
    toolchain = registry().get(name)
    if not (found := toolchain.availability()).available:
        pytest.skip(f"{name}: {found.reason}")
    return toolchain


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_uses_what_strangers_may_use(package: Path) -> None:
    own = {path.name for path in (package / "src").iterdir() if path.is_dir()}
    for source in (package / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_bytes())):
            modules = [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in (each for each in modules if each.split(".")[0] == "collage"):
                allowed = module in PUBLIC or module.startswith(
                    ("collage.toolchains.sdk.", "collage.pattern.", *EXTENDED.get(package.name, ()))
                )
                assert allowed, f"{source.relative_to(package)} imports {module}"
    assert all(name.startswith("collage_") for name in own if not name.endswith(".egg-info"))


@settings(max_examples=50, deadline=None)
@given(node=nodes())
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_to_any_node(name: str, node: ir.Node) -> None:
    toolchain = registry().get(name)
    for stem in toolchain.targets:
        answer = toolchain.supports(node, Target.parse(stem))
        assert answer.ok is (answer.reason is None)
        assert answer.ok or (answer.reason and "\n" not in answer.reason)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_to_attributes_of_any_type(name: str) -> None:
    toolchain = registry().get(name)
    target = Target.parse(toolchain.targets[0])
    for schema in onnx.defs.get_all_schemas():
        for attribute, value in itertools.product(schema.attributes, (7, "ü", 0.5, [1, 2], ["a"])):
            inputs = [ir.Value(name=f"x{i}", type=ir.TensorType(ir.DataType.FLOAT)) for i in range(3)]
            odd = ir.convenience.convert_attribute(attribute, value)
            answer = toolchain.supports(ir.Node(schema.domain, schema.name, inputs, [odd]), target)
            assert answer.ok is (answer.reason is None)


@pytest.mark.parametrize("name", _slow_where_it_is(GENERAL))
@pytest.mark.parametrize("model", [ENCODER, NORMALISED], ids=["encoder", "normalised"])
def test_contributed_operators_are_right(model: onnx.ModelProto, name: str) -> None:
    usable(name)
    x = np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32)
    (got,), (expected,) = (executable_of(with_weights(model), t).run({"x": x}).values() for t in (name, "onnxruntime"))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GENERAL)
def test_contributed_operators_are_taken_one_by_one(name: str) -> None:
    toolchain = usable(name)
    target = Target.parse(toolchain.targets[0])
    for model in (ENCODER, NORMALISED):
        for node in InferType()(ir.from_proto(with_weights(model))).graph:
            assert support_for(toolchain, node, target).ok, node.op_type


@pytest.mark.parametrize("how", test_import_probe.BROKEN)
@pytest.mark.parametrize(("name", "package"), [("extern", "tvm"), ("inductor", "torch"), ("onednn", "torch")])
def test_a_broken_package_is_not_usable(
    name: str, package: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.setattr(import_probe, "_failures", {})
    test_import_probe.test_a_broken_package_is_not_usable(registry().get(name), package, how, tmp_path, monkeypatch)


@pytest.mark.skipif(len(test_threads.PROCESSORS) < 2, reason="there is one processor")
@pytest.mark.parametrize("name", _slow_where_it_is(["extern", "onednn"]))
def test_helpers_stay_off_their_callers_processor(name: str, tmp_path: Path) -> None:
    test_threads.test_a_helper_stays_off_its_callers_processor_and_rests_between_runs(name, tmp_path)


def test_every_toolchain_has_a_revision_of_its_own() -> None:
    revisions = [revision_of(registry().get(name)) for name in NAMES]
    assert all(revisions) and len({*revisions}) == len(revisions)
