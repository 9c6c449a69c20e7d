"""For all tests: nothing waits for a noisy machine, since no test depends on how long anything takes."""

from __future__ import annotations

import os

os.environ.setdefault("COLLAGE_PATIENCE_S", "0")
