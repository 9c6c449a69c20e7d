from __future__ import annotations

import sys
from collections.abc import Callable

import onnx_ir as ir
import pytest
from onnx import parser
from tests.unit.transform.recording import Recorder

from collage.transform import _alter_op_layout, _pass, _pass_names


@pytest.fixture(autouse=True)
def registry_of_its_own(monkeypatch) -> None:
    """What a test registers is gone when it ends."""
    monkeypatch.setattr(_pass, "_FACTORIES", dict(_pass._FACTORIES))
    monkeypatch.setattr(_pass_names, "_NAMES", set(_pass_names._NAMES))
    monkeypatch.setattr(_alter_op_layout, "_REQUESTS", dict(_alter_op_layout._REQUESTS))


@pytest.fixture
def model() -> ir.Model:
    return ir.from_proto(
        parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        main (float[2] x, bool c) => (float[2] y) {
            a = Relu (x)
            b = local.f (a)
            y = If (c) <
                then_branch = then_body () => (float[2] t) { t = Relu (b) },
                else_branch = else_body () => (float[2] e) { e = Neg (b) }
            >
        }
        <domain: "local", opset_import: ["" : 17]>
        f (p) => (q) { q = Relu (p) }
    """)
    )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def install(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """Puts a package of one module on the path as pip would, with what its pyproject.toml says of entry points."""

    def make(module: str, entry_points: str) -> None:
        (tmp_path / "third_party_package.py").write_text(module)
        information = tmp_path / "third_party_package-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party-package\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "third_party_package", raising=False)

    return make
