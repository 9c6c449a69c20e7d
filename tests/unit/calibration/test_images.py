"""Folders of images as samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage._errors import UsageError
from collage.calibration import files_for, images, least_samples, open_data, split_samples
from collage.calibration.metrics import wilson

Image = pytest.importorskip("PIL.Image")


def model(shape: str, kind: str = "float") -> ir.Model:
    text = (
        f'<ir_version: 10, opset_import: ["" : 18]> g ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = Identity (x) }}'
    )
    return ir.from_onnx_text(text)


def folder(path: Path, labels: tuple[str, ...], size: tuple[int, int] = (40, 60)) -> Path:
    for place, label in enumerate(labels):
        (path / label).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            Image.new("RGB", size, (place * 100, 50, number * 10)).save(path / label / f"{number}.png")
    return path


@pytest.mark.parametrize(("shape", "axis"), [("1,3,16,24", 1), ("1,16,24,3", 3), ("n,3,h,w", 1), ("1,1,16,24", 1)])
def test_images_fit_the_input_and_folders_are_labels(shape: str, axis: int, tmp_path: Path) -> None:
    data = open_data(folder(tmp_path / "data", ("cat", "dog")), model(shape), tmp_path / "scratch")
    assert (data.count, data.has_labels, data.labelled) == (6, True, 6)
    samples = list(data.samples(range(6)))
    assert [int(sample.label) for sample in samples if sample.label is not None] == [0, 0, 0, 1, 1, 1]
    x = samples[0].feeds["x"]
    sides = [side for place, side in enumerate(x.shape) if place not in (0, axis)]
    assert x.dtype == np.float32 and sides == ([224, 224] if "h" in shape else [16, 24])
    if x.shape[axis] == 3:  # The green channel holds 50 everywhere.
        green = np.take(x, 1, axis)
        assert np.allclose(green, (50 / 255 - 0.456) / 0.224, atol=1e-5)
    assert "ImageNet" in data.how


def test_numbers_are_labels_and_bytes_stay_bytes(tmp_path: Path) -> None:
    data = open_data(folder(tmp_path / "data", ("7", "10")), model("1,16,24,3", "uint8"), tmp_path / "scratch")
    first = data.read(0)
    assert first.label == 10 and first.feeds["x"].dtype == np.uint8 and data.read(3).label == 7


def test_what_is_not_an_image_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "data", ("a",))
    (path / "a" / "z.png").write_bytes(b"not an image")
    with pytest.raises(UsageError, match="cannot read the image"):
        list(open_data(path, model("1,3,8,8"), tmp_path / "scratch").samples(range(4)))
    with pytest.raises(UsageError, match="does not take one image"):
        open_data(path, model("1,8"), tmp_path / "scratch")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="nor images"):
        open_data(tmp_path / "empty", model("1,3,8,8"), tmp_path / "scratch")


def test_images_of_odd_sizes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "data", ("a",))
    data = open_data(path, model("1,3,8,8"), tmp_path / "scratch")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UsageError, match="cannot read the image"):
        data.read(0)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(images, "_MOST_PIXELS", 10_000)
    Image.new("L", (9_000, 1)).save(path / "a" / "0.png")
    with pytest.raises(UsageError, match="too long"):
        data.read(0)
    with pytest.raises(UsageError, match="4 channels"):
        open_data(path, model("1,4,8,8"), tmp_path / "scratch")


def test_numbers_that_are_too_long_for_labels_are_names(tmp_path: Path) -> None:
    data = open_data(folder(tmp_path / "data", ("1", "9" * 20)), model("1,3,8,8"), tmp_path / "scratch")
    assert [data.read(place).label for place in (0, 3)] == [0, 1]


@pytest.mark.parametrize("limit", [0.1, 0.01, 0.005])
def test_the_number_of_samples_that_can_show_a_limit(limit: float) -> None:
    needed = least_samples(limit)
    assert wilson(0, needed)[1] <= limit < wilson(0, needed - 1)[1] * 1.01
    assert len(split_samples(files_for(needed)).judge) >= needed
