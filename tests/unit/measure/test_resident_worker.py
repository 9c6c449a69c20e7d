"""The largest resident set of a process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import numpy as np
from collage.measure._resident_worker import largest_resident_bytes
before = largest_resident_bytes()
much = np.ones(64 << 20, np.uint8)
with_it = largest_resident_bytes()
del much
print(before, with_it, largest_resident_bytes())
"""


def test_what_was_let_go_of_counts() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    before, with_it, after = map(int, done.stdout.split())
    assert 60 << 20 < with_it - before < 80 << 20
    assert after > with_it - (1 << 20)  # The system counts in steps.
