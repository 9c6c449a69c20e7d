"""An artefact as a node sends it, made from the one that is kept for the tests, and the model that it is of."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from collage.fleet.machines import MachineType
from collage.fleet.models import ModelFiles
from collage.runtime._zip import write_zip

KEPT = Path(__file__).parents[2] / "data" / "0.1.0.collage"
DIGEST = "5" * 64
MACHINE = MachineType("small", "0123456789abcdef", {})


def zipped(**changes: Any) -> bytes:
    """The artefact, with changes of its manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(KEPT, Path(scratch) / "a"))
        made_on = {"digest": MACHINE.fingerprint, "cpu": "", "flags": []}
        told = {
            **manifest(),
            "model": {"path": "m.onnx", "sha256": DIGEST, "nodes": 1},
            "fingerprint": made_on,
            **changes,
        }
        (folder / "manifest.json").write_text(json.dumps(told))
        archive = io.BytesIO()
        write_zip(sorted(folder.iterdir()), archive)
        return archive.getvalue()


def manifest() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((KEPT / "manifest.json").read_text())
    return told


def model(path: Path = Path("m.onnx"), digest: str = DIGEST) -> ModelFiles:
    told = manifest()
    ports = [tuple((port["name"], port["dtype"]) for port in told[name]) for name in ("inputs", "outputs")]
    return ModelFiles(path, digest, (path.name,), 1000, *ports)
