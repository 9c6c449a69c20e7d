"""Turn an entry of the catalogue into ``model.onnx`` and ``inputs.npz``, once."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
import warnings
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from .catalogue import Entry

if TYPE_CHECKING:
    from .sample import Sample

HERE = Path(__file__).parent
SHARED = ("attention", "building", "resnet", "sample")  # Files that other families import from.
SEED = 2022
NEWEST_IR = 10  # What every runtime of the menu reads.
EXTERNAL_DATA_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Built:
    """What lies in a model's folder. ``seconds`` is what building took, export and check included."""

    name: str
    version: str
    nodes: int
    parameters: int
    megabytes: float
    seconds: float


def build(entry: Entry, out: Path) -> tuple[Built, bool]:
    """Build a model into ``out/<name>``; return what is there, and whether it had to be built.

    A stamp file holds the digest of the sources that made it, and is written last: a model whose sources changed, or
    whose build was interrupted, is built again.

    Raises:
        RuntimeError: If the model gives no finite outputs in ONNX Runtime.
    """
    folder = out / entry.name
    stamp = folder / "stamp.json"
    version = source_version(entry)
    if stamp.is_file():
        built = Built(**json.loads(stamp.read_text()))
        if built.version == version:
            return built, False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.perf_counter()
    path = folder / "model.onnx"
    sample = make_sample(entry)
    _write(_to_onnx(entry, sample, folder), path)
    np.savez(folder / "inputs.npz", **sample.inputs)
    onnx.checker.check_model(path)
    _check_outputs(path, sample.inputs)
    nodes, parameters = _size(path)
    total_bytes = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
    built = Built(entry.name, version, nodes, parameters, total_bytes / 1e6, time.perf_counter() - started)
    stamp.write_text(json.dumps(asdict(built), indent=2) + "\n")
    return built, True


def source_version(entry: Entry) -> str:
    """Digest of the entry and of the files that decide what is built from it."""
    digest = hashlib.sha256(repr(entry).encode())
    for name in sorted({entry.family, *SHARED}):
        digest.update((HERE / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def make_sample(entry: Entry) -> Sample:
    """The module or model of an entry with its inputs; the same on every call."""
    import torch

    torch.manual_seed(SEED)
    sample: Sample = getattr(import_module(f"{__package__}.{entry.family}"), entry.name)()
    return sample


def _to_onnx(entry: Entry, sample: Sample, folder: Path) -> onnx.ModelProto:
    if isinstance(sample.model, onnx.ModelProto):
        return sample.model
    path = folder / "exported.onnx"
    export(sample, path, opset=entry.opset, dynamo=entry.exporter == "dynamo")
    model = onnx.load(path)
    for file in folder.glob("exported.onnx*"):
        file.unlink()
    return model


def export(sample: Sample, path: Path, opset: int, dynamo: bool) -> None:
    """Write a sample's module with one of PyTorch's two exporters, quietly."""
    import torch

    arguments = tuple(torch.from_numpy(value) for value in sample.inputs.values())
    names = {"input_names": list(sample.inputs), "output_names": list(sample.outputs)}
    # The exporters deprecate themselves, and miss packages that these models have no use for.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(sample.model, arguments, path, opset_version=opset, dynamo=dynamo, verbose=False, **names)


def _write(model: onnx.ModelProto, path: Path) -> None:
    model.ir_version = min(model.ir_version, NEWEST_IR)
    if model.ByteSize() <= EXTERNAL_DATA_BYTES:
        onnx.save(model, path)
        return
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)


def _check_outputs(path: Path, inputs: dict[str, np.ndarray]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for name, value in zip(names, session.run(names, inputs), strict=True):
        if value.size == 0 or not np.isfinite(value).all():
            raise RuntimeError(f"{path}: output {name} is empty or not finite")


def _size(path: Path) -> tuple[int, int]:
    """Nodes (functions of the exporter counted by their calls) and elements of all initializers."""
    graph = onnx.load(path, load_external_data=False).graph
    return len(graph.node), sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)
