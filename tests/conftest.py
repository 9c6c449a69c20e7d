"""For all tests: they do the same every time, and no test depends on how long anything takes.

What hypothesis makes up follows from the test's own text: a change is judged by what it changes, and whoever reads of a failure
can have it again. New examples are looked for by ``make test-all``, with the profile ``fresh``.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("repeatable")
