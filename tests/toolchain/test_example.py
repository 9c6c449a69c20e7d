"""The example of a third party's toolchain keeps the contract, and is found, chosen and run like those that ship."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.testing import ToolchainTestCase
from collage.toolchains import Registry
from collage.toolchains._registry import GROUP

EXAMPLE = Path(__file__).parents[2] / "examples" / "numexpr_toolchain"

pytest.importorskip("numexpr")
sys.path.append(str(EXAMPLE))

from collage_numexpr import NumexprToolchain  # noqa: E402  (found only now)


class TestNumexpr(ToolchainTestCase):
    toolchain = NumexprToolchain()
    takes = frozenset({"elementwise", "dynamic_elementwise"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=op) for i, op in enumerate(["Tanh", "Erf", "Sigmoid"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in ("v0", "v3"))
    graph = helper.make_graph(nodes, "chain", [x], [y])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def test_it_is_found_by_its_entry_point_and_shares_a_model_with_others(model: Path, tmp_path: Path) -> None:
    point = EntryPoint("numexpr", "collage_numexpr:NumexprToolchain", GROUP)
    host = EntryPoint("host", "collage.toolchains.host.toolchain:HostToolchain", GROUP)
    toolchains = Registry([point, host])
    assert str(toolchains.parse_target("numexpr")) == "llvm -libs=numexpr"
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"), finals=False)
    executable = collage.compile(model, ["numexpr"], toolchains=toolchains, options=options)
    owner = {node: kernel["target"] for kernel in executable.report["kernels"] for node in kernel["nodes"]}
    assert owner["Tanh"] == owner["Sigmoid"] == "llvm -libs=numexpr"
    assert owner["Erf"] == "llvm -compiler=host"
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    from scipy.special import erf

    np.testing.assert_allclose(executable.run({"v0": x})["v3"], 1 / (1 + np.exp(-erf(np.tanh(x)))), rtol=1e-5)


@pytest.mark.slow
def test_it_installs_with_pip(tmp_path: Path) -> None:
    here = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(tmp_path),
    ]
    subprocess.run([*here, str(EXAMPLE)], check=True)
    seen = "import collage.toolchains as t; print(t.registry().get('numexpr').availability().available)"
    told = subprocess.run(
        [sys.executable, "-c", seen], check=True, capture_output=True, text=True, env={"PYTHONPATH": f"{tmp_path}:src"}
    )
    assert told.stdout.strip() == "True"
