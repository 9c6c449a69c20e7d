"""Check that an accuracy budget is kept on inputs that no part of a compilation has seen.

::

    python -m benchmarks.fresh_inputs --models resnet50,MODEL.onnx [--budget 1e-2] [--samples 40] [--spread 0.5] [--tries 20]

Each model is compiled within the budget. Then the executable answers fresh inputs of the same distribution, and ONNX Runtime in
float32 answers them too. A try is 20 inputs, and is kept if no output is further off than the budget. ``--samples`` gives the
compilation that many samples as data. Without, it makes inputs up. ``--spread`` scales each sample by a random factor, so that
errors differ from input to input. Exit code 1 if a try is not kept.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from benchmarks._arguments import Model, chosen_models, make_parser

import collage
from collage.frontend import make_inputs, read_model

INPUTS_OF_A_TRY = 20
FRESH_SEED = 1_000_000
"""Seeds of fresh inputs begin here; those of samples and of made-up inputs lie below."""


def drawn(model: Any, count: int, first_seed: int, spread: float) -> Iterator[dict[str, Any]]:
    """Yield inputs of one distribution.

    Args:
        model: A model in canonical form.
        count: The number of them.
        first_seed: Seed of the first; each one has the next.
        spread: Standard deviation of the logarithm of the factor by which floats are scaled.
    """
    for seed in range(first_seed, first_seed + count):
        factor = float(np.exp(spread * np.random.default_rng(seed).standard_normal()))
        yield {
            name: (value * factor).astype(value.dtype) if "float" in value.dtype.name else value
            for name, value in make_inputs(model, seed).items()
        }


def error(answers: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference of floats, relative to the largest element of their output."""
    found = [0.0]
    for name, right in expected.items():
        if "float" in right.dtype.name and right.size:
            wide = right.astype(np.float64)
            scale = max(float(np.abs(wide).max()), np.finfo(np.float32).tiny)
            found.append(float(np.abs(answers[name].astype(np.float64) - wide).max()) / scale)
    return float(np.max(found))


def kept_tries(model: Model, options: Any) -> int:
    """Compile a model, print what it does on fresh inputs, and return the number of tries that keep the budget."""
    graph = read_model(model.path)
    compile_options = collage.CompileOptions(
        accuracy_budget=options.budget, time_budget_s=options.seconds, db=options.db, seed=options.seed
    )
    first = FRESH_SEED // 2 + options.seed * 10_000
    data = list(drawn(graph, options.samples, first, options.spread)) or None
    compiled = collage.compile(model.path, options=compile_options, data=data)
    exact = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    names = [output.name for output in exact.get_outputs()]
    errors = []
    for fed in drawn(graph, options.tries * INPUTS_OF_A_TRY, FRESH_SEED, options.spread):
        expected = dict(zip(names, exact.run(names, fed), strict=True))
        errors.append(error(compiled.run(fed), expected))
    tries = [max(errors[i : i + INPUTS_OF_A_TRY]) for i in range(0, len(errors), INPUTS_OF_A_TRY)]
    kept = sum(worst <= options.budget for worst in tries)
    precision = compiled.report["precision"] or {}
    judged = precision.get("metrics", {}).get("max-error")
    bound = judged["interval"][1] if judged else 0.0
    below = sum(worst <= bound for worst in tries)
    told = f"judged {judged['drop']:.1e}, {below} tries below the bound {bound:.1e}" if judged else "not judged"
    speedup = precision.get("speedup_over_float32")
    kernels = ", ".join(sorted({kernel["target"] for kernel in compiled.report["kernels"]}))
    print(
        f"{model.name:<18} budget {options.budget:.0e}: {kept} of {options.tries} tries kept; largest error {max(errors):.1e}, "
        f"median {float(np.median(errors)):.1e}; {told}; {speedup or 1:.2f}x; {kernels}",
        flush=True,
    )
    return kept


def main() -> int:
    parser = make_parser(__doc__, models="resnet50,speech")
    parser.add_argument("--budget", type=float, default=1e-2, help="default: %(default)s")
    parser.add_argument(
        "--samples", type=int, default=0, help="samples that are given as data (default: inputs are made up)"
    )
    parser.add_argument("--spread", type=float, default=0.0, help="of the scale of samples (default: %(default)s)")
    parser.add_argument("--tries", type=int, default=20, help="of 20 fresh inputs each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="time budget of a compilation")
    parser.add_argument("--seed", type=int, default=0, help="of what compilations see (default: %(default)s)")
    options = parser.parse_args()
    if options.spread and not options.samples:
        parser.error("--spread needs --samples: inputs that are made up are not scaled")
    with tempfile.TemporaryDirectory() as folder:
        options.db = str(Path(folder) / "timings.sqlite")
        kept = [kept_tries(model, options) for model in chosen_models(options)]
    return int(any(count < options.tries for count in kept))


if __name__ == "__main__":
    sys.exit(main())
