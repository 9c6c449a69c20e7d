"""Growth of perplexity by weights of 4 bits: rounded to nearest, by GPTQ on several samples, and by NNCF's algorithms.

::

    python -m benchmarks.rounded_weights [--minutes 10] [--out FOLDER] [--compile]

A decoder of 13 million weights (that of ``examples/generate_text.py``) learns the bytes of Python's standard library. Perplexity
is that of files that it did not learn. ``--compile`` has Collage compile it, so that perplexity grows by at most 1 %. A trained
decoder in the folder is used again. NNCF's rows need ``pip install nncf``. An algorithm of NNCF that fails is named.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import collage
from collage.calibration.gptq import inverse_factor, rounded
from collage.toolchains.sdk.narrow_weights import BLOCK, rounded_blocks

EXAMPLE = Path(__file__).parents[1] / "examples" / "generate_text.py"
LENGTH, BATCH, JUDGED = 256, 8, 48
NNCF: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "AWQ": {"awq": True},
    "scale estimation": {"scale_estimation": True},
    "GPTQ": {"gptq": True},
}

Array = np.ndarray[Any, Any]


def example() -> Any:
    """Return the module with the decoder."""
    spec = importlib.util.spec_from_file_location("generate_text", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["generate_text"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts() -> tuple[Array, Array]:
    """Return the bytes of nine files in ten, and of the others."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(0).shuffle(files)
    contents = [np.frombuffer(file.read_bytes(), np.uint8).astype(np.int64) for file in files]
    held = len(contents) // 10
    return np.concatenate(contents[held:]), np.concatenate(contents[:held])


def pieces(text: Array, count: int, length: int = LENGTH) -> list[Array]:
    """Return parts of a text, evenly spread."""
    return [text[start : start + length] for start in np.linspace(0, len(text) - length, count).astype(int)]


def caches(size: Any, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the empty caches of a decoder."""
    empty = torch.zeros(batch, size.shared, 0, size.head)
    return [(empty, empty) for _ in range(size.layers)]


def train(decoder: Any, text: Array, seconds: float) -> None:
    """Have a decoder learn a text."""
    rates = torch.optim.AdamW(decoder.parameters(), lr=1e-3, weight_decay=0.1)
    began, past = time.monotonic(), caches(decoder.size, BATCH)
    rng = np.random.default_rng(0)
    while (share := (time.monotonic() - began) / seconds) < 1:
        rates.param_groups[0]["lr"] = 1.5e-3 * (1 - 0.95 * share)
        starts = rng.integers(0, len(text) - LENGTH - 1, BATCH)
        rows = torch.from_numpy(np.stack([text[start : start + LENGTH + 1] for start in starts]))
        logits, _ = decoder(rows[:, :-1], past)
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        rates.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        rates.step()


def answers(logits_of: Callable[[Array], Array], held: Array) -> Array:
    """Return the logarithms of the probabilities of each next token, of several texts [texts, tokens, words]."""
    logits = np.stack([np.asarray(logits_of(ids), np.float64)[0, :-1] for ids in pieces(held, JUDGED)])
    logits -= logits.max(-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def losses(found: Array, held: Array) -> Array:
    """Return the mean loss, in nats, of each of several texts."""
    right = np.stack([ids[1:] for ids in pieces(held, JUDGED)])
    return np.asarray(-np.take_along_axis(found, right[..., np.newaxis], -1).mean((1, 2)))


def show(name: str, found: Array, base: Array, held: Array) -> None:
    """Print by how much perplexity grows, and the KL divergence in nats, with 95 % intervals."""
    growth = losses(found, held) - losses(base, held)
    apart = (np.exp(base) * (base - found)).sum(-1).mean(-1)
    spread = 1.96 / math.sqrt(JUDGED)
    print(
        f"{name:<28}{math.expm1(growth.mean()):>8.2%} +- {spread * growth.std():.2%}"
        f"{apart.mean():>12.2e} +- {spread * apart.std():.1e}",
        flush=True,
    )


@torch.no_grad()
def moments(decoder: Any, samples: Sequence[Array]) -> dict[str, Array]:
    """Return the second moments of the inputs of each linear layer."""
    found: dict[str, Any] = {}
    hooks = []
    for name, layer in decoder.named_modules():
        if isinstance(layer, nn.Linear):

            def note(_: Any, given: Any, __: Any, name: str = name) -> None:
                rows = given[0].flatten(0, -2).double()
                found[name] = found.get(name, 0.0) + (rows.T @ rows).numpy()

            hooks.append(layer.register_forward_hook(note))
    for ids in samples:
        decoder(torch.from_numpy(ids)[None], caches(decoder.size, 1))
    for hook in hooks:
        hook.remove()
    return found


def nearest(weight: Array) -> Array:
    """Round weights [N, K] to nearest."""
    integers, scales = rounded_blocks(weight.reshape(len(weight), -1, BLOCK))
    return (integers * scales[..., np.newaxis]).reshape(weight.shape)


@torch.no_grad()
def judge_ours(decoder: Any, text: Array, held: Array) -> Array:
    """Print our rows, and return the answers of the decoder as it is."""

    def logits_of(ids: Array) -> Array:
        with torch.no_grad():
            return decoder(torch.from_numpy(ids)[None], caches(decoder.size, 1))[0].numpy()

    base = answers(logits_of, held)
    print(f"perplexity of a byte: {math.exp(losses(base, held).mean()):.3f}")
    print(f"{'':<28}{'perplexity grows by':<20}{'KL divergence, nats':>24}")
    layers = {name: layer for name, layer in decoder.named_modules() if isinstance(layer, nn.Linear)}
    weights = {name: layer.weight.numpy().copy() for name, layer in layers.items()}
    rng = np.random.default_rng(1)
    sets: dict[str, Sequence[Array] | None] = {
        "nearest": None,
        "GPTQ, 4,096 tokens of text": pieces(text, 16),
        "GPTQ, 256 tokens of text": pieces(text, 1),
        "GPTQ, 16 tokens of text": pieces(text, 1, 16),
        "GPTQ, 4,096 random tokens": [rng.integers(0, decoder.size.words, LENGTH) for _ in range(16)],
    }
    for name, samples in sets.items():
        found = {} if samples is None else moments(decoder, samples)
        for place, weight in weights.items():
            made = rounded(weight.T, inverse_factor(found[place])).T if place in found else nearest(weight)
            layers[place].weight.copy_(torch.from_numpy(np.ascontiguousarray(made)))
        show(name, answers(logits_of, held), base, held)
    for place, weight in weights.items():
        layers[place].weight.copy_(torch.from_numpy(weight))
    return base


def judge_nncf(path: Path, size: Any, text: Array, held: Array, base: Array) -> None:
    """Print NNCF's rows, run by OpenVINO in floats."""
    try:
        import nncf
    except ImportError:
        print("NNCF is not installed")
        return
    import openvino as ov

    core, empty = ov.Core(), np.zeros((1, size.shared, 0, size.head), np.float32)

    def feeds(ids: Array) -> dict[str, Array]:
        parts = [f"past_key_values.{n}.{part}" for n in range(size.layers) for part in ("key", "value")]
        return {"input_ids": ids[np.newaxis], **dict.fromkeys(parts, empty)}

    for name, options in NNCF.items():
        data = {"dataset": nncf.Dataset([feeds(ids) for ids in pieces(text, 16)])} if options else {}
        whole = {"mode": nncf.CompressWeightsMode.INT4_SYM, "group_size": BLOCK, "ratio": 1.0, "all_layers": True}
        try:
            made = nncf.compress_weights(core.read_model(path), **whole, **options, **data)
        except Exception as error:
            print(f"NNCF, {name}: {error}")
            continue
        run = core.compile_model(
            made, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        )
        found = answers(lambda ids, run=run: run(feeds(ids))["logits"], held)  # type: ignore[misc]
        show(f"NNCF, {name}", found, base, held)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path(".cache/rounded"))
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    module, (text, held) = example(), texts()
    decoder = module.Decoder(module.Size(layers=4, width=512), every=True)
    kept, path = options.out / "decoder.pt", options.out / "decoder.onnx"
    if kept.exists():
        decoder.load_state_dict(torch.load(kept, weights_only=True))
    else:
        train(decoder, text, 60 * options.minutes)
        torch.save(decoder.state_dict(), kept)
    module.write(decoder, path)
    base = judge_ours(decoder, text, held)
    judge_nncf(path, decoder.size, text, held, base)
    if options.compile:
        samples = [{"input_ids": ids} for ids in pieces(text, 120, 128)]
        asked = collage.CompileOptions(metric="perplexity", max_drop=0.01)
        made = collage.compile(path, data=samples, options=asked)
        print(made.report["precision"]["summary"])
        empty = {
            port.name: np.zeros((1, decoder.size.shared, 0, decoder.size.head), np.float32) for port in made.inputs[1:]
        }
        found = answers(lambda ids: made.run({"input_ids": ids[None], **empty})["logits"], held)
        show("Collage, other files", found, base, held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
