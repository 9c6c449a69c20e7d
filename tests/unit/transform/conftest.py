from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser
from tests.unit.transform.recording import Recorder

from collage.transform import _registry


@pytest.fixture(autouse=True)
def registry_of_its_own(monkeypatch) -> None:
    """What a test registers is gone when it ends."""
    monkeypatch.setattr(_registry, "_FACTORIES", dict(_registry._FACTORIES))
    monkeypatch.setattr(_registry, "_NAMES", set(_registry._NAMES))


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
