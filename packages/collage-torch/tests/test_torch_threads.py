"""Torch's helpers run on other processors than the thread that calls them, which may run where it could before."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROCESSORS = sorted(os.sched_getaffinity(0))

IN_A_PROCESS_OF_ITS_OWN = """
import json, os, sys, threading
from collage_torch.threads import import_torch, use_threads

torch, seen = import_torch(), []

def masks():
    own = {*map(int, os.listdir("/proc/self/task"))}
    return sorted(sorted(os.sched_getaffinity(thread)) for thread in own - python)

def work():
    for processors in json.loads(sys.argv[1]):
        os.sched_setaffinity(0, processors)
        use_threads(2)
        torch.relu(torch.ones(1 << 20))
        seen.append([sorted(os.sched_getaffinity(0)), masks()])

caller = threading.Thread(target=work)
caller.start()
python = {threading.main_thread().native_id, caller.native_id}
caller.join()
print(json.dumps(seen))
"""


def masks_of_helpers(*moves: list[int]) -> list[list[list[list[int]]]]:
    """For each mask that the caller gives itself: its mask after a call, and those of its helpers."""
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, json.dumps(moves)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    found: list[list[list[list[int]]]] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(len(PROCESSORS) < 2, reason="there is one processor")
def test_helpers_stay_off_their_callers_processor() -> None:
    ((caller, helpers),) = masks_of_helpers(PROCESSORS)
    assert caller == PROCESSORS
    assert [len(mask) for mask in helpers if mask != PROCESSORS] == [len(PROCESSORS) - 1]


def test_a_caller_with_one_processor_keeps_its_helper_there() -> None:
    ((caller, helpers),) = masks_of_helpers(PROCESSORS[:1])
    assert caller == PROCESSORS[:1]
    assert PROCESSORS[:1] in helpers
