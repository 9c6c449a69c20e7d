from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import collage.device

PAGE = Path(__file__).parents[3] / "docs" / "devices.md"


def test_the_examples_of_the_tutorial_run() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert attempted > 15 and failed == 0


def test_every_public_name_is_documented() -> None:
    for name in collage.device.__all__:
        value = getattr(collage.device, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, name
