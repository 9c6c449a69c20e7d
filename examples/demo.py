"""Compile three models, run them, and compare them with every toolchain alone. ``make demo`` runs it.

On the digits and the ResNet-50 the toolchains are about equally fast. The network that enlarges images gains: by Winograd's
algorithm in TVM's kernels, or by mixing toolchains.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import models
import numpy as np

import collage


def main(out: Path) -> None:
    models.main([str(out)])
    for name in ("mnist", "resnet50", "enlarge"):
        model, artefact = out / f"{name}.onnx", out / f"{name}.collage"
        heading(f"collage compile {model}")
        shell("compile", str(model), "-o", str(artefact))
        heading(f"collage run {artefact}")
        shell("run", str(artefact))
        heading(f"collage bench {artefact}")
        shell("bench", str(artefact))
    heading("the digits, read by the compiled network")
    check_accuracy(out)


def check_accuracy(out: Path) -> None:
    """The compiled network on the test set that it was not trained on."""
    digits = np.load(out / "digits_test.npz", allow_pickle=False)
    network = collage.load(out / "mnist.collage")
    started = time.perf_counter()
    answers = [int(network(image[None]).argmax()) for image in digits["images"]]
    seconds = time.perf_counter() - started
    right = np.mean(np.array(answers) == digits["labels"])
    print(f"{right:.1%} of {len(answers)} digits right, {seconds / len(answers) * 1e6:.0f} µs each")


def heading(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def shell(*words: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "collage"), *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/demo"))
