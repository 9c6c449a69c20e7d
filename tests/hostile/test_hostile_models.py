from __future__ import annotations

import contextlib
import resource
import time

import pytest

from collage import CollageError
from collage._errors import ModelError
from collage.frontend import read_model
from collage.transform import prepare
from tests.hostile.hostile_models import CORPUS, LABORIOUS


@contextlib.contextmanager
def within_bounds():
    """Twenty seconds of work (two are usual), two minutes on a machine that has others to serve as well, and a gigabyte."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s, worked_s = time.monotonic(), time.process_time()
    yield
    assert time.process_time() - worked_s < 20
    assert time.monotonic() - start_s < 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 2**20


@pytest.mark.parametrize("name", CORPUS)
def test_hostile_model_is_refused_quickly_with_one_sentence(name, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    path = CORPUS[name](folder)
    with within_bounds(), pytest.raises(ModelError) as refusal:
        read_model(path)
    message = str(refusal.value)
    assert message.startswith(str(path))
    assert "\n" not in message and len(message) < 1000
    assert refusal.value.exit_code == 5


@pytest.mark.parametrize("name", LABORIOUS)
def test_what_might_be_a_shape_is_not_followed_for_gigabytes(name, tmp_path):
    path = LABORIOUS[name](tmp_path)
    with within_bounds():
        prepare(read_model(path))


def test_function_bomb_costs_little(tmp_path):
    path = CORPUS["function_bomb"](tmp_path)
    assert path.stat().st_size < 4000
    worked_s = time.process_time()
    with pytest.raises(CollageError, match=r"more than 50,000 nodes"):
        read_model(path)
    assert time.process_time() - worked_s < 2
