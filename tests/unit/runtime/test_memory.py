from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from collage.runtime import _memory
from collage.runtime._memory import page_out, trim


def resident_kib(file: Path) -> int:
    """Of this process's mapping of a file."""
    text = Path("/proc/self/smaps").read_text()
    return int(re.search(rf"{re.escape(str(file))}\n.*?^Rss:\s+(\d+)", text, re.MULTILINE | re.DOTALL)[1])


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_mapped_weights_are_let_go_and_come_back(tmp_path: Path, access: int) -> None:
    size = 8 << 20
    file, other = tmp_path / "folder" / "weights.bin", tmp_path / "folder2.bin"
    file.parent.mkdir()
    for path in (file, other):
        path.write_bytes(bytes(range(256)) * (size // 256))
    with file.open("rb") as one, other.open("rb") as two:
        mapped = mmap.mmap(one.fileno(), 0, access=access)
        untouched = mmap.mmap(two.fileno(), 0, access=mmap.ACCESS_READ)
    if access == mmap.ACCESS_COPY:
        mapped[:4] = b"mine"
    sums = [sum(view[:: mmap.PAGESIZE // 2 + 1]) for view in (mapped, untouched)]
    assert resident_kib(file) >= size // 1024
    page_out(file.parent)
    assert resident_kib(file) < size // 1024 / 2
    assert resident_kib(other) >= size // 1024
    assert [sum(view[:: mmap.PAGESIZE // 2 + 1]) for view in (mapped, untouched)] == sums


def test_memory_in_the_place_of_a_mapping_that_is_gone_keeps_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads drop executables, and set memory aside, while the list of mappings is read."""
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"\1" * len(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mapped = f"{start:x}-{start + len(memory):x} r--s 00000000 00:00 1 {tmp_path.resolve()}/weights.bin\n"
    (tmp_path / "maps").write_text(mapped)
    monkeypatch.setattr(_memory, "_MAPS", tmp_path / "maps")
    page_out(tmp_path)
    assert memory[:] == b"\1" * len(memory)


def test_what_was_freed_goes_back_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    size, count = 64 << 10, 1024
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    # The last block stays: what lies below it is not at the heap's end, where it would go back by itself.
    for block in blocks[:-1]:
        libc.free(block)
    before = own_kib()
    trim()
    assert own_kib() < before - count * size // 1024 / 2
    libc.free(blocks[-1])


def own_kib() -> int:
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])
