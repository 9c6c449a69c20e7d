"""Timings on object stores: exchanged as files, and never shared as a database."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import fsspec
import pytest
from tests.unit.database.test_export import OLD, fill

from collage._errors import UsageError
from collage.cli._app import _main
from collage.database._schema import timing
from collage.database.database import Database, file_url


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = str(tmp_path / "mine.sqlite")
    with Database(path) as database:
        fill(database, "a" * 64, "b" * 64)
    return path


@pytest.mark.parametrize(
    "url", ["s3://bucket/t.sqlite", "gs://b/t", "memory://t", "file:///tmp/t.sqlite", "store://t", "https://host/t"]
)
def test_a_database_on_an_object_store_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be locked .* PostgreSQL .* collage db export"):
        Database(url)


def test_another_database_server_is_refused_without_it() -> None:
    with pytest.raises(UsageError, match=r"nothing else$"):
        Database("mysql://me:secret@host/x")


def test_exports_go_to_urls_and_come_from_them(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"memory://{uuid.uuid4()}/t.jsonl"
    assert _main(["db", "export", url, "--db", mine, "--json"]) == 0
    assert _main(["db", "import", url, "--db", str(tmp_path / "other.sqlite"), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0")]
    assert rows[0]["rows"] == rows[1]["taken"] == 3  # two timings, and the machine
    fs, path = fsspec.core.url_to_fs(url)
    fs.pipe_file(path, fs.cat_file(path)[:-20])
    assert _main(["db", "import", url, "--db", str(tmp_path / "other.sqlite")]) == 2
    assert _main(["db", "import", f"{url}.gone", "--db", str(tmp_path / "other.sqlite")]) == 2
    assert _main(["db", "export", "store://x", "--db", mine]) == 2
    assert capsys.readouterr().err.count("\n") == 3


@pytest.mark.parametrize("source", ["mine", "old"])
def test_a_snapshot_at_a_url_is_merged(mine: str, tmp_path: Path, source: str) -> None:
    url = f"memory://{uuid.uuid4()}/t.sqlite"
    data = Path(mine).read_bytes() if source == "mine" else OLD.read_bytes()
    fs, path = fsspec.core.url_to_fs(url)
    fs.pipe_file(path, data)
    assert _main(["db", "merge", url, "--db", str(tmp_path / "other.sqlite")]) == 0
    with Database(str(tmp_path / "other.sqlite")) as database:
        assert len(list(database.rows(timing))) >= 2
    assert fs.cat_file(path) == data
    fs.pipe_file(path, b"not a database" * 99)
    assert _main(["db", "merge", url, "--db", str(tmp_path / "other.sqlite")]) == 2


def test_a_file_whose_path_is_not_in_utf_8_is_refused() -> None:
    with pytest.raises(UsageError, match="its path is not in UTF-8"):
        file_url(Path("o\udcff.sqlite"))
