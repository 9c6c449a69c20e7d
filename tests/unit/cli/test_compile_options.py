"""Options of the command line about kernels and passes."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from collage._errors import ConfigError, UsageError
from collage.cli._app import _main
from collage.cli._compile_options import read_context, read_fusion
from collage.fusion import FusionOptions, FusionStyle
from collage.option_texts import read_penalties
from collage.transform import PassContext


def test_fusion() -> None:
    assert read_fusion(None, None, None, None) is None
    assert read_fusion(["openvino=none", "tvm=classic"], 3, 0, 7) == FusionOptions(
        3, 0, {"openvino": FusionStyle.NONE, "tvm": FusionStyle.CLASSIC}, max_candidates=7
    )
    assert read_fusion([], None, 2, None) == FusionOptions(max_depth=2)
    with pytest.raises(UsageError, match="fusion style 'all'"):
        read_fusion(["tvm=all"], None, None, None)
    with pytest.raises(UsageError, match="TOOLCHAIN=STYLE"):
        read_fusion(["tvm"], None, None, None)


def test_penalties() -> None:
    assert read_penalties(["openvino=20", "tvm=0.5"]) == {"openvino": pytest.approx(20e-6), "tvm": pytest.approx(5e-7)}
    for text in ("tvm=-1", "tvm=fast", "tvm=nan", "tvm=inf"):
        with pytest.raises(UsageError, match="--launch-penalty tvm="):
            read_penalties([text])


def test_context() -> None:
    with PassContext(opt_level=1, disabled_pass=["InferType"]):
        context = read_context(None, ["FoldConstant"], ["collage.tvm_max_depth=3", "collage.enable_collage=True"])
    assert context.opt_level == 1
    assert context.disabled_pass == {"InferType", "FoldConstant"}
    assert dict(context.config) == {"collage.tvm_max_depth": 3, "collage.enable_collage": True}
    assert read_context(3, None, None).opt_level == 3
    with pytest.raises(ConfigError, match="did you mean 'FoldConstant'"):
        read_context(None, ["FoldConstants"], None)
    with pytest.raises(ConfigError, match="did you mean"):
        read_context(None, None, ["collage.tvm_max_dept=3"])
    with pytest.raises(UsageError, match="is not of type int"):
        read_context(None, None, ["collage.tvm_max_depth=deep"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g (float[2] x) => (float[2] y) <float[2] b = {1.0, 2.0}> { h = Add (x, b) y = Relu (h) }"""
    onnx.save(ir.to_proto(ir.from_onnx_text(text)), path)
    return path


def test_inspecting_passes_takes_them(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["inspect", str(model), "--passes", "prepare"]) == 0
    assert "skipped: its level 3 is above the context's 2" in capsys.readouterr().out
    assert (
        _main(["inspect", str(model), "--passes", "prepare", "--opt-level", "3", "--disable-pass", "FoldConstant"]) == 0
    )
    out = capsys.readouterr().out
    assert "is above" not in out and "skipped: disabled" in out
    assert _main(["inspect", str(model), "--opt-level", "3"]) == 2
    assert "go with" in capsys.readouterr().err


def test_inspecting_a_plan_of_devices(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    devices = '[devices.main]\ndevice = "cpu:0"\n[devices.small]\ndevice = "cpu:1"\n'
    plan.write_text(f'default = "cpu:0"\n{devices}[operators]\nAdd = "small"\n')
    assert _main(["inspect", str(model), "--devices", str(plan)]) == 0
    out = capsys.readouterr().out
    assert "annotated on_device" in out and "copy of 'h' to cpu:0[llvm]" in out
    assert _main(["inspect", str(model), "--devices", str(plan), "--json"]) == 0
    assert '"copies"' in capsys.readouterr().out
    plan.write_text('[operators]\nConv = "cpu:1"\n')
    assert _main(["inspect", str(model), "--devices", str(plan)]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fusion-style", "openvin=none"], "did you mean 'openvino'"),
        (["--launch-penalty", "openvin=3"], "did you mean 'openvino'"),
        (["--passes", "FoldConstnt"], "did you mean 'FoldConstant'"),
        (["--disable-pass", "FoldConstnt"], "did you mean 'FoldConstant'"),
    ],
)
def test_compile_refuses_what_it_does_not_know(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert _main(["compile", str(model), "-o", str(tmp_path / "out"), "-t", "onnxruntime", *options]) == 2
    assert message in capsys.readouterr().err
