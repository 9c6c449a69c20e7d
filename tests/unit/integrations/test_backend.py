"""ONNX's backend interface."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.integrations.backend import CollageRep
from collage.runtime import Executable


@pytest.mark.parametrize(("listed", "expected"), [(("y", "z", "y"), (1, 2, 1)), ((), (1, 2))])
def test_an_output_that_is_listed_twice_is_returned_twice(listed: tuple[str, ...], expected: tuple[int, ...]) -> None:
    def run(_: Any) -> dict[str, int]:
        return {"y": 1, "z": 2}

    executable = SimpleNamespace(run=run, recipe=SimpleNamespace(listed=listed))
    assert CollageRep(cast(Executable, executable)).run([]) == expected
