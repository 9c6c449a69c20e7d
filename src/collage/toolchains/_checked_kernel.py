"""Kernels whose indices are checked at each call, for toolchains that read and write wherever an index points.

``collage.toolchains._index_checks`` decides what is checked when a kernel is compiled. Here it is done, without ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from collage._errors import InputError, Unsupported
from collage.system.codec import from_json
from collage.toolchains._device import DeviceKernel
from collage.toolchains.sdk.aligned_memory import aligned_bytes, size_bytes

if TYPE_CHECKING:
    from collage.toolchains._contract import Compiled, Kernel, Tensor

__all__ = ["INDEX_CHECKS", "IndexCheck", "Length", "Reading", "SumCheck", "checked_kernel", "unchecked"]

INDEX_CHECKS = "index_checks"
"""Entry of a kernel's metadata: the checks of its indices, and the outputs that only they read."""

Length = int | tuple[int, int]
"""A length: a number, or that of a value on an axis. An output that only checks read holds lengths instead of having them."""

Reading = Literal["elements", "sums", "length"]

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Types in which a negative number is larger than any length."""

_Check = Callable[[Sequence["Tensor"]], None]


@dataclass(frozen=True)
class IndexCheck:
    """The range that the indices of an operator must be in.

    Values are named by position: the kernel's inputs, and after them the outputs that only checks read.

    Attributes:
        operator: The operator, for people.
        index: The tensor of indices, or the least and the largest constant index for each length.
        lengths: A length for each entry of an index; one length for plain indices.
        counts_back: True if negative indices count from the end.
        is_count: True for numbers of elements, which may be as large as the length.
        is_certain: False if an index beyond may be right: the operator is in a body that may not run, or a cast wraps the index.
        offset: A number that the kernel adds to each index.
    """

    operator: str
    index: int | tuple[tuple[int, int], ...]
    lengths: tuple[Length, ...]
    counts_back: bool = True
    is_count: bool = False
    is_certain: bool = True
    offset: int = 0

    def reads(self) -> Iterable[int]:
        """Return the positions of the values that it reads."""
        return [
            *([self.index] if isinstance(self.index, int) else []),
            *(n[0] for n in self.lengths if isinstance(n, tuple)),
        ]


@dataclass(frozen=True)
class SumCheck:
    """Numbers that must all be a sum of lengths: a toolchain's form of an operator is right for no others.

    Attributes:
        operator: The operator, for people.
        value: A tensor, named by position like those of an ``IndexCheck``.
        reading: The numbers: its elements, their sums along an axis, or its length on that axis.
        lengths: The lengths.
        offset: A number that is added to their sum.
        axis: The axis.
    """

    operator: str
    value: int
    reading: Reading
    lengths: tuple[Length, ...]
    offset: int
    axis: int = 0

    def reads(self) -> Iterable[int]:
        """Return the positions of the values that it reads."""
        return [self.value, *(n[0] for n in self.lengths if isinstance(n, tuple))]


def unchecked(compiled: Compiled) -> Compiled:
    """Return the record of a kernel as its toolchain made it: with the outputs that only checks read."""
    content = compiled.metadata.get(INDEX_CHECKS)
    if not content:
        return compiled
    return replace(compiled, outputs=(*compiled.outputs, *map(str, content["outputs"])))


def checked_kernel(kernel: Kernel, compiled: Compiled) -> Kernel:
    """Return a loaded kernel that raises an error where an index is beyond its tensor; the kernel itself if none can be.

    Args:
        kernel: The kernel as its toolchain loads it.
        compiled: The record of the compiled kernel.
    """
    content = compiled.metadata.get(INDEX_CHECKS)
    if not content:
        return kernel
    checks: list[IndexCheck | SumCheck] = [from_json(IndexCheck, each) for each in content["checks"]]
    checks += [from_json(SumCheck, each) for each in content.get("sums", ())]
    kind = _CheckedDeviceKernel if isinstance(kernel, DeviceKernel) else _CheckedKernel
    return kind(kernel, compiled, checks, len(content["outputs"]))


class _CheckedKernel:
    """A kernel between two checks: of the indices that it is given, before it runs, and of those that it made.

    The latter are kept in range where they are used. Their values as computed are outputs that only the check reads.
    """

    def __init__(self, kernel: Any, compiled: Compiled, checks: Sequence[IndexCheck | SumCheck], extra: int) -> None:
        count = len(compiled.inputs)
        names = [*map(repr, compiled.inputs), *["an index computed in the model"] * extra]
        given = [check for check in checks if all(position < count for position in check.reads())]
        made = [check for check in checks if check not in given]
        self._kernel = kernel
        self._before = [_check(check, names, count) for check in given]
        self._after = [_check(check, names, count) for check in made]
        self._extra = extra
        self.reuses_outputs: bool = kernel.reuses_outputs
        for name in ("allocates_outputs", "precision", "takes_empty"):
            if hasattr(kernel, name):
                setattr(self, name, getattr(kernel, name))
        if hasattr(kernel, "run_into"):
            layouts = kernel.layouts
            self.layouts = layouts[: len(layouts) - extra]
            self._own = [
                aligned_bytes(size_bytes(a)).view(a.dtype).reshape(a.shape) for a in layouts[len(self.layouts) :]
            ]
            self._into = kernel.run_into
            self.run_into = self._run_into

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the kernel."""
        for check in self._before:
            check(inputs)
        made = self._kernel(inputs)
        return self._wanted(inputs, made) if self._extra else made

    def _wanted(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> Sequence[Tensor]:
        values = [*inputs, *made[len(made) - self._extra :]]
        for check in self._after:
            check(values)
        return made[: len(made) - self._extra]

    def _run_into(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for check in self._before:
            check(inputs)
        if not self._extra:
            self._into(inputs, outputs)
            return
        self._into(inputs, [*outputs, *self._own])
        values = [*inputs, *self._own]
        for check in self._after:
            check(values)


class _CheckedDeviceKernel(_CheckedKernel):
    """The same on a device: indices are copied to the host, so calls cannot be recorded."""

    capturable = False

    def __init__(self, kernel: Any, compiled: Compiled, checks: Sequence[IndexCheck | SumCheck], extra: int) -> None:
        super().__init__(kernel, compiled, checks, extra)
        self.device = kernel.device
        self._read = {position for check in checks for position in check.reads()}

    def on_device(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """See ``DeviceKernel``."""
        given = [self.device.download(x) if i in self._read else x for i, x in enumerate(inputs)]
        for check in self._before:
            check(given)
        made = self._kernel.on_device(inputs)
        if not self._extra:
            return made  # type: ignore[no-any-return]
        extra = [self.device.download(y) for y in made[len(made) - self._extra :]]
        return self._wanted(given, [*made[: len(made) - self._extra], *extra])


def _check(check: IndexCheck | SumCheck, names: Sequence[str], inputs: int) -> _Check:
    """Return the function of a check."""

    def lengths(values: Sequence[Tensor]) -> list[int]:
        sizes = []
        for n in check.lengths:
            if isinstance(n, int):
                sizes.append(n)
            else:
                value = values[n[0]]
                sizes.append(int(value.shape[n[1]] if n[0] < inputs else value[n[1]]))
        return sizes

    return _sum_check(check, lengths) if isinstance(check, SumCheck) else _index_check(check, names, lengths)


def _sum_check(check: SumCheck, lengths: Callable[[Sequence[Tensor]], Sequence[int]]) -> _Check:
    def exactly(values: Sequence[Tensor]) -> None:
        x, expected = values[check.value], sum(lengths(values)) + check.offset
        if check.reading == "length":
            x = np.array(x.shape[check.axis])
        elif check.reading == "sums":
            x = x.sum(axis=check.axis, dtype=np.int64)
        if not (x == expected).all():
            # The host, which takes the kernel over, computes it.
            raise Unsupported(
                f"{check.operator} is compiled for sequences without padding that all fill the cache: "
                f"{expected} is expected, and {x.reshape(-1)[:4].tolist()} is given"
            )

    return exactly


def _index_check(
    check: IndexCheck, names: Sequence[str], lengths: Callable[[Sequence[Tensor]], Sequence[int]]
) -> _Check:
    """Return the function of a check: one look at all indices together where their length is a number."""
    shift = f" {'+' if check.offset > 0 else '-'} {abs(check.offset)}" if check.offset else ""

    def exactly(values: Sequence[Tensor]) -> None:
        for entry, length in enumerate(lengths(values)):
            least, largest = -length if check.counts_back else 0, length - (not check.is_count)
            if isinstance(check.index, int):
                indices = values[check.index]
                indices = indices if len(check.lengths) == 1 else indices[..., entry]
                low, high = (int(indices.min()), int(indices.max())) if indices.size else (0, -1)
                low, high, name = low + check.offset, high + check.offset, names[check.index] + shift
            else:
                (low, high), name = check.index[entry], "a constant"
            if low <= high and not least <= low <= high <= largest:
                raise _beyond(check, name, high if low >= least else low, least, largest)

    numbers = [n for n in check.lengths if isinstance(n, int)]
    if not isinstance(check.index, int) or len(numbers) < len(check.lengths) or check.offset < 0:
        return exactly
    position, most = check.index, min(numbers) - (not check.is_count) - check.offset

    def quickly(values: Sequence[Tensor]) -> None:
        x = values[position]
        size = x.size
        # Reductions of NumPy take longer than a small kernel, so a single number is read as one.
        if size == 1:
            if 0 <= x.item() <= most:
                return
        elif size:
            unsigned = x.view(_UNSIGNED[x.itemsize])
            if unsigned.item(unsigned.argmax()) <= most:
                return
        else:
            return
        exactly(values)

    return quickly


def _beyond(check: IndexCheck, name: str, index: int, least: int, largest: int) -> Exception:
    what = "length" if check.is_count else "index"
    text = f"{what} {index} of {name} is beyond what {check.operator} takes: {least} to {largest}"
    # What may be right must not fail: the host, which takes the kernel over, finds out.
    return InputError(text) if check.is_certain else Unsupported(text)
