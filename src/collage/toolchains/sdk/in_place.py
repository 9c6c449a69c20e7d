"""Kernels that write their outputs into the caller's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.toolchains._contract import Layout
from collage.toolchains.sdk.aligned_memory import aligned_bytes, size_bytes

if TYPE_CHECKING:
    from collage.toolchains._contract import Tensor

__all__ = ["InPlaceKernelBase", "layouts_of"]

_KEPT = 4
"""Handles that are kept for each output: callers alternate between a few buffers."""


def layouts_of(dtypes: Sequence[str | None], shapes: Sequence[Sequence[object]]) -> tuple[Layout, ...] | None:
    """Layouts of outputs, or None if one is not known before a call, or has no elements to write."""
    layouts = []
    for dtype, shape in zip(dtypes, shapes, strict=True):
        axes = tuple(axis for axis in shape if isinstance(axis, int) and axis > 0)
        if dtype is None or len(axes) != len(shape):
            return None
        layouts.append(Layout(dtype, axes))
    return tuple(layouts)


class InPlaceKernelBase:
    """The call of a kernel that writes in place: into buffers of its own, made when it is first called so.

    A runtime's handle for an output buffer is kept while it is in use, by identity of the array.
    """

    reuses_outputs = True

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = tuple(layouts)
        self._own: list[Tensor] = []
        self._written: list[Tensor | None] = [None] * len(self.layouts)
        self._handles: list[dict[int, tuple[Tensor, object]]] = [{} for _ in self.layouts]

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the kernel. The next call overwrites the returned arrays."""
        self._own = self._own or [_buffer(layout) for layout in self.layouts]
        self.run_into(inputs, self._own)
        return list(self._own)

    def run_into(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """See ``InPlaceKernel``."""
        raise NotImplementedError

    def _write_to(self, outputs: Sequence[Tensor]) -> None:
        for i, y in enumerate(outputs):
            if y is not self._written[i]:
                handles = self._handles[i]
                if id(y) not in handles:
                    if len(handles) == _KEPT:
                        del handles[next(iter(handles))]
                    handles[id(y)] = y, self._handle(y)
                self._bind_output(i, handles[id(y)][1])
                self._written[i] = y

    def _handle(self, y: Tensor) -> object:
        raise NotImplementedError

    def _bind_output(self, i: int, handle: object) -> None:
        raise NotImplementedError


def _buffer(layout: Layout) -> Tensor:
    return aligned_bytes(size_bytes(layout)).view(layout.dtype).reshape(layout.shape)
