"""Threads of each toolchain that computes with several, in a process where others compute too, and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collage.toolchains import registry

PROCESSORS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(PROCESSORS) < 2, reason="there is one processor")

IN_A_PROCESS_OF_ITS_OWN = """
import json, os, sys, threading, time
from pathlib import Path
import numpy as np
from collage.cost.workload_key import runtime_settings
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, registry
from collage.toolchains.sdk.thread_affinity import computed_meanwhile, own_threads

alias, folder, exclusive = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "exclusive"
before, processors = runtime_settings(), sorted(os.sched_getaffinity(0))
toolchains = registry()
target = toolchains.parse_target(alias)
toolchain = toolchains.for_target(target)
w = np.ones((1024, 1024), np.float32) / 1024
model = kernel("product", "(float[1024,1024] x) => (float[1024,1024] y) {y = MatMul (x, w)}", {"w": w})
compiled = toolchain.compile(model, target, folder)
x = np.ones((1024, 1024), np.float32)
seen = {"kept_off": 0, "busy_for_another": 0, "awake_afterwards": len(processors)}

def call():
    for _ in range(5):
        loaded([x])

def kept_off():
    masks = (sorted(os.sched_getaffinity(thread)) for thread in own_threads())
    return sum(len(mask) == len(processors) - 1 for mask in masks)

def other():
    call()
    with computed_meanwhile(own_threads(), share=0.02) as busy:
        call()
    seen["busy_for_another"] = max(len(busy), seen["busy_for_another"])

end = time.monotonic() + 120
while True:  # On a busy machine a helper may hardly come to help.
    loaded = toolchain.load(compiled, target, folder, LoadOptions(2, exclusive))
    call()
    with computed_meanwhile(own_threads() - {threading.get_native_id()}, share=0.1) as awake:
        time.sleep(0.03)
    seen["awake_afterwards"] = min(len(awake), seen["awake_afterwards"])
    seen["kept_off"] = max(kept_off(), seen["kept_off"])
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    helped = seen["busy_for_another"] > 1 and (exclusive or (seen["kept_off"] and not seen["awake_afterwards"]))
    if helped or time.monotonic() > end:
        break
seen["caller"] = sorted(os.sched_getaffinity(0)) == processors
seen["settings"] = runtime_settings() == before
print(json.dumps(seen))
"""


def seen_with(alias: str, folder: Path, how: str) -> dict[str, Any]:
    if not (found := registry().get(alias).availability()).available:
        pytest.skip(f"{alias}: {found.reason}")
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, alias, str(folder), how]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("alias", ["onnxruntime", "openvino", "tvm"])
def test_a_helper_stays_off_its_callers_processor_and_rests_between_runs(alias: str, tmp_path: Path) -> None:
    seen = seen_with(alias, tmp_path, "shared")
    assert seen["caller"]
    assert seen["kept_off"] >= 1
    assert seen["busy_for_another"] >= 2
    assert seen["awake_afterwards"] == 0
    assert seen["settings"], "loading it changes what timings are filed under"


def test_who_is_alone_places_its_threads_itself(tmp_path: Path) -> None:
    assert seen_with("onnxruntime", tmp_path, "exclusive")["kept_off"] == 0
