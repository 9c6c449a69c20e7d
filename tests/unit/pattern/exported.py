"""Models of many operator groups as PyTorch's two exporters write them, and quantised."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from torch import nn
from torch.nn import functional as F

EXPORTERS = ("torchscript", "dynamo")


class Branches(nn.Module):
    """Independent branches by name, each on the example inputs that it names; one output each."""

    def __init__(self, branches: dict[str, tuple[str, nn.Module]], inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.wanted = {name: list(wanted) for name, (wanted, _) in branches.items()}
        self.branches = nn.ModuleDict({name: module for name, (_, module) in branches.items()})
        self.names = inputs
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, *values):
        given = dict(zip(self.names, values, strict=True))
        return tuple(module(*(given[n] for n in self.wanted[name])) for name, module in self.branches.items())


class Calls(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values):
        return self.function(*values)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return F.relu(self.inner(x) + torch.tanh(x))


def attend(q, k, v, mask=None, **options):
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def normalise(x):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)


def root_mean_square(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def branches() -> dict[str, tuple[str, nn.Module]]:
    """Input names (i image, t tokens, r rows, q k v m attention) and the module of each branch."""

    def conv(*then: nn.Module, bias: bool = True, groups: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=bias, groups=groups), *then)

    def linear(*then: nn.Module, bias: bool = True) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16, bias=bias), *then)

    return {
        "conv": ("i", conv()),
        "conv_relu": ("i", conv(nn.ReLU())),
        "conv_bn_relu6": ("i", conv(nn.BatchNorm2d(4), nn.ReLU6(), bias=False)),
        "conv_depthwise_hardswish": ("i", conv(nn.Hardswish(), groups=4)),
        "conv_silu": ("i", conv(nn.SiLU())),
        "conv_gelu": ("i", conv(nn.GELU())),
        "conv_mish": ("i", conv(nn.Mish())),
        "conv_prelu": ("i", conv(nn.PReLU())),
        "conv_softplus": ("i", conv(nn.Softplus())),
        "convtranspose_leaky": ("i", nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.LeakyReLU(0.1))),
        "residual_conv": ("i", Residual(nn.Conv2d(4, 4, 3, padding=1))),
        "residual_linear": ("t", Residual(nn.Linear(16, 16))),
        "linear": ("t", linear()),
        "linear_relu": ("t", linear(nn.ReLU())),
        "gemm_tanh": ("r", linear(nn.Tanh())),
        "linear_gelu": ("t", linear(nn.GELU())),
        "linear_nobias_gelu": ("t", linear(nn.GELU(), bias=False)),
        "linear_gelutanh": ("t", linear(nn.GELU("tanh"))),
        "gemm_gelu": ("r", linear(nn.GELU())),
        "gelu_written_out": ("t", Calls(tanh_gelu)),
        "layernorm": ("t", nn.LayerNorm(16)),
        "layernorm_written_out": ("t", Calls(normalise)),
        "rmsnorm_written_out": ("t", Calls(root_mean_square)),
        "groupnorm_silu": ("i", nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU())),
        "attention": ("qkv", Calls(attend)),
        "attention_mask": ("kvqm", Calls(attend)),
        "attention_causal": ("vqk", Calls(lambda q, k, v: attend(q, k, v, is_causal=True))),
        "attention_scale": ("qkv", Calls(lambda q, k, v: attend(q, k, v, scale=0.3))),
        "attention_written_out": (
            "qkv",
            Calls(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v),
        ),
    }


@cache
def export(exporter: str, half: bool = False, opset: int | None = None, only: tuple[str, ...] = ()) -> ir.Model:
    """The branches in one model; each one's output is named as the branch is."""
    torch.manual_seed(0)
    chosen = {name: branch for name, branch in branches().items() if not only or name in only}
    example = {"i": torch.randn(1, 4, 8, 8), "t": torch.randn(2, 5, 16), "r": torch.randn(3, 16)}
    example.update({name: torch.randn(1, 2, 5, 8) for name in "qkv"}, m=torch.randn(1, 1, 5, 5))
    used = {n: value for n, value in example.items() if any(n in wanted for wanted, _ in chosen.values())}
    module, values = Branches(chosen, tuple(used)).eval(), tuple(used.values())
    if half:
        module, values = module.half(), tuple(value.half() for value in values)
    options = {"input_names": list(used), "output_names": list(chosen), "opset_version": opset}
    with _quiet():
        if exporter == "dynamo":
            return torch.onnx.export(module, values, dynamo=True, verbose=False, **options).model
        file = io.BytesIO()
        torch.onnx.export(module, values, file, dynamo=False, **{**options, "opset_version": opset or 17})
        return ir.from_proto(onnx.load_from_string(file.getvalue()))


def quantise(model: ir.Model, style: str, folder: Path) -> ir.Model:
    """The model as ONNX Runtime's quantiser leaves it; style is ``QDQ``, ``QOperator`` or ``dynamic``."""
    from onnxruntime import quantization

    proto = ir.to_proto(model)
    proto.ir_version = min(proto.ir_version, 10)
    source, result = folder / "model.onnx", folder / f"{style}.onnx"
    onnx.save(proto, source)
    with _quiet():
        if style == "dynamic":
            quantization.quantize_dynamic(source, result)
        else:

            class Samples(quantization.CalibrationDataReader):
                left = [{v.name: torch.randn(tuple(v.shape.numpy())).numpy() for v in model.graph.inputs}]

                def get_next(self):
                    return self.left.pop() if self.left else None

            quantization.quantize_static(
                source, result, Samples(), quant_format=quantization.QuantFormat[style], per_channel=True
            )
    return ir.load(result)


@contextlib.contextmanager
def _quiet():
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
