"""The loop of a contender: prepare a model, write its outputs, then run it as often as each line of the standard input says.

A contender is a script ``with_NAME.py MODEL.onnx INPUTS.npz OUTPUTS.npz``. Those of rivals use nothing of Collage. Its first
line of output is a JSON object with ``version`` and ``compile_s``, the others are seconds of single runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Feeds = Mapping[str, np.ndarray]
# What preparing returns: a run that returns the outputs in the model's order, the version, and further facts.
Prepared = tuple[Callable[[], Any], str, Mapping[str, Any]]


def serve(prepare: Callable[[Path, Feeds], Prepared]) -> None:
    """Run a contender."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries may print: their lines are no answers.
    model, inputs, outputs = map(Path, sys.argv[1:4])
    feeds = dict(np.load(inputs))
    began = time.perf_counter()
    run, version, more = prepare(model, feeds)
    made = run()
    seconds = time.perf_counter() - began
    np.savez(outputs, **{str(i): np.asarray(each) for i, each in enumerate(made)})
    run()
    # The largest resident set; that of getrusage begins with what the parent held.
    memory = int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1e3
    print(json.dumps({"version": version, "compile_s": seconds, "rss_mb": memory, **more}), file=answers, flush=True)
    for line in sys.stdin:
        samples = []
        for _ in range(int(line)):
            before = time.perf_counter()
            run()
            samples.append(time.perf_counter() - before)
        print(json.dumps(samples), file=answers, flush=True)
