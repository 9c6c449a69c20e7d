"""The record as a file: it comes back as it was, is bounded, and anything else is refused without harm."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.explain.records import LLVM, explained, full_record, row

from collage._errors import ArtefactError
from collage.explain import RECORD, Record, read_record, trimmed, write_record
from collage.explain._file import MAX_BYTES
from collage.status import Status
from collage.system.codec import from_json, to_json


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = full_record()
    write_record(record, tmp_path)
    assert read_record(tmp_path) == record


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None


def test_rows_beyond_the_room_are_counted_by_status_and_the_first_are_kept() -> None:
    rows = tuple(row(range(i, i + 1), LLVM, Status.PREDICTED, time_us=1.0) for i in range(4)) * 10_000
    record = replace(full_record(), tried=(*full_record().tried, *rows), dropped={"predicted only": 5})
    cut = trimmed(record)
    assert cut.tried == record.tried[: len(cut.tried)] and len(cut.tried) < len(record.tried)
    assert cut.dropped == {"predicted only": 5 + len(record.tried) - len(cut.tried)}
    assert len(json.dumps(to_json(cut))) < 4 << 20


def test_a_record_of_a_large_model_is_bounded_and_can_be_read(tmp_path: Path) -> None:
    count = 60_000
    names = tuple(f"{'x' * 400}{i}" for i in range(count))
    write_record(replace(full_record(), names=names, op_types=("Conv",) * count), tmp_path)
    record = read_record(tmp_path)
    assert record is not None and record.names[:2] == ("#0", "#1")  # Their names would take more room than there is.


def test_long_texts_are_cut() -> None:
    (note,) = trimmed(replace(full_record(), notes=("x" * 10_000,))).notes
    assert len(note) == 500 and note.endswith("…")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


TOLD = to_json(full_record())
PLACES = list(places(TOLD))
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    10**30,
    1.5,
    -0.5,
    float("1e308"),
    "",
    "x" * 501,
    "0-99999999",
    "\ud800",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"a": 1},
]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(HOSTILE))
def test_a_changed_record_is_refused_or_explained_and_nothing_else(place: tuple[Any, ...], value: Any) -> None:
    told = copy.deepcopy(TOLD)
    if place:
        parent = told
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = value
    try:
        record: Record = from_json(Record, told if place else value)
    except ValueError:
        return
    explanation = explained(record)
    text = str(explanation) + "".join(str(t) for a in record.targets for t in explanation.target(a.target))
    text += "".join(str(explanation.node(f"#{i}")) for i in range(len(record.names)))
    assert "\x1b" not in text
    json.dumps(explanation.to_json(), allow_nan=False)


MIN_GAIN = json.dumps({**TOLD, "min_gain": 7.5})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", "{}", '{"names": []}', "[" * 100_000]
    + [MIN_GAIN.replace("7.5", number) for number in ("NaN", "Infinity", "9" * 5000, "1e999", "-1")],
)
def test_a_file_that_is_not_a_record_is_an_artefact_error(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ArtefactError, match="is not a record"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"{}", gzip.compress(MIN_GAIN.encode())[:-9], gzip.compress(b" " * (MAX_BYTES + 1))]
)
def test_a_file_that_is_cut_off_not_compressed_or_grows_too_large_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(data)
    with pytest.raises(ArtefactError, match="is not a record"):
        read_record(tmp_path)


def test_a_link_a_folder_and_a_huge_file_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / RECORD).symlink_to("/etc/passwd")
    (tmp_path / "b" / RECORD).mkdir(parents=True)
    (tmp_path / "c").mkdir()
    with (tmp_path / "c" / RECORD).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for name in "abc":
        with pytest.raises(ArtefactError):
            read_record(tmp_path / name)
