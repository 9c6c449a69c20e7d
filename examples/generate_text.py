"""Generate text token by token with a small decoder, on Collage, ONNX Runtime and OpenVINO.

::

    python examples/generate_text.py [--out FOLDER] [--tokens 64] [--narrow] [--layers 4] [--width 256]

The decoder is of today's kind: rotary positions, grouped heads, gated SiLU, random weights. It takes ``past_key_values`` and
returns ``present``. It is compiled for the lengths that generation meets: a prefill of the prompt, and many steps of one token.
What a step returns as ``present`` is the next step's past as it is: neither side copies it. Prints tokens for each second
of steps and milliseconds of the prefill, and compares the tokens of all three. ``--narrow`` lets Collage read weights of 4 bits.
Its tokens may then differ. Needs torch and onnxscript, and what is to be compared.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import collage

Array = np.ndarray[Any, Any]
Step = Callable[[Mapping[str, Any]], Mapping[str, Any]]

PROMPT = b"Once upon a time there was a compiler "
ROUNDS = 3


@dataclass(frozen=True)
class Size:
    """The parts of a decoder.

    Attributes:
        layers: Number of blocks.
        width: Of the activations.
        heads: Of queries.
        shared: Heads of keys and values.
        words: Number of tokens; here bytes.
    """

    layers: int = 4
    width: int = 256
    heads: int = 8
    shared: int = 2
    words: int = 256

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads


class Block(nn.Module):
    """Attention over the past and the new tokens, then a gated network."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        width, narrow = size.width, size.shared * size.head
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, narrow, bias=False), nn.Linear(width, narrow, bias=False)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def heads_of(self, x: Tensor, count: int) -> Tensor:
        """Split [1, T, count * D] to [1, count, T, D]."""
        return x.unflatten(-1, (count, self.size.head)).transpose(1, 2)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor], cosine: Tensor, sine: Tensor, mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return new activations, and keys and values of all tokens so far."""

        def rotated(heads: Tensor) -> Tensor:
            left, right = heads.chunk(2, -1)
            return heads * cosine + torch.cat([-right, left], -1) * sine

        y, size = self.norm1(x), self.size
        query = rotated(self.heads_of(self.query(y), size.heads))
        key = torch.cat([past[0], rotated(self.heads_of(self.key(y), size.shared))], 2)
        value = torch.cat([past[1], self.heads_of(self.value(y), size.shared)], 2)
        groups = size.heads // size.shared
        keys, values = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = (query @ keys.transpose(-1, -2)) * size.head**-0.5 + mask
        x = x + self.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), (key, value)


class Decoder(nn.Module):
    """Embedding, blocks, and logits of the last token, or of every new one."""

    def __init__(self, size: Size, *, every: bool = False) -> None:
        super().__init__()
        self.size, self.every = size, every
        self.word = nn.Embedding(size.words, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.logits = nn.Linear(size.width, size.words, bias=False)
        frequencies = 10000 ** (-torch.arange(0, size.head, 2) / size.head)
        self.register_buffer("frequencies", frequencies.repeat(2))

    def forward(
        self, input_ids: Tensor, past: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return logits [1, words] or [B, T, words], and keys and values of all tokens so far."""
        old, new = past[0][0].shape[2], input_ids.shape[1]
        positions = torch.arange(new) + old
        angles = positions[:, None] * self.frequencies[None]
        mask = torch.where(torch.arange(old + new)[None] <= positions[:, None], 0.0, -1e9)
        x, present = self.word(input_ids), []
        for block, pair in zip(self.blocks, past, strict=True):
            x, made = block(x, pair, angles.cos(), angles.sin(), mask)
            present.append(made)
        return self.logits(self.norm(x if self.every else x[:, -1])), present


def export(size: Size, path: Path, seed: int = 0) -> Path:
    """Write a decoder with random weights as ONNX, with symbolic lengths ``seq`` and ``past``."""
    torch.manual_seed(seed)
    return write(Decoder(size), path)


def write(decoder: Decoder, path: Path) -> Path:
    """Write a decoder as ONNX, with symbolic lengths ``seq`` and ``past``."""
    size = decoder.size
    pairs = [tuple(torch.zeros(1, size.shared, 5, size.head) for _ in range(2)) for _ in range(size.layers)]
    parts = [(n, part) for n in range(size.layers) for part in ("key", "value")]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            decoder.eval(),
            (torch.zeros(1, 3, dtype=torch.int64), pairs),
            input_names=["input_ids", *(f"past_key_values.{n}.{part}" for n, part in parts)],
            output_names=["logits", *(f"present.{n}.{part}" for n, part in parts)],
            dynamic_shapes=({1: "seq"}, [({2: "past"}, {2: "past"}) for _ in pairs]),
            dynamo=True,
            verbose=False,
        )
    program.save(path)
    return path


def compiled(path: Path, targets: Sequence[str] | None, seconds: float, narrow: bool) -> collage.Executable:
    """Compile a decoder for a prefill and for steps, of which there are many more."""
    options = collage.CompileOptions(
        dims={"seq": {1: 30.0, len(PROMPT): 1.0}, "past": {len(PROMPT) + 32: 30.0, 0: 1.0}},
        time_budget_s=seconds,
        accuracy_budget=0.3 if narrow else None,
    )
    return collage.compile(path, targets, options=options)


def on_onnxruntime(path: Path) -> Step:
    """Return a step of ONNX Runtime, whose values stay where they are."""
    import onnxruntime as ort

    session = ort.InferenceSession(path)
    names = [port.name for port in session.get_outputs()]

    def step(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        values = {
            name: x if isinstance(x, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(x) for name, x in feeds.items()
        }
        made = dict(zip(names, session.run_with_ort_values(names, values), strict=True))
        return {**made, "logits": made["logits"].numpy()}

    return step


def on_openvino(path: Path) -> Step:
    """Return a step of OpenVINO, with its latency hint, in float32."""
    import openvino as ov

    model = ov.Core().compile_model(path, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"})
    request, names = model.create_infer_request(), [port.any_name for port in model.outputs]

    def step(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        made = request.infer(dict(feeds), share_inputs=True)
        return dict(zip(names, made.to_tuple(), strict=True))

    return step


def generate(step: Step, size: Size, tokens: int) -> tuple[list[int], float, float]:
    """Return the most likely tokens after the prompt, seconds of the prefill, and seconds of all steps."""
    parts = [f"{n}.{part}" for n in range(size.layers) for part in ("key", "value")]
    past: dict[str, Any] = {name: np.zeros((1, size.shared, 0, size.head), np.float32) for name in parts}
    ids = np.frombuffer(PROMPT, np.uint8).astype(np.int64)[None]
    found: list[int] = []
    times = [time.perf_counter()]
    for _ in range(tokens):
        made = step({"input_ids": ids, **{f"past_key_values.{name}": value for name, value in past.items()}})
        past = {name: made[f"present.{name}"] for name in parts}
        found.append(int(made["logits"].argmax()))
        ids = np.array([[found[-1]]])
        times.append(time.perf_counter())
    return found, times[1] - times[0], times[-1] - times[1]


def compare(steps: Mapping[str, Step], size: Size, tokens: int) -> dict[str, list[int]]:
    """Generate on each engine in turns, print how fast, and return the tokens of each."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    found = {}
    for turn in range(ROUNDS + 1):
        for name, step in steps.items():
            found[name], prefill_s, steps_s = generate(step, size, tokens)
            if turn:  # Runtimes set memory aside in their first run.
                taken[name].append((prefill_s, steps_s))
    print(f"{'':<12}{'tokens/s':>10}{'prefill ms':>12}")
    for name, times in taken.items():
        prefill_s, steps_s = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:<12}{(tokens - 1) / steps_s:>10.0f}{1e3 * prefill_s:>12.2f}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".cache/generate"))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--narrow", action="store_true", help="let Collage read weights of 4 bits")
    parser.add_argument("--target", action="append", help="of Collage's menu; all that there are by default")
    parser.add_argument("--against", default="onnxruntime,openvino", help="what else generates, or nothing")
    parser.add_argument("--seconds", type=float, default=60.0, help="time budget of compiling")
    options = parser.parse_args(words)
    size = Size(layers=options.layers, width=options.width)
    options.out.mkdir(parents=True, exist_ok=True)
    path = export(size, options.out / "decoder.onnx")
    targets = options.target or (["onnxruntime", "onnxruntime -precision=w4"] if options.narrow else None)
    exe = compiled(path, targets, options.seconds, options.narrow)
    print(exe)
    engines = {"onnxruntime": on_onnxruntime, "openvino": on_openvino}
    steps: dict[str, Step] = {"collage": exe.run}
    steps |= {name: engines[name](path) for name in options.against.split(",") if name}
    found = compare(steps, size, options.tokens)
    first = found["collage"]
    differ = [name for name, tokens in found.items() if tokens != first]
    print("tokens of Collage: " + " ".join(map(str, first[:16])) + (" ..." if len(first) > 16 else ""))
    print(f"other tokens: {', '.join(differ)}" if differ else "all generate the same tokens")
    return 1 if differ and not options.narrow else 0


if __name__ == "__main__":
    sys.exit(main())
