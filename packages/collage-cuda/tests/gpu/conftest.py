"""Everything here needs a device; what passes on one is recorded, for ``collage targets`` to tell."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from collage_cuda import cuda_support

_HERE = Path(__file__).parent
_FAILED: set[str] = set()
_PASSED: set[str] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = cuda_support.find_gpu()
    for item in items:
        if _HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if isinstance(found, cuda_support.Absence):
            item.add_marker(pytest.mark.skip(reason=f"{found.reason}; {found.remedy}"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    outcome = yield
    stem = getattr(getattr(item, "cls", None), "records", None)
    if stem is not None:
        outcome.get_result().user_properties.append(("records", stem))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome; workers of pytest-xdist send their reports to the process that collects them."""
    stem = dict(report.user_properties).get("records")
    if stem is not None and report.failed:
        _FAILED.add(str(stem))
    if stem is not None and report.when == "call" and report.passed:
        _PASSED.add(str(stem))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep which targets' contract tests all passed, and where; whoever ran them commits the file."""
    found = cuda_support.find_gpu()
    if not _PASSED or isinstance(found, cuda_support.Absence) or hasattr(session.config, "workerinput"):
        return
    record = cuda_support.RECORD
    runs = json.loads(record.read_text())
    today = datetime.date.today().isoformat()
    runs |= {stem: f"{found}, {today}" for stem in _PASSED - _FAILED}
    for stem in _FAILED:
        runs.pop(stem, None)
    record.write_text(json.dumps(runs, indent=2, sort_keys=True) + "\n")
