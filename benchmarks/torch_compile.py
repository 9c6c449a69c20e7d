"""Measure ``torch.compile(backend="collage")`` on three models of the package ``transformers``, with random weights.

::

    python -m benchmarks.torch_compile [--models bert,gpt2,llama,vit] [--targets onnxruntime] [--time-budget 60] [--json out.json]

Each model is called with five shapes: batches or lengths, and for the decoders a prefill, steps with past keys and values of
growing lengths, and a second prefill. Each runs in two processes, one after the other. The first compiles. The second finds what
the first one left in the cache. Prints, for each model:

* seconds of the calls that compile, by shape, and seconds that all first calls of the second process take;
* for each shape the largest difference from eager PyTorch, relative to the largest value, and what it took, in turns with
  eager PyTorch: medians and their ratio, above 1 where Collage is faster;
* graphs that were left to PyTorch, with the reason.

Exit code 1 if results differ, a graph was left to PyTorch, or a ratio is below 0.95. ``pip install transformers`` first.
A quiet machine is a must for the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._arguments import make_parser

SHAPES = 5
TOLERANCE = 1e-3
SLOWER = 0.95


@dataclass
class Row:
    """One shape of a model.

    Attributes:
        shape: Its name.
        first_s: Seconds of the first call.
        error: Largest difference from PyTorch, relative to the largest value.
        eager_ms: Median of eager PyTorch.
        compiled_ms: Median of what was compiled.
    """

    shape: str
    first_s: float
    error: float = 0.0
    eager_ms: float = 0.0
    compiled_ms: float = 0.0

    @property
    def ratio(self) -> float:
        """The speed-up over eager PyTorch."""
        return self.eager_ms / self.compiled_ms if self.compiled_ms else float("nan")


@dataclass
class Told:
    """The findings of one process about a model."""

    model: str
    import_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


Calls = Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]


def bert(torch: Any) -> tuple[Any, Calls]:
    """Return an encoder, and tokens of five lengths and batches."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512, vocab_size=1000
    )
    calls = []
    for batch, length in ((1, 16), (1, 32), (2, 24), (4, 48), (1, 100)):
        ids = torch.randint(0, 1000, (batch, length))
        calls.append((f"{batch}x{length}", (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    return BertModel(config), calls


def gpt2(torch: Any) -> tuple[Any, Calls]:
    """Return a decoder, a prefill, and steps with past keys and values."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=1000, n_positions=256)
    model = GPT2LMHeadModel(config)
    return model, _decoding(torch, model, 1000)


def llama(torch: Any) -> tuple[Any, Calls]:
    """Return a decoder with rotated positions and grouped heads, a prefill, and steps with past keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=344,
        vocab_size=1000,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config)
    return model, _decoding(torch, model, 1000)


def vit(torch: Any) -> tuple[Any, Calls]:
    """Return a vision transformer, and five batches."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512, image_size=96, patch_size=16
    )
    calls = [(f"{n}x3x96x96", (), {"pixel_values": torch.randn(n, 3, 96, 96)}) for n in (1, 2, 4, 3, 8)]
    return ViTModel(config), calls


MODELS: dict[str, Callable[[Any], tuple[Any, Calls]]] = {"bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit}


def _decoding(torch: Any, model: Any, words: int) -> Calls:
    from transformers import DynamicCache

    calls: list[Any] = [("prefill 8", (), {"input_ids": torch.randint(0, words, (1, 8)), "use_cache": True})]
    for past in (8, 9, 10):
        with torch.no_grad():
            cache = model(torch.randint(0, words, (1, past)), use_cache=True).past_key_values
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
        ids = torch.randint(0, words, (1, 1))
        calls.append((f"step after {past}", (), {"input_ids": ids, "pairs": pairs, "cache": DynamicCache}))
    calls.append(("prefill 24", (), {"input_ids": torch.randint(0, words, (1, 24)), "use_cache": True}))
    return calls


def _arguments(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments; a cache is made anew for each call, which writes to it."""
    given = dict(keywords)
    if "cache" in given:
        made = given.pop("cache")()
        for layer, (keys, values) in enumerate(given.pop("pairs")):
            made.update(keys.clone(), values.clone(), layer)
        given |= {"past_key_values": made, "use_cache": True}
    return given


def _tensors(torch: Any, output: Any) -> list[Any]:
    found = []
    for value in output.values():
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif hasattr(value, "layers"):
            found += [tensor for layer in value.layers for tensor in (layer.keys, layer.values)]
    return found


def measure(options: argparse.Namespace) -> Told:
    """Call one model, compiled and eager, in this process."""
    begin = time.perf_counter()
    import torch

    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.manual_seed(0)
    model, calls = MODELS[options.models](torch)
    model.eval()
    given: dict[str, Any] = {"cache_dir": options.cache, "finals": not options.quick, "wait": True}
    if options.targets:
        given["targets"] = options.targets.split(",")
    if options.time_budget:
        given["time_budget_s"] = options.time_budget
    told = Told(options.models, time.perf_counter() - begin)
    compiled = torch.compile(model, backend="collage", options=given, dynamic=options.dynamic)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name, positional, keywords in calls:
            begin = time.perf_counter()
            got = compiled(*positional, **_arguments(keywords))
            row = Row(name, time.perf_counter() - begin)
            expected = model(*positional, **_arguments(keywords))
            for one, other in zip(_tensors(torch, got), _tensors(torch, expected), strict=True):
                scale = float(other.abs().max()) or 1.0
                row.error = max(row.error, float((one - other).abs().max()) / scale)
            told.rows.append(row)
        for row, (_, positional, keywords) in zip(told.rows, calls, strict=True):
            times: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(options.runs):
                for ours in (True, False):
                    arguments = _arguments(keywords)
                    begin = time.perf_counter()
                    (compiled if ours else model)(*positional, **arguments)
                    times[ours].append(1e3 * (time.perf_counter() - begin))
            row.compiled_ms, row.eager_ms = statistics.median(times[True]), statistics.median(times[False])
    told.left = sorted({str(one.message)[:300] for one in said if "collage" in str(one.message)})
    return told


def _in_a_process(options: argparse.Namespace, model: str, cache: str) -> Told:
    given = ["--models", model, "--cache", cache, "--runs", str(options.runs)]
    for name in ("targets", "time_budget", "threads"):
        if getattr(options, name):
            given += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    given += ["--quick"] * options.quick + ["--dynamic"] * bool(options.dynamic)
    ran = subprocess.run([sys.executable, "-m", "benchmarks.torch_compile", *given], stdout=subprocess.PIPE, check=True)
    data = json.loads(ran.stdout.splitlines()[-1])
    return Told(data["model"], data["import_s"], [Row(**row) for row in data["rows"]], data["left"])


def report(first: Told, second: Told) -> bool:
    """Print what two processes found out about a model, and return if all is well."""
    total = sum(row.first_s for row in first.rows)
    again = sum(row.first_s for row in second.rows)
    print(f"{first.model}: {total:.1f} s of compiling; {again:.1f} s in a second process")
    print(
        f"  {'shape':<16}{'first call s':>13}{'again s':>9}{'error':>10}{'eager ms':>10}{'collage ms':>12}{'ratio':>7}"
    )
    for row, later in zip(first.rows, second.rows, strict=True):
        print(
            f"  {row.shape:<16}{row.first_s:>13.1f}{later.first_s:>9.2f}{max(row.error, later.error):>10.1e}"
            f"{later.eager_ms:>10.2f}{later.compiled_ms:>12.2f}{later.ratio:>7.2f}"
        )
    for line in sorted({*first.left, *second.left}):
        print(f"  {line}")
    is_right = all(row.error <= TOLERANCE for row in (*first.rows, *second.rows))
    return is_right and not first.left and not second.left and all(row.ratio >= SLOWER for row in second.rows)


def main() -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--targets", default="")
    parser.add_argument("--time-budget", type=float, default=0.0, help="seconds for each compilation")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="without the final comparison")
    parser.add_argument(
        "--dynamic", action="store_true", default=None, help="dynamic=True in place of PyTorch's default"
    )
    parser.add_argument("--json", help="write what was found to this file")
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cache:
        print(json.dumps(asdict(measure(options))))
        return 0
    is_well, found = True, []
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            first, second = (_in_a_process(options, model, cache) for _ in range(2))
        is_well &= report(first, second)
        found.append({"first": asdict(first), "second": asdict(second)})
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
