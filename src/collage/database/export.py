"""Copying timings from one database to another, as text or directly.

The text is JSON, one object a line: a header, timings, facts, and a last line with their number, so that a file that was
cut off is noticed. A file may come from anywhere, so all of it is checked before any of it is kept. A row that was made on
this machine is never replaced by one from elsewhere; of two others, the newer is kept.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from collage._errors import UsageError
from collage.cost.workload_key import digest_of
from collage.database._engine import reading_uri
from collage.database._rows import clean_text, is_finite, parts_of, read_json, valid_row, value_of, why_no_key
from collage.database._schema import SCHEMA, fact, timing
from collage.database.database import Database
from collage.store import download, url_of
from collage.system.scratch import scratch

__all__ = ["Moved", "export_lines", "import_lines", "merge"]

_FORMAT = "collage timings"
_MOST_LINE = 16 << 20
_IMPORTED = " (imported)"
_TIMING_FIELDS = tuple(column.name for column in timing.c if column.name not in ("digest", "parts"))


@dataclass(frozen=True, slots=True)
class Moved:
    """The counts of rows that were moved.

    Attributes:
        timings: Timings that were there.
        facts: Facts that were there.
        taken: The number of timings and facts that are new here, or newer than the row that was here.
    """

    timings: int
    facts: int
    taken: int


def export_lines(database: Database) -> Iterator[str]:
    """All timings and facts as lines of text, without line ends; rows that are not valid are left out."""
    yield json.dumps({"format": _FORMAT, "schema": SCHEMA, "origin": database.origin, "made_at_s": time.time()})
    count = 0
    for valid in filter(None, map(valid_row, database.rows(timing))):
        count += 1
        figures = {name: valid[name] for name in _TIMING_FIELDS}
        yield json.dumps({"timing": {"parts": parts_of(valid), **figures}}, allow_nan=False)
    for row in database.rows(fact):
        if (value := value_of(row)) is not None:
            count += 1
            about = {"name": read_json(row["name"]), "made_at_s": row["made_at_s"], "origin": row["origin"]}
            yield json.dumps({"fact": {**about, "value": value}}, allow_nan=False)
    yield json.dumps({"end": count})


def import_lines(database: Database, lines: TextIO, source: str) -> Moved:
    """Import the output of ``export_lines``. All rows are marked as imported, even if they name another origin.

    Args:
        database: The database that takes the rows.
        lines: The text.
        source: Name of the text in messages.

    Raises:
        UsageError: A line is not such text. Nothing is taken then.
    """
    timings: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    end: int | None = None
    number = 0
    for number, line in enumerate(iter(lambda: lines.readline(_MOST_LINE + 1), ""), 1):
        try:
            found = _read_line(line)
            if number == 1:
                _check_header(found)
            elif end is not None:
                raise ValueError("there is a line after the end of the export")
            elif "timing" in found:
                timings.append(_timing_row(found["timing"], database.origin))
            elif "fact" in found:
                facts.append(_fact_row(found["fact"], database.origin))
            else:
                end = found["end"]
        except (ValueError, KeyError, TypeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UsageError(f"{source}, line {number}: {what}; nothing was imported") from None
    if end != len(timings) + len(facts):
        raise UsageError(f"{source} ends early, after {number} lines; nothing was imported")
    return _keep(database, timings, facts)


def merge(database: Database, source: str) -> Moved:
    """Import the rows of another database: a file here or at a URL, or a server. Rows keep their origin.

    The other database is not changed.

    Raises:
        UsageError: There is no such database, or it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        if not source.startswith("postgres"):
            folder = stack.enter_context(scratch())
            source = str(_copy_of(_file_of(source, folder), folder))
        other = stack.enter_context(Database(source))
        timings = [row for row in map(valid_row, other.rows(timing)) if row is not None]
        facts = [row for row in other.rows(fact) if value_of(row) is not None]
        return _keep(database, timings, facts)


def _file_of(source: str, folder: Path) -> Path:
    """Return the file of an SQLite database. One at a URL is downloaded into the folder: a snapshot."""
    url = None if source.startswith("sqlite:") else url_of(source)
    if url is None:
        return Path(source.removeprefix("sqlite:///"))
    return download(url, folder)


def _copy_of(file: Path, folder: Path) -> Path:
    """A copy of an SQLite database that may be in use, so that it can be migrated before it is read."""
    if not file.is_file():
        raise UsageError(f"there is no timing database {file}")
    copy = folder / "copy.sqlite"
    try:
        with (
            contextlib.closing(sqlite3.connect(reading_uri(file), uri=True)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise UsageError(f"cannot read the timing database {file}: {error}") from error
    return copy


def _keep(database: Database, timings: Sequence[Mapping[str, Any]], facts: Sequence[Mapping[str, Any]]) -> Moved:
    taken = database.write(timing, timings, keep_local=True) + database.write(fact, facts, keep_local=True)
    return Moved(len(timings), len(facts), taken)


def _read_line(line: str) -> dict[str, Any]:
    found = read_json(line) if len(line) <= _MOST_LINE else None
    if not isinstance(found, dict):
        raise ValueError("this is not a JSON object")
    return found


def _check_header(found: Mapping[str, Any]) -> None:
    if found.get("format") != _FORMAT:
        raise ValueError(f"this is not a text that `collage db export` wrote: it does not begin with {_FORMAT!r}")
    if not isinstance(found.get("schema"), int) or found["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer version (schema {found.get('schema')}); update Collage")


def _timing_row(found: Mapping[str, Any], here: str) -> dict[str, Any]:
    parts = found["parts"]
    if (reason := why_no_key(parts)) is not None:
        raise ValueError(reason)
    row = {
        "digest": digest_of(parts),
        "parts": json.dumps(parts, sort_keys=True),
        **{name: found.get(name) for name in _TIMING_FIELDS},
        **_provenance(found, here),
    }
    if (valid := valid_row(row)) is None:
        raise ValueError("its status and its times make no sense together")
    return valid


def _fact_row(found: Mapping[str, Any], here: str) -> dict[str, Any]:
    name = found["name"]
    if not isinstance(name, dict) or not isinstance(name.get("fact"), str):
        raise ValueError("a fact needs a name, which is its kind")
    row = {
        "digest": digest_of(name),
        "name": json.dumps(name, sort_keys=True),
        "value": json.dumps(found["value"]),
        **_provenance(found, here),
    }
    if value_of(row) is None:
        raise ValueError(f"the fact {name['fact']!r} has no value")
    return row


def _provenance(found: Mapping[str, Any], here: str) -> dict[str, Any]:
    """When and where a row was made; nothing that comes as text passes as made here, or as made in the future."""
    if not isinstance(found["origin"], str) or not is_finite(found["made_at_s"]):
        raise ValueError("it has no origin or no date")
    origin = clean_text(found["origin"].removesuffix(_IMPORTED))[:100]
    return {"origin": (origin or here) + _IMPORTED, "made_at_s": min(float(found["made_at_s"]), time.time())}
