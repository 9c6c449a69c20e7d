"""Removes what running artefacts does not need from installed packages, and prints the megabytes before and after.

    python slim.py SITE_PACKAGES

Each row is a pattern within the folder, with the reason that it can go. Run it in an image, never in an environment of your own:
pip does not know of it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = {
    "tvm/*": "the compiler and its sources; kernels need two libraries of tvm/lib",
    "tvm_ffi/3rdparty": "sources",
    "tvm_ffi/include": "headers",
    "openvino/include": "headers",
    "openvino/libs/libopenvino_intel_[gn]pu_plugin*": "other devices",
    "openvino/libs/cache.json": "of the GPU's plug-in",
    "openvino/libs/libopenvino_auto*": "the choice between devices",
    "openvino/libs/libopenvino_hetero*": "the choice between devices",
    "openvino/libs/libopenvino_[tpgj][a-z_]*_frontend*": "other formats than ONNX and OpenVINO's own",
    "onnxruntime/transformers": "tools",
    "onnxruntime/quantization": "tools",
    "onnxruntime/tools": "tools",
    "numpy/f2py": "tools",
    "numpy/**/tests": "tests",
    "openvino_telemetry*": "reports on use, which Collage turns off; OpenVINO has a stub of it",
    "pip": "installs packages",
    "pip-*": "its metadata",
}
KEPT = ("tvm/lib",)
"""Within what is removed."""
KEPT_IN_LIB = ("libtvm_runtime.so", "libtvm_runtime_extra.so")


def main(folder: Path) -> None:
    before = megabytes(folder)
    for pattern in UNUSED:
        for path in folder.glob(pattern):
            if path.relative_to(folder).as_posix() not in KEPT:
                remove(path)
    for path in (folder / "tvm" / "lib").glob("*"):
        if path.name not in KEPT_IN_LIB:
            remove(path)
    print(f"{folder}: {before} MB before, {megabytes(folder)} MB now")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def megabytes(folder: Path) -> int:
    return (
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) // 1_000_000
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
