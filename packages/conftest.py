"""For the tests of all packages: what `tests/conftest.py` says of repeatable examples and exports holds here too.

Of contract tests that compile every case from MLIR, a part runs by default.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.conftest import pytest_collection_finish, pytest_runtest_setup  # noqa: F401

EXPENSIVE = ("TestIree",)
THINNED = ("test_edges_and_types_are_right_or_refused", "test_what_is_used_twice_is_not_written_over")
EVERY = 3
"""Of the cases of a thinned test, the first of so many runs by default."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases of expensive toolchains as slow, before cases are chosen by marks."""
    seen: Counter[str] = Counter()
    for item in items:
        name, owner = getattr(item, "originalname", ""), getattr(item, "cls", None)
        if owner is not None and owner.__name__ in EXPENSIVE and name in THINNED:
            if seen[name] % EVERY:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
