"""Workers come up without what hardly a job needs, and have it where one does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from collage.workers.worker import Worker

COUNTED = "late = lambda: sum(name.startswith('sympy.') for name in sys.modules)"


def run(code: str) -> None:
    begin = f"import sys; from collage.workers._lazy_imports import import_late; import_late(); {COUNTED}\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_models_are_read_without_symbolic_algebra_and_dimensions_computed_with_it() -> None:
    run(
        "import onnx_ir as ir\n"
        "header = '<ir_version: 10, opset_import: [\"\" : 17]>'\n"
        "model = ir.from_onnx_text(header + 'g (float[N,4] x) => (float[N,4] y) {y = Relu (x)}')\n"
        "assert model.graph.inputs[0].shape[0] == 'N' and not late()\n"
        "assert str((model.graph.inputs[0].shape[0] * 2 + 1).value) == '2*N + 1' and late()\n"
    )


@pytest.mark.parametrize(
    "code",
    ["import sympy.core.symbol", "from sympy import Symbol", "import torch, torch.fx.experimental.symbolic_shapes"],
)
def test_whoever_needs_it_at_once_has_it(code: str) -> None:
    run(f"import onnx_ir\n{code}\nimport sympy\nassert sympy.Symbol('n') + 1 - 1 == sympy.Symbol('n') and late()")


def test_what_is_not_there_is_missing_as_ever() -> None:
    run(
        "import_late(['no_such_module'])\n"
        "try:\n    import no_such_module\nexcept ModuleNotFoundError as error:\n    assert error.name == 'no_such_module'\n"
        "else:\n    sys.exit('found')\n"
    )


class Asked:
    """A service that says whether it has symbolic algebra."""

    def loaded(self) -> bool:
        import onnx_ir  # noqa: F401

        return "sympy.core" in sys.modules


def test_a_worker_comes_up_without_it() -> None:
    with Worker(f"{__name__}:Asked") as worker:
        assert worker.call("loaded", 60.0) is False
