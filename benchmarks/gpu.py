"""Us against every single CUDA toolchain, on a machine with an NVIDIA GPU.

::

    python benchmarks/gpu.py --models resnet50,bert

Says which device it is and what each target misses, then does what ``bench.py`` does with those that are here: compiles each
model with all of them on the menu, and races the artefact against each toolchain alone, inputs and outputs on the host for
all. Without a device it says so and ends with 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import bench  # noqa: E402

from collage.inspection import describe_targets  # noqa: E402
from collage.toolchains.torch import cuda_support  # noqa: E402

QUICK = "mobilenet_v2,super_resolution,ocr"
"""Models that fit into ten minutes of a borrowed device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the script; its arguments are those of ``bench.py``."""
    gpu = cuda_support.find_gpu()
    if isinstance(gpu, cuda_support.Absence):
        print(f"no device: {gpu.reason}; {gpu.remedy}", file=sys.stderr)
        return 2
    print(gpu)
    menu = []
    for row in (target for toolchain in describe_targets() for target in toolchain["by_target"]):
        if row["target"].split()[0] != "cuda":
            continue
        print(f"  {row['target']:32} " + ("usable" if row["available"] else f"{row['reason']}; {row['remedy']}"))
        if row["available"]:
            menu.append(row["target"])
    if not menu:
        print("none of them can be used", file=sys.stderr)
        return 2
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--models" not in given:
        given += ["--models", QUICK]
    bench.main(["--menu", ",".join(menu), *given])
    return 0


if __name__ == "__main__":
    sys.exit(main())
