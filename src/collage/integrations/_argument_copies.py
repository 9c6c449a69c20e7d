"""Copies of a graph's arguments as they are at one moment, to be run elsewhere: in another thread, or another process.

Memory that arguments share is shared by the copies too. Parameters are copied late, when the copies are written or made. So the
call that takes them waits only for its inputs and buffers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from collage._errors import ModelError
from collage.integrations._weight_watch import span_bytes
from collage.system.codec import from_json, read_text

__all__ = ["ArgumentCopies"]

_INDEX = "arguments.json"
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor: its type, and where it lies in which block of memory. Or an integer: its value."""

    value: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    block: int = 0
    is_parameter: bool = False
    is_inference: bool = False
    requires_grad: bool = False


class ArgumentCopies:
    """The arguments of one call.

    Args:
        arguments: Tensors in the memory of this machine, and integers.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        for value in tensors:
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_conj() or value.is_neg():
                raise ModelError(f"it takes a {type(value).__name__} that cannot be copied to another process")
        stores: dict[int, list[torch.Tensor]] = {}
        for value in tensors:
            stores.setdefault(value.untyped_storage()._cdata, []).append(value)
        begins = {store: min(map(_begin, sharers)) // _ALIGNMENT * _ALIGNMENT for store, sharers in stores.items()}
        numbers = {store: number for number, store in enumerate(stores)}
        self._blocks = [_block(sharers, begins[store]) for store, sharers in stores.items()]
        self._places = []
        for value in arguments:
            if not isinstance(value, torch.Tensor):
                self._places.append(_Place(int(value)))
                continue
            store = value.untyped_storage()._cdata
            offset = (_begin(value) - begins[store]) // value.element_size()
            layout = (str(value.dtype), tuple(value.shape), tuple(value.stride()), offset, numbers[store])
            kind = isinstance(value, torch.nn.Parameter), value.is_inference(), value.requires_grad
            self._places.append(_Place(0, *layout, *kind))

    def write(self, folder: Path) -> None:
        """Write all to a folder."""
        for number, block in enumerate(self._blocks):
            with (folder / f"{number}.block").open("wb") as file:
                left = memoryview(block.numpy())
                while left:  # The system takes 2 GiB at once at most, and other threads run meanwhile.
                    left = left[os.write(file.fileno(), left) :]
        sizes = [block.numel() for block in self._blocks]
        index = {"sizes": sizes, "places": [asdict(place) for place in self._places]}
        (folder / _INDEX).write_text(json.dumps(index))

    def made(self) -> list[Any]:
        """Return copies."""
        return _arguments(self._places, [block.clone() for block in self._blocks])

    @staticmethod
    def read(folder: Path) -> list[Any]:
        """Return the copies that another process wrote to a folder."""
        index = read_text((folder / _INDEX).read_bytes())
        blocks = [
            torch.from_file(str(folder / f"{n}.block"), shared=False, size=size, dtype=torch.uint8)
            if size
            else torch.empty(0, dtype=torch.uint8)
            for n, size in enumerate(index["sizes"])
        ]
        return _arguments([from_json(_Place, place) for place in index["places"]], blocks)


def _begin(value: torch.Tensor) -> int:
    return int(value.storage_offset() * value.element_size())


def _block(sharers: Sequence[torch.Tensor], begin: int) -> torch.Tensor:
    """Return the bytes of a block: those of parameters as they are later, all others as they are now."""
    end = max(_begin(value) + span_bytes(value) for value in sharers)
    whole = torch.empty(0, dtype=torch.uint8)
    with torch.no_grad():
        whole.set_(sharers[0].untyped_storage(), begin, (max(end - begin, 0),), (1,))
        return whole if all(isinstance(value, torch.nn.Parameter) for value in sharers) else whole.clone()


def _arguments(places: Sequence[_Place], blocks: Sequence[torch.Tensor]) -> list[Any]:
    return [_argument(place, blocks) if place.dtype else place.value for place in places]


def _argument(place: _Place, blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    dtype = getattr(torch, place.dtype.removeprefix("torch."))
    with torch.inference_mode(place.is_inference):
        value = torch.empty(0, dtype=dtype)
        value.set_(blocks[place.block].untyped_storage(), place.offset, place.shape, place.strides)
    if place.is_parameter:
        return torch.nn.Parameter(value, place.requires_grad)
    return value.requires_grad_() if place.requires_grad else value
