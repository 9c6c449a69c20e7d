"""Modules as PyTorch's two exporters write them, at random operator sets."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from tests.fuzz.draft import Sample

Stage = Callable[[Any, Any], Any]
OPSETS_OF_SCRIPTS = range(11, 19)
OPSETS_OF_PROGRAMS = range(18, 22)
BATCH = 3


def draw(number: int) -> Sample:
    """Return a module of a few random stages, exported; every third with a batch of any length."""
    import torch

    rng = random.Random(number)
    torch.manual_seed(number)
    torch.set_num_threads(1)
    kind = rng.choice(tuple(KINDS))
    first, stages = KINDS[kind]
    chosen = [rng.choice(stages) for _ in range(rng.randint(1, 4))]
    module = _Chain([each(rng) for each in chosen]).eval()
    x = first()
    is_open = number % 3 == 0
    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.inference_mode():
        warnings.simplefilter("ignore")
        if rng.random() < 0.35:
            dims = ({0: torch.export.Dim("batch", min=1, max=64)},) if is_open else None
            opset = rng.choice(OPSETS_OF_PROGRAMS)
            program = torch.onnx.export(
                module, (x,), dynamo=True, opset_version=opset, dynamic_shapes=dims, verbose=False
            )
            model = program.model_proto
        else:
            torch.onnx.export(
                module,
                (x,),
                file,
                dynamo=False,
                opset_version=rng.choice(OPSETS_OF_SCRIPTS),
                input_names=["x"],
                dynamic_axes={"x": {0: "batch"}} if is_open else None,
                do_constant_folding=rng.random() < 0.5,
            )
            model = onnx.load_from_string(file.getvalue())
    return Sample(model, {model.graph.input[0].name: x.numpy()})


def _Chain(stages: Sequence[Any]) -> Any:
    import torch

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList([s if isinstance(s, torch.nn.Module) else _Called(s) for s in stages])

        def forward(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return x

    return Chain()


def _Called(call: Any) -> Any:
    import torch

    class Called(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return call(x)

    return Called()


def _row() -> Any:
    import torch

    return torch.randn(BATCH, 6, 8)


def _image() -> Any:
    import torch

    return torch.randn(BATCH, 4, 8, 8)


def _tokens() -> Any:
    import torch

    return torch.randint(0, 10, (BATCH, 6))


def _of_rows() -> Sequence[Callable[[random.Random], Any]]:
    def nn() -> Any:
        import torch

        return torch

    def attention(rng: random.Random) -> Any:
        torch = nn()
        wide = torch.nn.MultiheadAttention(8, rng.choice((1, 2, 4)), batch_first=True)

        class Attends(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = wide

            def forward(self, x: Any) -> Any:
                return self.inner(x, x, x, need_weights=False)[0]

        return Attends()

    def masked(rng: random.Random) -> Any:
        torch = nn()
        low = rng.choice((float("-inf"), -1e9, torch.finfo(torch.float32).min))

        def call(x: Any) -> Any:
            scores = x @ x.transpose(1, 2)
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return torch.softmax(scores.masked_fill(mask, low), -1) @ x

        return call

    def recurrent(rng: random.Random) -> Any:
        torch = nn()
        inner = getattr(torch.nn, rng.choice(("LSTM", "GRU", "RNN")))(8, 8, batch_first=True)

        class Runs(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Any) -> Any:
                return self.inner(x)[0]

        return Runs()

    def encoder(rng: random.Random) -> Any:
        return nn().nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=rng.random() < 0.5)

    calls: Mapping[str, Callable[[Any], Any]] = {
        "log": lambda x: (x.abs() + 1e-9).log(),
        "normal": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-12),
        "normalize": lambda x: nn().nn.functional.normalize(x, dim=-1, eps=1e-12),
        "rms": lambda x: x * nn().rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8),
        "std": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6),
        "var": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-12).sqrt(),
        "clamp": lambda x: x.clamp(min=-1, max=1).clamp_min(1e-7).log(),
        "where": lambda x: nn().where(x > 0, x.sqrt(), x.new_zeros(())),
        "nan": lambda x: nn().nan_to_num(x / x, nan=0.5),
        "int": lambda x: (x * 10).to(nn().int64).remainder(7).to(x.dtype),
        "floor": lambda x: nn().floor_divide(x, 0.3),
        "cumsum": lambda x: x.cumsum(1),
        "topk": lambda x: x.topk(3, dim=1).values,
        "sort": lambda x: x.sort(dim=1).values,
        "argmax": lambda x: nn().nn.functional.one_hot(x.argmax(-1), 8).to(x.dtype),
        "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
        "cdist": lambda x: nn().cdist(x, x),
        "einsum": lambda x: nn().einsum("bij,bkj->bik", x, x),
        "roll": lambda x: x.roll(2, 1),
        "flip": lambda x: x.flip(1),
        "half": lambda x: x.half().float(),
        "gelu": lambda x: nn().nn.functional.gelu(x, approximate="tanh"),
        "logsigmoid": lambda x: nn().nn.functional.logsigmoid(x),
        "softplus": lambda x: nn().nn.functional.softplus(x, beta=2, threshold=5),
        "scatter": lambda x: nn().zeros_like(x).scatter(1, x.argsort(dim=1), x),
        "pad": lambda x: nn().nn.functional.pad(x, (1, 1))[..., 1:-1],
        "chunk": lambda x: nn().cat(x.chunk(2, 1)[::-1], 1),
        "minmax": lambda x: (
            (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1e-8)
        ),
        "hypot": lambda x: (x * x + 1e-20).sqrt(),
        "index": lambda x: x[:, [2, 0, -1]],
        "sign": lambda x: x.sign() * x.abs().pow(0.5),
        "erfinv": lambda x: nn().atan2(x, x.flip(1)),
        "trunc": lambda x: x - x.trunc(),
        "round": lambda x: (x * 2).round() / 2,
        "heaviside": lambda x: (x >= 0).to(x.dtype) - (x < 0).to(x.dtype),
    }
    plain: list[Callable[[random.Random], Any]] = [
        lambda rng: nn().nn.Linear(8, 8, bias=rng.random() < 0.7),
        lambda rng: nn().nn.LayerNorm(8, eps=rng.choice((1e-5, 1e-12))),
        attention,
        masked,
        recurrent,
        encoder,
    ]
    return [*plain, *plain[:2], *(lambda rng, call=call: call for call in calls.values())]


def _of_images() -> Sequence[Callable[[random.Random], Any]]:
    def nn() -> Any:
        import torch

        return torch.nn

    def batch(rng: random.Random) -> Any:
        norm = nn().BatchNorm2d(4, eps=rng.choice((1e-5, 1e-3, 1e-12)))
        norm.running_var.fill_(rng.choice((1.0, 1e-10, 0.5)))
        return norm

    def resized(rng: random.Random) -> Any:
        mode = rng.choice(("nearest", "bilinear", "bicubic"))
        told = {} if mode == "nearest" else {"align_corners": rng.random() < 0.5}
        scale = rng.choice((2.0, 0.5, 1.5))
        return lambda x: nn().functional.interpolate(
            nn().functional.interpolate(x, scale_factor=scale, mode=mode, **told), size=(8, 8)
        )

    return [
        lambda rng: nn().Conv2d(
            4, 4, rng.choice((1, 3)), padding="same", groups=rng.choice((1, 2, 4)), bias=rng.random() < 0.6
        ),
        lambda rng: nn().Sequential(nn().Conv2d(4, 4, 3, padding=1), batch(rng), nn().ReLU()),
        lambda rng: nn().ConvTranspose2d(4, 4, 3, padding=1),
        batch,
        resized,
        lambda rng: nn().GroupNorm(2, 4, eps=rng.choice((1e-5, 1e-12))),
        lambda rng: nn().InstanceNorm2d(4, affine=rng.random() < 0.5),
        lambda rng: nn().MaxPool2d(3, 1, 1),
        lambda rng: nn().AvgPool2d(3, 1, 1, count_include_pad=rng.random() < 0.5),
        lambda rng: nn().Sequential(nn().AdaptiveAvgPool2d(2), nn().Upsample(scale_factor=4)),
        lambda rng: rng.choice(
            (nn().SiLU, nn().Hardswish, nn().GELU, nn().Mish, nn().ReLU6, nn().ELU, nn().Softmax2d, nn().Tanhshrink)
        )(),
        lambda rng: nn().PReLU(4),
        lambda rng: nn().Sequential(nn().PixelUnshuffle(2), nn().PixelShuffle(2)),
        lambda rng: nn().ReflectionPad2d((1, 1, 0, 0)) if rng.random() < 0.5 else nn().ZeroPad2d(1),
        lambda rng: nn().LocalResponseNorm(3),
        lambda rng: lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
        lambda rng: lambda x: x / (x.std((2, 3), keepdim=True) + 1e-9),
        lambda rng: lambda x: (x.abs() + 1e-10).log10(),
    ]


def _of_tokens() -> Sequence[Callable[[random.Random], Any]]:
    def embedded(rng: random.Random) -> Any:
        import torch

        inner = torch.nn.Embedding(10, 8, padding_idx=rng.choice((None, 0)))
        after = _Chain(
            [
                each(rng) if isinstance(each(rng), torch.nn.Module) else _Called(each(rng))
                for each in rng.sample(_of_rows(), 2)
            ]
        )
        return torch.nn.Sequential(inner, after)

    def counted(rng: random.Random) -> Any:
        import torch

        calls = (
            lambda x: (x != 0).to(torch.int64).cumsum(1) * (x != 0).to(torch.int64),
            lambda x: torch.where(x > 3, x * 2**33, -x),
            lambda x: x * 6364136223846793005 + 1442695040888963407,
            lambda x: x // 3 + x % 4,
            lambda x: (x.to(torch.float32) / 7 + 1e-9).log().to(torch.float32),
            lambda x: x.sum(1, keepdim=True) + x.max(1, keepdim=True).values,
            lambda x: torch.bitwise_and(x, 3) + torch.bitwise_xor(x, 5),
        )
        return rng.choice(calls)

    def last(rng: random.Random) -> Any:
        return embedded(rng) if rng.random() < 0.6 else counted(rng)

    return [last]


KINDS: Mapping[str, tuple[Callable[[], Any], Sequence[Callable[[random.Random], Any]]]] = {
    "rows": (_row, _of_rows()),
    "images": (_image, _of_images()),
    "tokens": (_tokens, _of_tokens()),
}
