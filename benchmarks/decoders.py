"""Time of the prompt and tokens per second of one decoder: Collage beside the GenAI runtimes of OpenVINO and ONNX Runtime.

::

    python -m benchmarks.decoders --onnx decoder.onnx --target "llvm -precision=w4" [--rounds 3]
        [--openvino-genai FOLDER] [--onnxruntime-genai FOLDER] [--python PYTHON]

The folders hold the same model at equal bits, made by each vendor's exporter (the versions of packages differ, so PYTHON is that
of another environment)::

    pip install openvino-genai onnxruntime-genai "optimum-intel" "transformers<5" torch nncf
    optimum-cli export openvino -m MODEL --task text-generation-with-past --weight-format int4 --group-size 64 --sym \\
        --ratio 1.0 FOLDER
    python -m onnxruntime_genai.models.builder -m NAME -i MODEL -o FOLDER -p int4 -e cpu --extra_options int4_accuracy_level=4

The ONNX file takes ``input_ids`` and ``past_key_values``, a mask and positions if it has them, and returns ``logits`` and
``present``. Each engine runs in a process of its own, with all of the machine, in turns. Prompts differ from run to run, since
OpenVINO keeps its results of a prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PROMPT, TOKENS, RUNS = 32, 64, 5
Times = tuple[float, float]
"""Seconds of the prompt, and of each token after it."""


def prompt(run: int, words: int = 30_000) -> Any:
    """Return the tokens of a prompt, [1, PROMPT]."""
    return ((np.arange(PROMPT, dtype=np.int64) * 37 + 1001 * run) % words)[None]


def timed(first: Callable[[], Any], step: Callable[[], Any]) -> Times:
    """Return the seconds of a first call, and of each of ``TOKENS`` others."""
    begin = time.perf_counter()
    first()
    middle = time.perf_counter()
    for _ in range(TOKENS):
        step()
    return middle - begin, (time.perf_counter() - middle) / TOKENS


def on_collage(path: str, target: str) -> list[Times]:
    """Time a plan of one kernel for the whole decoder."""
    from collage.frontend import demanded_lengths, read_model
    from collage.testing import executable_of

    model = read_model(Path(path))
    known = demanded_lengths(model)  # ONNX Runtime's builder gives the width of a cache a name.
    exe = executable_of(model, target)
    ports = {port.name: port for port in exe.inputs if port.name.startswith("past")}
    others = {port.name for port in exe.inputs} - ports.keys()
    cached = next(iter(ports))
    found = []
    for run in range(RUNS):
        feeds = {
            name: np.zeros(
                [n if isinstance(n, int) else known.get(n, int(axis == 0)) for axis, n in enumerate(port.shape or ())],
                port.dtype,
            )
            for name, port in ports.items()
        }
        feeds["input_ids"] = prompt(run)

        def step(feeds: dict[str, Any] = feeds) -> None:
            new, past = feeds["input_ids"].shape[1], feeds[cached].shape[2]
            lengths = {"attention_mask": np.ones((1, past + new), np.int64)}
            lengths["position_ids"] = np.arange(past, past + new, dtype=np.int64)[None]
            made = exe.run({**feeds, **{name: value for name, value in lengths.items() if name in others}})
            feeds.update({name: made[name.replace("past_key_values", "present")] for name in ports})
            logits = np.asarray(made["logits"])
            feeds["input_ids"] = np.array([[int(logits.reshape(-1, logits.shape[-1])[-1].argmax())]])

        found.append(timed(step, step))
    return found


def on_onnxruntime_genai(folder: str) -> list[Times]:
    """Time ONNX Runtime GenAI."""
    import onnxruntime_genai as genai

    model, found = genai.Model(folder), []
    for run in range(RUNS):
        params = genai.GeneratorParams(model)
        length = PROMPT + TOKENS + 2
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, params)

        def first(generator: Any = generator, run: int = run) -> None:
            generator.append_tokens(prompt(run).astype(np.int32))
            generator.generate_next_token()

        found.append(timed(first, generator.generate_next_token))
    return found


def on_openvino_genai(folder: str) -> list[Times]:
    """Time OpenVINO GenAI, by its own clock."""
    import openvino as ov
    import openvino_genai as genai

    pipeline, config, found = genai.LLMPipeline(folder, "CPU"), genai.GenerationConfig(), []
    config.max_new_tokens = config.min_new_tokens = TOKENS + 1
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    for run in range(RUNS):
        ids = prompt(run)
        given = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        metrics = pipeline.generate(given, config).perf_metrics
        found.append((metrics.get_ttft().mean / 1e3, metrics.get_tpot().mean / 1e3))
    return found


ENGINES: dict[str, Callable[..., list[Times]]] = {
    "collage": on_collage,
    "onnxruntime-genai": on_onnxruntime_genai,
    "openvino-genai": on_openvino_genai,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnx")
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--openvino-genai")
    parser.add_argument("--onnxruntime-genai")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.engine:
        name, *arguments = options.engine
        print(json.dumps(ENGINES[name](*arguments)))
        return 0
    runs = [(target, sys.executable, ["collage", options.onnx, target]) for target in options.target]
    for name in ("openvino-genai", "onnxruntime-genai"):
        folder = getattr(options, name.replace("-", "_"))
        runs += [(name, options.python, [name, folder])] if folder else []
    times: dict[str, list[Times]] = {name: [] for name, *_ in runs}
    for _ in range(options.rounds):
        for name, python, engine in runs:
            command = [python, __file__, "--engine", *engine]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            times[name] += [tuple(pair) for pair in json.loads(out.splitlines()[-1])[1:]]
    print(f"{'':<28}{'prompt ms':>10}{'tokens/s':>10}")
    for name, found in times.items():
        first_s, step_s = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:<28}{1e3 * first_s:>10.1f}{1 / step_s:>10.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
