"""A fixture of all tests of toolchains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_loops_are_given_up(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail where TVM gets slower loops, since those that are written for a kernel could not be made."""
    yield
    given_up = [
        record.getMessage() for record in caplog.get_records("call") if record.name.startswith("collage.toolchains.tvm")
    ]
    assert not given_up
