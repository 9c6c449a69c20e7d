"""The record as a file of an artefact: compressed, bounded, and read with suspicion."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path

from collage._errors import ArtefactError
from collage.explain._name import RECORD
from collage.explain._record import TEXT, Record, TriedKernel
from collage.system.codec import from_json, read_text, to_json

__all__ = ["MAX_BYTES", "read_record", "trimmed", "write_record"]

# A file that is larger, compressed or not, is refused.
MAX_BYTES = 16 << 20
# Room for the rows of candidate kernels.
_ROWS_BYTES = 4 << 20
# Room for the names of operators. A model with longer names has a record without names.
_NAMES_BYTES = 8 << 20
_MOST_ROWS = 20_000


def write_record(record: Record, folder: Path) -> None:
    """Write a record into a workspace, from where it gets into artefacts."""
    text = json.dumps(to_json(trimmed(record)), separators=(",", ":"), allow_nan=False)
    (folder / RECORD).write_bytes(gzip.compress(text.encode(), mtime=0))


def read_record(folder: Path) -> Record | None:
    """Return the record of an unpacked artefact; None if it has none.

    Raises:
        ArtefactError: The file is not a record, or too large to be one.
    """
    path = folder / RECORD
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ArtefactError(f"{path} is not a record of what was tried: it is not a plain file, or too large")
    try:
        with gzip.open(path) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        record: Record = from_json(Record, read_text(data), longest_text=MAX_BYTES)
        return record
    except (OSError, EOFError, zlib.error, ValueError) as error:
        told = " ".join(str(error).split())[:200]
        raise ArtefactError(f"{path} is not a record of what was tried: {type(error).__name__}: {told}") from error


def trimmed(record: Record, room: int = _ROWS_BYTES) -> Record:
    """Return a record that fits its file.

    It has as many candidate kernels as there is room for, the first ones, and counts the rest. Long texts are cut.
    """
    kept: list[TriedKernel] = []
    used, dropped = 0, dict(record.dropped)
    for row in record.tried:
        short = replace(row, reason=_short(row.reason), rule=_short(row.rule))
        used += len(str(row.nodes)) + len(short.reason) + len(short.rule) + len(row.target) + 200
        if used <= room and len(kept) < _MOST_ROWS:
            kept.append(short)
        else:
            dropped[row.status.value] = dropped.get(row.status.value, 0) + 1
    return replace(
        record,
        names=record.names if sum(map(len, record.names)) <= _NAMES_BYTES else (),
        tried=tuple(kept),
        targets=tuple(
            replace(
                answer,
                reason=_short(answer.reason),
                refuses={_short(reason): nodes for reason, nodes in answer.refuses.items()},
            )
            for answer in record.targets
        ),
        borders=tuple(replace(each, values=tuple(map(_short, each.values))) for each in record.borders),
        notes=tuple(map(_short, record.notes)),
        dropped=dropped,
    )


def _short(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= TEXT else f"{clean[: TEXT - 1]}…"
