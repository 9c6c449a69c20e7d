"""Folders of images as samples: a folder for each label, or images alone.

Images are untrusted. Pillow decodes them, within a bound on their size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._distribution import WHERE, install_command
from collage._errors import UsageError
from collage.system.texts import is_whole_number

if TYPE_CHECKING:
    from collage.frontend import TensorSpec

__all__ = ["SUFFIXES", "ImageFolder"]

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")

_MOST_PIXELS = 100_000_000

# What networks for images are usually trained with: values of ImageNet's training set, by channel, of pixels from 0 to 1.
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)

# The shorter side is brought to 256 for a crop of 224, as ImageNet's usual evaluation does.
_BORDER = 256 / 224


class ImageFolder:
    """Images below a folder, as arrays for the one input of a model.

    Args:
        path: The folder. If it holds folders, their names are the labels: numbers, or names that count in their order.
        specs: The inputs of the model.

    Attributes:
        files: The images, sorted.
        digest: Changes when they do.

    Raises:
        UsageError: There are no images, the model does not take them, or Pillow is not installed.
    """

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        self.files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not self.files:
            raise UsageError(
                f"{path} holds neither .npz files nor images",
                hint="write one .npz file for each sample, with arrays named as the inputs",
            )
        names = sorted({p.parent.name for p in self.files if p.parent != path})
        are_numbers = all(map(is_whole_number, names))
        numbers = {name: int(name) if are_numbers else place for place, name in enumerate(names)}
        self._labels = [numbers.get(p.parent.name) if p.parent != path else None for p in self.files]
        self.has_labels = bool(self.files) and None not in self._labels
        if len(specs) != 1 or specs[0].shape is None or len(specs[0].shape) != len("NCHW"):
            raise UsageError(
                f"{path} holds images, and the model does not take one image",
                hint="write .npz files with arrays named as the inputs",
            )
        self._spec = specs[0]
        _, *lengths = self._spec.shape or ()
        self._is_last = lengths[-1] in (1, 3) and lengths[0] not in (1, 3)
        channels, *sides = lengths[-1:] + lengths[:-1] if self._is_last else lengths
        self._channels = channels if isinstance(channels, int) else len("RGB")
        if self._channels not in (1, len("RGB")):
            raise UsageError(
                f"{path} holds images, and the model takes {self._channels} channels",
                hint="write .npz files with arrays named as the inputs",
            )
        self._height, self._width = (side if isinstance(side, int) else 224 for side in sides)
        facts = (f"{p.relative_to(path)} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in self.files)
        self.digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
        _pillow()

    @property
    def how(self) -> str:
        """The steps from an image to an input, in words."""
        values = "as bytes" if self._takes_bytes else "from 0 to 1, less ImageNet's mean and over its deviation"
        return f"images are cut to {self._height}x{self._width}, {values}; write .npz files for anything else"

    @property
    def _takes_bytes(self) -> bool:
        return self._spec.dtype.name == "UINT8"

    def arrays(self, index: int) -> dict[str, Any]:
        """Return the input for an image, and its label.

        Raises:
            UsageError: It cannot be read.
        """
        pillow, file = _pillow(), self.files[index]
        try:
            with pillow.open(file) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise UsageError(f"{file} has {image.width}x{image.height} pixels, more than {_MOST_PIXELS}")
                image = image.convert("L" if self._channels == 1 else "RGB")
                scale = max(self._height / image.height, self._width / image.width) * _BORDER
                size = (max(self._width, round(image.width * scale)), max(self._height, round(image.height * scale)))
                if size[0] * size[1] > _MOST_PIXELS:
                    raise UsageError(
                        f"{file} has {image.width}x{image.height} pixels, and is too long for the model's input"
                    )
                left, top = (size[0] - self._width) // 2, (size[1] - self._height) // 2
                image = image.resize(size).crop((left, top, left + self._width, top + self._height))
                pixels = np.asarray(image)
        except UsageError:
            raise
        except Exception as error:  # Images are untrusted, and Pillow raises what it pleases, also for too large ones.
            raise UsageError(f"cannot read the image {file}: {error}") from error
        pixels = pixels.reshape(self._height, self._width, self._channels)
        if not self._takes_bytes:
            pixels = pixels.astype(np.float32) / np.float32(255)
            pixels = (pixels - _MEAN) / _DEVIATION if self._channels == len("RGB") else pixels
            pixels = pixels.astype(self._spec.dtype.numpy() if self._spec.dtype else np.float32)
        value = pixels if self._is_last else np.ascontiguousarray(pixels.transpose(2, 0, 1))
        label = self._labels[index]
        return {self._spec.name: value[np.newaxis], **({} if label is None else {"label": np.int64(label)})}


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UsageError(f"reading images needs Pillow: {install_command('images')}{WHERE}") from None
    return Image
