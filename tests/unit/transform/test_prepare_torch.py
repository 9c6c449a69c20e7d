"""Preparation of what PyTorch's two exporters emit."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from tests.unit.transform.graphs import assert_same, run

from collage.frontend import read_model
from collage.transform import prepare

torch = pytest.importorskip("torch")


class ConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, groups=4)
        self.norm2 = torch.nn.BatchNorm2d(8)
        self.up = torch.nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.norm3 = torch.nn.BatchNorm2d(6)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(6, 4)
        for norm in (self.norm, self.norm2, self.norm3):
            torch.nn.init.normal_(norm.running_mean)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.norm2(self.second(x)))
        x = torch.relu(self.norm3(self.up(x)))
        return self.head(self.drop(x.mean((2, 3))))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, tokens):
        x = self.embed(tokens)
        b, s, c = x.shape
        x = x + x.view(b, s, 2, c // 2).transpose(1, 2).reshape(b, s, c)
        return self.layer(x)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = torch.nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        y, h = self.gru(x)
        return y, h


CASES = {
    "conv": (ConvNet, lambda: torch.randn(2, 3, 8, 8)),
    "transformer": (Block, lambda: torch.randint(0, 50, (2, 7))),
    "gru": (Recurrent, lambda: torch.randn(2, 6, 4)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", CASES)
def test_exported_model_keeps_outputs(name, exporter):
    torch.manual_seed(0)
    make, make_input = CASES[name]
    module, x = make().eval(), make_input()
    if exporter == "dynamo":
        model = read_model(module, example_inputs=(x,))
    else:
        buffer = io.BytesIO()
        torch.onnx.export(
            module, (x,), buffer, dynamo=False, do_constant_folding=False, dynamic_axes={}, opset_version=17
        )
        model = read_model(buffer.getvalue())
    with torch.no_grad():
        expected = module(x)
    expected = [t.numpy() for t in (expected if isinstance(expected, tuple) else (expected,))]
    prepared = prepare(model)
    feeds = {prepared.graph.inputs[0].name: x.numpy()}
    assert_same(expected, run(prepared, feeds), 1e-4)
    kinds = [node.op_type for node in prepared.graph]
    assert not {"BatchNormalization", "Identity", "Constant", "Dropout"} & set(kinds)
    assert len(kinds) <= len(model.graph)


@pytest.mark.filterwarnings("ignore")
def test_a_module_in_training_mode_is_exported_for_inference_and_left_as_it_was():
    module = ConvNet().train()
    model = read_model(module, example_inputs=torch.randn(2, 3, 8, 8))
    assert module.training
    assert "Dropout" not in [node.op_type for node in model.graph]
    onnx.checker.check_model(__import__("onnx_ir").to_proto(model))
    assert np.isfinite(sum(v.const_value.nbytes for v in model.graph.initializers.values()))
