"""A machine lock of the test run's own: each process of pytest stands for a machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collage.workers import machine_lock
from tests.short_measurements import LOCKS


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait for no measurement of tests that run at the same time. No test asserts what a busy machine decides."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("locks")
        patch.setenv(LOCKS, str(folder))
        patch.setattr(machine_lock, "_FOLDER", folder)
        yield
